"""`sotto experts`: train a population of experts, log it, and look at it."""

import json as json_module
import os
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import tyro

from sotto.algorithms.experts import population as populations
from sotto.algorithms.experts.population import ExpertSettings, Say
from sotto.algorithms.experts.recipes import HIDDEN
from sotto.cli.parsing import parse, print_json
from sotto.data import minari_files
from sotto.extras import require
from sotto.keys import seed_range
from sotto.rl.envs.registry import is_native

ExpertsPath = tyro.conf.Positional[Path]


def train(args: list[str]) -> int:
    """Runs `sotto experts train`."""

    def run(
        out: Path,
        env_id: str = "CartPole-v1",
        experts: int = 3_000,
        hidden: tuple[int, ...] = HIDDEN,
        seed: int = 0,
        workers: int | None = None,
        ray: bool = False,
        json: bool = False,
    ) -> None:
        """Trains experts by PPO, each in its own variant of an environment's physics.

        CartPole-v1, Acrobot-v1 and HIV-v0 have variants in JAX, trained side by side: 3,000 take
        minutes on two cores (HIV-v0: a quarter of an hour). LunarLander-v3 plays in Box2D; 300 take
        about a quarter of an hour. In these two, one public base policy is trained in the default
        environment, and every expert goes on from it in its own variant (HIV-v0: 64,000 steps,
        then 8,000 to 16,000; LunarLander-v3: 102,400, then 40,960 to 163,840).

        It says first how long it takes. A stopped command goes on where it was. OUT/experts.npz
        holds the population: policies, variants, and returns in the default environment. Experts
        are simulated; nothing about them is private until you say so.

        Examples:
          sotto experts train --env-id CartPole-v1 --experts 3000 --out runs/experts/cartpole
          sotto experts train --env-id LunarLander-v3 --experts 300 --out runs/experts/lander

        Args:
            out: folder of the population.
            env_id: CartPole-v1, Acrobot-v1, HIV-v0 or LunarLander-v3.
            experts: how many.
            hidden: layers of every policy.
            seed: everything about the experts is a function of it.
            workers: processes; as many as there are cores unless given.
            ray: run chunks on the Ray cluster of RAY_ADDRESS, or on this machine's cores by Ray.
            json: print one JSON object at the end, and progress on stderr.
        """
        seed_range(seed)
        if workers is not None and workers < 1:
            raise ValueError("--workers must be at least 1")
        require(*(["ray"] if ray else []), *([] if is_native(env_id) else ["Box2D"]))
        began = time.monotonic()
        population = populations.train(
            out,
            ExpertSettings(env_id=env_id, experts=experts, hidden=hidden, seed=seed),
            workers or os.cpu_count() or 1,
            _say(json),
            on_ray=ray,
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

    parse(run, args, "experts train")
    return 0


def collect(args: list[str]) -> int:
    """Runs `sotto experts collect`."""

    def run(
        path: ExpertsPath,
        /,
        out: Path,
        floor: float = 0.01,
        trajectories: int = 20,
        seed: int = 1,
        json: bool = False,
    ) -> None:
        """Lets every expert play in the default environment; writes a Minari dataset with its id.

        An expert takes its best action with probability 1 - (A - 1) FLOOR and every other one with
        FLOOR. Episodes have at most 200 steps (HIV-v0 50, LunarLander-v3 400); one that is cut off
        is truncated, not terminated. A release of stable prefixes never reads this dataset: it
        makes rollouts of its own. Writing 60,000 episodes takes about a minute.

        Examples:
          sotto experts collect runs/experts/cartpole --floor 0.01 --trajectories 20 \
            --out runs/experts/cartpole-v0

        Args:
            path: folder of `sotto experts train`.
            out: folder of the dataset, which must not exist.
            floor: least probability of every action.
            trajectories: episodes of each expert.
            seed: of the episodes; another seed makes other ones.
            json: print one JSON object at the end, and progress on stderr.
        """
        seed_range(seed)
        if trajectories < 1:
            raise ValueError(f"--trajectories must be at least 1, got {trajectories}")
        if out.exists():
            raise ValueError(f"{out} exists; remove it, or choose another name for the dataset.")
        require("minari", "h5py")
        say = _say(json)
        population = populations.load(path)
        env_id = population.settings.env_id
        log = populations.collect(population, floor, trajectories, seed, say)
        say("writing the dataset")
        minari_files.save(
            log,
            out,
            env_id=env_id,
            actions=populations.actions(env_id),
            floor=floor,
            policies=f"{log.experts} experts of {path.name}, floored",
        )
        answer = {
            "path": str(out),
            "experts": log.experts,
            "episodes": int(np.count_nonzero(log.lengths)),
            "steps": int(log.lengths.sum()),
            "return_mean": float(log.returns.mean()),
        }
        if json:
            print_json(answer)
        else:
            print(
                f"{out}: {answer['episodes']:,} episodes, {answer['steps']:,} steps, mean return "
                f"{answer['return_mean']:.4g}"
            )

    parse(run, args, "experts collect")
    return 0


def histogram(args: list[str]) -> int:
    """Runs `sotto experts histogram`."""

    def run(path: ExpertsPath, /, out: Path | None = None, json: bool = False) -> None:
        """Figure 2 of Sharma et al. 2024: the experts' returns in the default environment.

        Each expert is judged by the mean of 20 greedy episodes. OUT gets histogram.png,
        histogram.parquet and histogram.json.

        Examples:
          sotto experts histogram runs/experts/cartpole

        Args:
            path: folder of `sotto experts train`.
            out: folder for figure and data; the experts' own unless given.
            json: print the summary as one JSON object.
        """
        from sotto.experiments.sharma2024 import populations as expert_figures

        population = populations.load(path)
        folder = out or path
        folder.mkdir(parents=True, exist_ok=True)
        summary = expert_figures.summary(population)
        expert_figures.histogram(folder / "histogram.png", population)
        expert_figures.write_table(folder / "histogram.parquet", population)
        (folder / "histogram.json").write_text(json_module.dumps(summary, indent=1) + "\n")
        if json:
            print_json(summary)
        else:
            print(
                f"{summary['experts']:,} experts of {summary['env_id']}: return "
                f"{summary['mean']:.4g} ± {summary['std']:.4g}, median {summary['median']:.4g}; "
                f"{folder / 'histogram.png'}"
            )

    parse(run, args, "experts histogram")
    return 0


def _say(json: bool) -> Say:
    """Prints progress, to where the answer does not go."""
    return partial(print, file=sys.stderr if json else sys.stdout, flush=True)
