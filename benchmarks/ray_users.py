"""How fast are Gymnasium users collected on a Ray cluster, compared with one process?

Both use all cores of this machine, on which a new cluster is started. The collections alternate.
From the measured times it also computes, on paper, how long collections take on more machines.
Their cores share the blocks of users. One process sends the tasks and receives the trajectories.

    python benchmarks/ray_users.py --env-id HalfCheetah-v5
"""

import json
import math
import os
import statistics
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
import tyro

from sotto import cluster
from sotto.algorithms.dppg import gymnasium_users
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.gymnasium_users import Collector
from sotto.algorithms.dppg.presets import preset
from sotto.algorithms.dppg.training import initial_states
from sotto.keys import new_key
from sotto.rl.envs.gymnasium.blocks import BLOCK, blocks_of


@dataclass
class Settings:
    """What is measured."""

    env_id: str = "HalfCheetah-v5"
    """Gymnasium environment."""
    users: int = 64
    """Users in a release."""
    steps: int = 250
    """Steps of a user."""
    repeats: int = 9
    """Number of collections of each kind."""
    nodes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    """Numbers of machines with two cores, for which times are computed."""
    json: bool = False
    """Print one JSON object."""


def config(asked: Settings) -> DPPGConfig:
    """Returns the settings of the training."""
    changes: dict[str, Any] = {
        "users_per_update": asked.users,
        "steps_per_user": asked.steps,
        "total_steps": asked.users * asked.steps * 10,
    }
    return preset("sotto", asked.env_id, target_epsilon=5.0, **changes)


def empty(answer: Any, _number: int) -> Any:
    """Returns what a block returns, at once."""
    return answer


def seconds(work: Any, repeats: int) -> float:
    """Returns the median duration, without the first two times."""
    taken = []
    for repeat in range(repeats + 2):
        began = time.perf_counter()
        jax.block_until_ready(work(repeat))
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[2:])


def measured(asked: Settings) -> dict[str, float]:
    """Returns seconds of a collection here and on a cluster, of one block, and of one message."""
    one = config(asked)
    policy = jax.tree.map(lambda x: x[0], initial_states(one, [0]).policy)
    here = Collector(one)
    people = np.arange(one.users_per_update)
    taken: dict[str, list[float]] = {"one process": [], "cluster": []}
    with cluster.on_cluster("local"):
        there = Collector(one)
        for repeat in range(asked.repeats + 2):
            for name, collector in (("one process", here), ("cluster", there)):
                began = time.perf_counter()
                jax.block_until_ready(collector.collect(policy, new_key(repeat), people))
                taken[name].append(time.perf_counter() - began)
        block, *_ = blocks_of(new_key(0), list(range(BLOCK)), BLOCK)
        answer = gymnasium_users.collect_block(one, policy, block)
        numbers = list(range(64))
        message = seconds(lambda _: cluster.ordered(partial(empty, answer), numbers), 5) / 64
    here.close()
    found = {name: statistics.median(times[2:]) for name, times in taken.items()}
    alone = seconds(lambda _: gymnasium_users.collect_block(one, policy, block), asked.repeats)
    return found | {"one block": alone, "one message": message}


def on_paper(asked: Settings, found: dict[str, float]) -> list[dict[str, float]]:
    """Returns the computed seconds of collecting as many users for each machine as were measured.

    The process that sends tasks and receives trajectories handles one after the other. It limits
    the speed where it takes longer than the machines.
    """
    rows = []
    for nodes in asked.nodes:
        blocks = nodes * math.ceil(asked.users / BLOCK)
        working = math.ceil(blocks / (2 * nodes)) * found["one block"]
        sending = blocks * found["one message"]
        total = max(working, sending)
        rows.append(
            {
                "nodes": nodes,
                "users": nodes * asked.users,
                "seconds": total,
                "steps a second": nodes * asked.users * asked.steps / total,
                "efficiency": working / total,
            }
        )
    return rows


def main(asked: Settings) -> None:
    """Measures, computes and prints."""
    found = measured(asked)
    found["efficiency"] = found["one process"] / found["cluster"]
    rows = on_paper(asked, found)
    if asked.json:
        print(json.dumps({"cores": os.cpu_count(), "seconds": found, "on paper": rows}))
        return
    for name, value in found.items():
        print(f"{name:<14}{value:>10.4f}")
    for row in rows:
        print("  ".join(f"{name} {np.format_float_positional(x, 3)}" for name, x in row.items()))


if __name__ == "__main__":
    main(tyro.cli(Settings))
