"""`sotto experts`: trains a population of experts, logs their episodes and plots their returns."""

import os
import time
from pathlib import Path

import numpy as np

from sotto.algorithms.experts import population as populations
from sotto.algorithms.experts.population import ExpertSettings
from sotto.algorithms.experts.recipes import HIDDEN
from sotto.cli.terminal.options import Json, Ray, RunPath, Workers
from sotto.cli.terminal.output import print_json, say
from sotto.cli.terminal.parsing import command
from sotto.cluster import on_cluster
from sotto.data.datasets import require_new
from sotto.extras import require
from sotto.keys import seed_range
from sotto.rl.envs.registry import is_native


@command("experts train")
def train(
    out: Path,
    env_id: str = "CartPole-v1",
    experts: int = 3_000,
    hidden: tuple[int, ...] = HIDDEN,
    seed: int = 0,
    workers: Workers = None,
    ray: Ray = None,
    json: Json = False,
) -> None:
    """Trains a population of experts by PPO, each in its own variant of an environment's physics.

    CartPole-v1, Acrobot-v1 and HIV-v0 run in JAX, and the experts train side by side. On two cores
    3,000 experts take a few minutes (HIV-v0: a quarter of an hour). LunarLander-v3 runs in Box2D,
    where 300 experts take about twenty minutes, and 1,000 more than an hour. For HIV-v0 and
    LunarLander-v3 one public base policy is trained first in the default environment. Every expert
    starts from it.

    The command first prints how long it will take. If it is stopped, the same command continues.
    OUT/experts.npz holds policies, variants, and returns in the default environment, and
    OUT/base_policy.npz the base policy, for `sotto train expert-offline --first-policy`. The
    experts are simulated, so they are not private data.

    Examples:
      sotto experts train --env-id CartPole-v1 --experts 3000 --out runs/experts/cartpole
      sotto experts train --env-id LunarLander-v3 --experts 300 --out runs/experts/lander

    Args:
        out: Folder of the population.
        env_id: CartPole-v1, Acrobot-v1, HIV-v0 or LunarLander-v3.
        experts: Number of experts.
        hidden: Sizes of the hidden layers of every policy.
        seed: Seed of everything about the experts. They also depend on the processor and on the
            number of its cores, since these round differently.
    """
    seed_range(seed)
    if workers is not None and workers < 1:
        raise ValueError("--workers must be at least 1")
    require(*([] if is_native(env_id) else ["Box2D"]))
    began = time.monotonic()
    with on_cluster(ray):
        population = populations.train(
            out,
            ExpertSettings(env_id=env_id, experts=experts, hidden=hidden, seed=seed),
            workers or os.cpu_count() or 1,
            say,
        )
    means = population.returns.mean(axis=1)
    if json:
        print_json(
            {
                "path": str(out / "experts.npz"),
                "env_id": env_id,
                "experts": experts,
                "hidden": hidden,
                "seed": seed,
                "seconds": round(time.monotonic() - began, 1),
                "return_mean": float(means.mean()),
                "return_std": float(means.std()),
            }
        )
    else:
        print(
            f"{out / 'experts.npz'}: greedy return in the default environment "
            f"{means.mean():.4g} ± {means.std():.4g} over experts"
        )


@command("experts collect")
def collect(
    path: RunPath,
    /,
    out: Path,
    floor: float = 0.01,
    trajectories: int = 20,
    seed: int = 1,
    json: Json = False,
) -> None:
    """Writes episodes of every expert in the default environment as a Minari dataset.

    Every episode carries the id of its expert. An expert takes its best action with probability
    1 - (A - 1) FLOOR and each other action with probability FLOOR, where A is the number of
    actions. Episodes have at most 200 steps (HIV-v0: 50, LunarLander-v3: 400). One that reaches
    this limit is marked as truncated. Writing 60,000 episodes takes about a minute.

    A release of stable prefixes never reads this dataset, because it makes its own rollouts.

    Examples:
      sotto experts collect runs/experts/cartpole --floor 0.01 --trajectories 20 \\
        --out runs/experts/cartpole-v0

    Args:
        path: Folder of `sotto experts train`.
        out: Folder of the dataset; it must not exist.
        floor: Least probability of every action.
        trajectories: Number of episodes of each expert.
        seed: Seed of the episodes.
    """
    seed_range(seed)
    if trajectories < 1:
        raise ValueError(f"--trajectories must be at least 1, got {trajectories}")
    require_new(out)
    require("minari", "h5py")
    log = populations.write_log(path, out, floor=floor, episodes=trajectories, seed=seed, say=say)
    answer = {
        "path": str(out),
        "experts": log.experts,
        "episodes": int(log.lasts.sum()),
        "steps": int(log.steps.sum()),
        "return_mean": float(log.transitions.rewards.sum(dtype=np.float64) / log.lasts.sum()),
    }
    if json:
        print_json(answer)
    else:
        print(
            f"{out}: {answer['episodes']:,} episodes, {answer['steps']:,} steps, mean return "
            f"{answer['return_mean']:.4g}"
        )


@command("experts histogram")
def histogram(path: RunPath, /, out: Path | None = None, json: Json = False) -> None:
    """Plots the experts' returns in the default environment (Sharma et al. 2024, figure 2).

    The return of an expert is the mean of 20 greedy episodes. OUT receives histogram.png,
    histogram.parquet and histogram.json.

    Examples:
      sotto experts histogram runs/experts/cartpole

    Args:
        path: Folder of `sotto experts train`.
        out: Folder for figure and data; the folder of the experts by default.
    """
    require("pyarrow")
    from sotto.experiments.sharma2024.populations import make_histogram

    population = populations.load(path)
    folder = out or path
    folder.mkdir(parents=True, exist_ok=True)
    summary = make_histogram(folder / "histogram", population)
    if json:
        print_json(summary)
    else:
        print(
            f"{summary['experts']:,} experts of {summary['env_id']}: return "
            f"{summary['mean']:.4g} ± {summary['std']:.4g}, median {summary['median']:.4g}; "
            f"{folder / 'histogram.png'}"
        )
