"""A2C, a baseline without privacy (Mnih et al. 2016, arXiv:1602.01783, run synchronously).

It is PPO with one pass over one batch: the probability ratio is then 1 at every step, so that the
clipped surrogate's gradient is the policy gradient (Huang et al. 2022, arXiv:2205.09123). What else
differs are short rollouts, advantages that are not normalised, and RMSprop. So here are only the
settings; `sotto.algorithms.baselines.ppo` does the rest.
"""

from dataclasses import asdict, dataclass

from sotto.algorithms.baselines.ppo import PPOConfig
from sotto.algorithms.settings import (
    Count,
    Discount,
    NotNegative,
    Positive,
    Probability,
    Seed,
    Settings,
    Signed,
)


@dataclass(frozen=True)
class A2CConfig(Settings):
    """Settings of A2C, with the defaults of Stable-Baselines3 and more environments."""

    env_id: str = "CartPole-v1"
    """The environment."""
    seed: Seed = 0
    """Seed of the initial networks, the environments and the actions."""
    total_steps: Count = 500_000
    """Environment steps over the whole training, summed over environments."""
    num_envs: Count = 16
    """Environments that run side by side."""
    num_steps: Count = 5
    """Steps of each environment per update."""
    learning_rate: Positive = 7e-4
    """RMSprop's learning rate, at the start if it is annealed."""
    anneal_learning_rate: bool = True
    """Bring the learning rate linearly to zero over the training."""
    discount: Discount = 0.99
    """Gamma."""
    gae_lambda: Probability = 1.0
    """Lambda of the advantage estimates; 1 takes all rewards of the rollout."""
    entropy_coefficient: Signed = 0.0
    """Weight of the entropy bonus."""
    value_coefficient: NotNegative = 0.5
    """Weight of the critic's loss, which is in units of the value scale."""
    max_grad_norm: Positive = 0.5
    """Global norm to which each gradient is clipped."""
    hidden: tuple[Count, ...] = (64, 64)
    """Hidden layers of the policy and of the critic."""
    normalise_advantages: bool = False
    """Bring the advantages of each update to mean zero and standard deviation one."""

    def check(self) -> None:
        """Refuses what PPO refuses."""
        _ = self.ppo

    @property
    def ppo(self) -> PPOConfig:
        """The same as settings of PPO."""
        return PPOConfig(**asdict(self), num_epochs=1, num_minibatches=1, optimizer="rmsprop")
