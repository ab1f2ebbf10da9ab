"""Speed of collecting users from MuJoCo against Gymnasium's own vectorisation, on one machine.

    python benchmarks/mujoco_rollout.py            both environments, a few minutes
    python benchmarks/mujoco_rollout.py --quick    fewer and shorter repeats
    python benchmarks/mujoco_rollout.py --json results.json

Ours steps as many environments with a real policy in JAX, deciding for all of them at once and
keeping whole trajectories; Gymnasium's AsyncVectorEnv, one process for each environment, executes
random actions drawn beforehand and keeps nothing. Every figure is the median of several
interleaved repeats; what counts are the ratios.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import gymnasium as gym
import jax
import numpy as np
from jaxtyping import Array

from sotto.rl.envs.gymnasium.bridge import GymnasiumUsers, processes_for
from sotto.rl.networks import Policy


@jax.jit
def act(policy: Policy, observations: Array, key: Array) -> Array:
    return policy(observations).sample(policy.noise(key, observations.shape[:1]))


def ours(
    env_id: str, count: int, steps: int, processes: int, hidden: tuple[int, ...]
) -> Callable[[], float]:
    users = GymnasiumUsers(env_id, count, processes)
    env = users.described()
    policy = Policy(env.observation_size, env.action, hidden, jax.random.key(0))
    users.begin(range(count))

    def rate() -> float:
        begin = time.perf_counter()
        users.advance(lambda seen, key: act(policy, seen, key), jax.random.key(1), steps)
        return count * steps / (time.perf_counter() - begin)

    rate()  # compiles
    return rate


def gymnasium_async(env_id: str, count: int, steps: int) -> Callable[[], float]:
    envs = gym.make_vec(env_id, count, vectorization_mode="async")
    envs.reset(seed=0)
    actions = [envs.action_space.sample() for _ in range(steps)]

    def rate() -> float:
        begin = time.perf_counter()
        for action in actions:
            envs.step(action)
        return count * steps / (time.perf_counter() - begin)

    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--count", type=int, default=64, help="environments")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    steps, repeats = (64, 3) if arguments.quick else (256, arguments.repeats)
    count = arguments.count
    results = {}
    for env_id in ("HalfCheetah-v5", "Hopper-v5"):
        cases = {
            "Gymnasium AsyncVectorEnv, random actions": gymnasium_async(env_id, count, steps),
            "sotto, 64x64 policy": ours(env_id, count, steps, processes_for(count), (64, 64)),
            "sotto, linear policy": ours(env_id, count, steps, processes_for(count), ()),
            "sotto, 64x64 policy, one process": ours(env_id, count, steps, 1, (64, 64)),
        }
        rates: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(repeats):
            for name, case in cases.items():
                rates[name].append(case())
        peer = statistics.median(rates["Gymnasium AsyncVectorEnv, random actions"])
        print(f"\n{env_id}, {count} environments{'env-steps/s':>20}{'x Gymnasium':>14}")
        for name, found in rates.items():
            print(f"{name:44}{np.median(found):12,.0f}{np.median(found) / peer:14.2f}")
        results[env_id] = rates
    if arguments.json:
        arguments.json.write_text(json.dumps({"environments": count, "rates": results}, indent=2))


if __name__ == "__main__":
    main()
