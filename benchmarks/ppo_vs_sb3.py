"""PPO here against Stable-Baselines3's PPO with its defaults, same environment steps.

Both are judged alike: 100 greedy episodes of the final policy in Gymnasium's own environment.

    python benchmarks/ppo_vs_sb3.py --env-id CartPole-v1 --total-steps 100000
    python benchmarks/ppo_vs_sb3.py --env-id Acrobot-v1 --total-steps 100000
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import torch
import tyro
from stable_baselines3 import PPO

from sotto.algorithms.baselines.ppo import PPOConfig, init, train_chunk


@dataclass(frozen=True)
class Comparison:
    """What to compare."""

    env_id: str = "CartPole-v1"
    """CartPole-v1 or Acrobot-v1."""
    total_steps: int = 100_000
    """Environment steps of every training."""
    seeds: int = 5
    """Our seeds, trained at once under vmap."""
    sb3_seeds: int = 3
    """Stable-Baselines3's seeds, trained one after another with one environment (its default)."""
    episodes: int = 100
    """Greedy evaluation episodes per seed."""


def judged(env_id: str, act: Callable[[np.ndarray], int], episodes: int) -> float:
    """Mean return of greedy episodes in Gymnasium's environment."""
    env = gym.make(env_id)
    returns = []
    for episode in range(episodes):
        observation, _ = env.reset(seed=10_000 + episode)
        total, ended = 0.0, False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(act(observation))
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def ours(comparison: Comparison) -> tuple[list[float], float, float]:
    """Returns per seed, seconds of training, seconds of compilation."""
    config = PPOConfig(env_id=comparison.env_id, total_steps=comparison.total_steps)
    keys = jax.random.split(jax.random.key(config.seed), comparison.seeds)
    states = jax.vmap(partial(init, config))(keys)
    train = jax.jit(jax.vmap(lambda s, k: train_chunk(config, s, k, config.num_updates)))
    began = time.perf_counter()
    compiled = train.lower(states, keys).compile()
    compilation = time.perf_counter() - began
    began = time.perf_counter()
    states, _ = compiled(states, keys)
    states.updates.block_until_ready()
    seconds = time.perf_counter() - began

    returns = []
    for seed in range(comparison.seeds):
        policy = jax.tree.map(lambda x, i=seed: x[i], states.networks.policy)
        mode = jax.jit(lambda observation, policy=policy: policy(observation).mode())
        act = partial(lambda f, observation: int(f(jnp.asarray(observation))), mode)
        returns.append(judged(comparison.env_id, act, comparison.episodes))
    return returns, seconds, compilation


def stable_baselines3(comparison: Comparison) -> tuple[list[float], float]:
    """Returns per seed and seconds of training in all."""
    torch.set_num_threads(1)  # Networks this small are slower on several threads.
    returns, seconds = [], 0.0
    for seed in range(comparison.sb3_seeds):
        model = PPO("MlpPolicy", comparison.env_id, seed=seed, device="cpu")
        began = time.perf_counter()
        model.learn(comparison.total_steps)
        seconds += time.perf_counter() - began
        act = partial(lambda m, o: int(m.predict(o, deterministic=True)[0]), model)
        returns.append(judged(comparison.env_id, act, comparison.episodes))
    return returns, seconds


def main(comparison: Comparison) -> None:
    """Train both and print one line each."""
    returns, seconds, compilation = ours(comparison)
    steps = comparison.total_steps
    print(
        f"sotto PPO: {np.mean(returns):.1f} (worst seed {min(returns):.1f}, {len(returns)} seeds), "
        f"{steps * len(returns) / seconds:,.0f} env-steps/s, compiled in {compilation:.1f} s"
    )
    returns, seconds = stable_baselines3(comparison)
    print(
        f"SB3 PPO:   {np.mean(returns):.1f} (worst seed {min(returns):.1f}, {len(returns)} seeds), "
        f"{steps * len(returns) / seconds:,.0f} env-steps/s"
    )


if __name__ == "__main__":
    main(tyro.cli(Comparison))
