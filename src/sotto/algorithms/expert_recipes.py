"""How experts are trained, environment by environment, and about how long that takes.

The stops are early on purpose: a third of the experts of each environment has hardly learned, a
third plays well. On CartPole greedy experts return 167 ± 51 of 200.
"""

from sotto.algorithms.experts import Recipe
from sotto.algorithms.ppo import PPOConfig
from sotto.rl.envs.variants import LUNAR_LANDER, variants

HIDDEN = (64, 64)


def recipe(env_id: str, hidden: tuple[int, ...] = HIDDEN) -> Recipe:
    """The recipe of an environment that has variants.

    Args:
        env_id: its name.
        hidden: layers of every policy and critic.

    Raises:
        ValueError: it has none.
    """
    variants(env_id)  # refuses other environments
    if env_id == "CartPole-v1":
        return Recipe(
            PPOConfig(
                env_id=env_id,
                num_envs=8,
                num_steps=32,
                num_epochs=8,
                num_minibatches=2,
                discount=0.98,
                gae_lambda=0.8,
                anneal_learning_rate=False,
                hidden=hidden,
            ),
            learning_rates=(5e-4, 1e-3, 2e-3),
            stops=(5, 10, 30),
            time_limit=200,
            cap=200,
        )
    if env_id == "Acrobot-v1":
        return Recipe(
            PPOConfig(
                env_id=env_id,
                num_envs=16,
                num_steps=32,
                num_epochs=8,
                num_minibatches=2,
                discount=0.99,
                gae_lambda=0.9,
                anneal_learning_rate=False,
                hidden=hidden,
            ),
            learning_rates=(5e-4, 1e-3, 2e-3),
            stops=(10, 20, 40),
            time_limit=500,
            cap=200,
        )
    if env_id == "HIV-v0":
        return Recipe(
            PPOConfig(
                env_id=env_id,
                num_envs=4,
                num_steps=50,
                num_epochs=8,
                num_minibatches=2,
                discount=0.98,
                gae_lambda=0.95,
                anneal_learning_rate=False,
                hidden=hidden,
            ),
            learning_rates=(1e-3, 2e-3, 4e-3),
            stops=(20, 40),
            time_limit=50,
            cap=50,
        )
    return Recipe(
        PPOConfig(
            env_id=env_id,
            num_envs=8,
            num_steps=128,
            num_epochs=4,
            num_minibatches=4,
            discount=0.99,
            gae_lambda=0.98,
            entropy_coefficient=0.01,
            anneal_learning_rate=False,
            hidden=hidden,
        ),
        learning_rates=(3e-4, 6e-4),
        stops=(5, 10, 20),
        time_limit=1000,
        cap=400,
        base=PPOConfig(
            env_id=env_id,
            total_steps=600_000,
            num_envs=16,
            num_steps=128,
            num_epochs=6,
            num_minibatches=8,
            learning_rate=1e-3,
            discount=0.99,
            gae_lambda=0.98,
            entropy_coefficient=0.01,
            hidden=hidden,
        ),
    )


SECONDS = {"CartPole-v1": 0.1, "Acrobot-v1": 0.3, "HIV-v0": 0.5, LUNAR_LANDER: 3.0}
"""Of one core for an expert with 64x64 networks, judging included."""

BASE_SECONDS = {LUNAR_LANDER: 120.0}
"""For the policy that all experts start from."""
