"""PPO without privacy on CartPole-v1: sotto, rejax (PureJaxRL as a package), Stable-Baselines3.

All have the same number of environment steps, networks, minibatches, epochs and learning rate. Each
steps the environment that it brings: JAX's for sotto and rejax, Python's for Stable-Baselines3.
The final policies are judged alike, by 100 greedy episodes in Gymnasium's environment.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax

from against.kept import Row, alternated
from sotto.algorithms.baselines.ppo import PPOConfig, init, train_chunk

ENV, ENVS, STEPS, EPOCHS, MINIBATCHES = "CartPole-v1", 8, 128, 5, 4
LEARNING_RATE, MAX_GRAD_NORM, DISCOUNT, GAE = 1e-3, 0.5, 0.99, 0.95
SIDE_BY_SIDE = 16

Act = Callable[[np.ndarray], np.ndarray]


def _act(greedy: Callable[[Any, Any], Any], policy: Any, seen: np.ndarray) -> np.ndarray:
    return np.asarray(greedy(policy, jnp.asarray(seen)))


def judged(act: Act, episodes: int = 100) -> float:
    """Returns the mean return of greedy episodes in Gymnasium's environment."""
    envs = gym.make_vec(ENV, num_envs=episodes, vectorization_mode="vector_entry_point")
    observations, _ = envs.reset(seed=10_000)
    returns, alive = np.zeros(episodes), np.ones(episodes, bool)
    while alive.any():
        observations, rewards, terminated, truncated, _ = envs.step(act(observations))
        returns += rewards * alive
        alive &= ~(terminated | truncated)
    return float(returns.mean())


class Measured:
    """One peer: its rates come from the turns, its returns and compile time stay here."""

    def __init__(self, steps: int) -> None:
        self.steps, self.seeds = steps, 0
        self.returns: list[float] = []
        self.compiled = 0.0


class InJax(Measured):
    """A training that is one compiled program of a state, one seed or several side by side."""

    def __init__(
        self,
        steps: int,
        begin: Callable[[Any], Any],
        train: Callable[[Any, Any], Any],
        greedy: Callable[[Any, Any], Any],
        seeds: int,
    ) -> None:
        super().__init__(steps * seeds)
        self._begin, self._greedy, self._side = jax.jit(jax.vmap(begin)), greedy, seeds
        example = self._begin(self._keys())
        started = time.perf_counter()
        several = jax.vmap(train)

        def one(states: Any, keys: Any) -> Any:
            first = jax.tree.map(lambda x: x[0], (states, keys))
            return jax.tree.map(lambda x: x[None], train(*first))

        program = jax.jit(several if seeds > 1 else one)
        self._program = program.lower(example, self._keys()).compile()
        self.compiled = time.perf_counter() - started

    def _keys(self) -> Any:
        return jax.random.split(jax.random.key(1000 + self.seeds), self._side)

    def __call__(self) -> float:
        """Trains fresh seeds and returns environment steps per second."""
        self.seeds += 1
        keys = self._keys()
        states = jax.block_until_ready(self._begin(keys))
        started = time.perf_counter()
        states = jax.block_until_ready(self._program(states, keys))
        seconds = time.perf_counter() - started
        act = jax.jit(self._greedy)
        for seed in range(self._side):
            policy = jax.tree.map(lambda x, i=seed: x[i], states)
            self.returns.append(judged(partial(_act, act, policy)))
        return self.steps / seconds


def ours(updates: int, seeds: int) -> Measured:
    config = PPOConfig(
        env_id=ENV,
        total_steps=updates * ENVS * STEPS,
        num_envs=ENVS,
        num_steps=STEPS,
        num_epochs=EPOCHS,
        num_minibatches=MINIBATCHES,
        learning_rate=LEARNING_RATE,
        max_grad_norm=MAX_GRAD_NORM,
        discount=DISCOUNT,
        gae_lambda=GAE,
    )
    return InJax(
        config.total_steps,
        partial(init, config),
        lambda state, key: train_chunk(config, state, key, updates)[0],
        lambda state, seen: state.networks.policy(seen).mode(),
        seeds,
    )


def rejax(updates: int, seeds: int) -> Measured:
    """Returns rejax's PPO without its evaluations, which would count against it."""
    from rejax import PPO

    algorithm = PPO.create(
        env=ENV,
        num_envs=ENVS,
        num_steps=STEPS,
        num_epochs=EPOCHS,
        num_minibatches=MINIBATCHES,
        learning_rate=optax.linear_schedule(LEARNING_RATE, 0.0, updates * EPOCHS * MINIBATCHES),
        max_grad_norm=MAX_GRAD_NORM,
        gamma=DISCOUNT,
        gae_lambda=GAE,
        ent_coef=0.0,
        total_timesteps=updates * ENVS * STEPS,
        agent_kwargs={"activation": "tanh"},
    )

    def train(state: Any, key: Any) -> Any:
        del key  # the state has its own
        step = lambda s, _: (algorithm.train_iteration(s), None)  # noqa: E731
        return jax.lax.scan(step, state, None, updates)[0]

    def greedy(state: Any, seen: Any) -> Any:
        chosen = algorithm.actor.apply(state.actor_ts.params, seen, method="_action_dist")
        return jnp.argmax(chosen.logits, axis=-1)

    return InJax(updates * ENVS * STEPS, algorithm.init_state, train, greedy, seeds)


class StableBaselines3(Measured):
    """Stable-Baselines3's PPO on one thread, on which networks this small are fastest."""

    def __call__(self) -> float:
        """Trains a fresh seed and returns environment steps per second."""
        import torch
        from stable_baselines3 import PPO
        from stable_baselines3.common.env_util import make_vec_env

        torch.set_num_threads(1)
        self.seeds += 1
        model = PPO(
            "MlpPolicy",
            make_vec_env(ENV, n_envs=ENVS, seed=1000 + self.seeds),
            n_steps=STEPS,
            batch_size=ENVS * STEPS // MINIBATCHES,
            n_epochs=EPOCHS,
            learning_rate=lambda left: LEARNING_RATE * left,
            max_grad_norm=MAX_GRAD_NORM,
            gamma=DISCOUNT,
            gae_lambda=GAE,
            device="cpu",
            seed=1000 + self.seeds,
        )
        started = time.perf_counter()
        model.learn(self.steps)
        seconds = time.perf_counter() - started
        self.returns.append(judged(lambda seen: model.predict(seen, deterministic=True)[0]))
        return self.steps / seconds


def measure(quick: bool) -> list[Row]:
    """Returns a row for each peer."""
    updates, repeats = (10, 2) if quick else (98, 5)
    peers: dict[str, Any] = {
        "sotto": ours(updates, 1),
        "rejax": rejax(updates, 1),
        "Stable-Baselines3": StableBaselines3(updates * ENVS * STEPS),
        f"sotto, {SIDE_BY_SIDE} seeds at once": ours(updates, SIDE_BY_SIDE),
        f"rejax, {SIDE_BY_SIDE} seeds at once": rejax(updates, SIDE_BY_SIDE),
    }
    rates = alternated(peers, repeats)
    return [
        {
            "name": name,
            "rates": rates[name],
            "returns": peer.returns,
            "compile_seconds": peer.compiled,
            "steps": updates * ENVS * STEPS,
        }
        for name, peer in peers.items()
    ]
