"""Speed of private policy gradient against Stable-Baselines3 PPO, on one machine in one run.

    python benchmarks/dppg_speed.py            all of it, about ten minutes on two cores
    python benchmarks/dppg_speed.py --quick    fewer and shorter repeats
    python benchmarks/dppg_speed.py --json results.json

Every figure is the median of several interleaved repeats; what counts are the ratios. Compile time
is measured apart (the first chunk of a training). Env-steps are public counts, K * T per release.
"""

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import jax
import jax.numpy as jnp

from sotto.algorithms.dppg import release, segments
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.presets import preset
from sotto.algorithms.dppg.training import (
    DPPGTraining,
    create_ledger,
    initial_states,
    training_environment,
)

Rate = tuple[float, float]
"""Env-steps per second, and the seconds before the first of them (compilation)."""


def paper_settings(steps: int) -> DPPGConfig:
    return preset(
        "paper", "CartPole-v1", noise_multiplier=3.0, total_steps=steps, evaluation_episodes=0
    )


def sotto_settings(steps: int) -> DPPGConfig:
    """The recipe with several episodes a person, so that every step counted is a step taken."""
    return preset(
        "sotto",
        "CartPole-v1",
        noise_multiplier=3.0,
        total_steps=steps,
        one_episode=False,
        evaluation_episodes=0,
    )


def private(config: DPPGConfig, runs: int) -> Rate:
    """A whole private training: door, ledger with fsync, noise."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        ledgers = [create_ledger(config, Path(folder) / f"{i}.sqlite") for i in range(runs)]
        training = DPPGTraining(config, range(runs), ledgers)
        jax.block_until_ready(training.advance().states)
        compiled, first = time.perf_counter(), training.done
        for progress in training:
            jax.block_until_ready(progress.states)
        seconds = time.perf_counter() - compiled
    steps = runs * (config.num_updates - first) * config.steps_per_update
    return steps / seconds, compiled - begin


def without_privacy(config: DPPGConfig, runs: int) -> Rate:
    """The same local updates and server in a bare scan: no clip, no noise, no ledger."""
    env = training_environment(config)
    local = partial(release._local, config, env, config.clip_norm)
    server = partial(release._server, config, env)
    continuing = config.unit == "segment"
    chunk = -(-config.num_updates // 20)

    def one(carry: Any, index: Any) -> tuple[Any, Any]:
        state, lanes, key = carry
        update_key = jax.random.fold_in(key, index)
        keys = jax.random.split(update_key, config.users_per_update)
        if continuing:
            lanes, units = segments.following(config, env, state, lanes, update_key)
            parts, seen = jax.vmap(local, in_axes=(None, 0, 0))(state, units, keys)
        else:
            parts, seen = jax.vmap(lambda s, k: local(s, (), k), in_axes=(None, 0))(state, keys)
        state, log = server(state, jax.tree.map(lambda x: jnp.mean(x, axis=0), parts))
        return (state, lanes, key), (log, seen)

    program = jax.jit(
        jax.vmap(
            lambda carry, start: jax.lax.scan(one, carry, start + jnp.arange(chunk))[0],
            in_axes=(0, None),
        )
    )
    begin = time.perf_counter()
    keys = jax.random.split(jax.random.key(0), runs)
    lanes = jax.vmap(partial(segments.begin, config, env))(keys) if continuing else ()
    carry = program((initial_states(config, range(runs)), lanes, keys), 0)
    jax.block_until_ready(carry[0])
    compiled = time.perf_counter()
    for start in range(chunk, config.num_updates, chunk):
        carry = program(carry, start)
    jax.block_until_ready(carry[0])
    seconds = time.perf_counter() - compiled
    chunks = -(-config.num_updates // chunk) - 1
    return runs * chunks * chunk * config.steps_per_update / seconds, compiled - begin


def stable_baselines3(steps: int) -> Rate:
    """PPO without privacy at the paper's settings: 8 x 64 steps, 8 epochs, 2 minibatches."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    begin = time.perf_counter()
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=8),
        n_steps=64,
        batch_size=256,
        n_epochs=8,
        learning_rate=7.26e-4,
        gae_lambda=0.85,
        ent_coef=0.36,
        device="cpu",
        seed=0,
    )
    model.learn(512)
    ready = time.perf_counter()
    model.learn(steps)
    return steps / (time.perf_counter() - ready), ready - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    scale, repeats = (5, 3) if arguments.quick else (1, arguments.repeats)
    paper, recipe = paper_settings(500_000 // scale), sotto_settings(2_000_000 // scale)
    cases: dict[str, Callable[[], Rate]] = {
        "Stable-Baselines3 PPO, not private": lambda: stable_baselines3(30_720 // scale),
        "sotto DPPG preset paper, private": lambda: private(paper, 1),
        "sotto DPPG preset paper, not private": lambda: without_privacy(paper, 1),
        "sotto DPPG preset paper, 16 seeds, private": lambda: private(paper, 16),
        "sotto DPPG preset sotto, private": lambda: private(recipe, 1),
        "sotto DPPG preset sotto, not private": lambda: without_privacy(recipe, 1),
        "sotto DPPG preset sotto, 16 seeds, private": lambda: private(recipe, 16),
        "sotto DPPG preset sotto, 16 seeds, not private": lambda: without_privacy(recipe, 16),
    }
    rates: dict[str, list[Rate]] = {name: [] for name in cases}
    for repeat in range(repeats):
        for name, case in cases.items():
            rates[name].append(case())
            print(f"repeat {repeat + 1}/{repeats}  {name}: {rates[name][-1][0]:,.0f}", flush=True)
    peer = statistics.median(rate for rate, _ in rates["Stable-Baselines3 PPO, not private"])
    results = {
        name: {
            "env_steps_per_second": statistics.median(rate for rate, _ in found),
            "times_stable_baselines3": statistics.median(rate for rate, _ in found) / peer,
            "seconds_before_first_chunk": statistics.median(before for _, before in found),
        }
        for name, found in rates.items()
    }
    costs = {
        name: results[f"{name}, not private"]["env_steps_per_second"]
        / results[f"{name}, private"]["env_steps_per_second"]
        for name in (
            "sotto DPPG preset paper",
            "sotto DPPG preset sotto",
            "sotto DPPG preset sotto, 16 seeds",
        )
    }
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"\n{'':48}{'env-steps/s':>14}{'x SB3':>8}{'compile s':>11}")
    for name, row in results.items():
        print(
            f"{name:48}{row['env_steps_per_second']:14,.0f}"
            f"{row['times_stable_baselines3']:8.1f}{row['seconds_before_first_chunk']:11.1f}"
        )
    for name, cost in costs.items():
        print(f"cost of privacy, {name}: {cost:.2f}")
    print(f"peak memory of the process: {peak:.2f} GiB")
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"rates": results, "cost_of_privacy": costs, "peak_gib": peak}, indent=2)
        )


if __name__ == "__main__":
    main()
