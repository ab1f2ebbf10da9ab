"""Tables and the figure of the bandit on real people's ratings.

For each data set and epsilon there is one training through the door, with its ledger and
certificate. Replays with simulated noise then compare the arms over orders of arrival, and say how
many people would suffice: people are drawn with replacement from those that are there, as many
times over as `TIMES` says.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sotto.algorithms.bandit.config import BanditConfig, filled
from sotto.algorithms.bandit.person import Rated, rated
from sotto.experiments.engine import Say
from sotto.experiments.figure_files import write_data
from sotto.experiments.plots import COLOURS, GREY, headline, legend_below, level, panels, title
from sotto.experiments.public_tables import PublicTable
from sotto.experiments.recommenders.replay import NOISY, SILENT, Arm, Replay, replay
from sotto.experiments.recommenders.sources import RATINGS
from sotto.runs.api import TrainedRun, train, verify
from sotto.runs.metrics import read
from sotto.trees import at

EPSILONS = (0.3, 1.0, 3.0)
TIMES = (1, 2, 4, 8)
_FIRST_SEED = 200
"""First seed of the replays. Settings were chosen with seeds 0 to 59."""


def make(out: Path, seeds: int, say: Say) -> dict[str, Any]:
    """Trains and replays on all data sets, writes the figure and its data, returns a summary.

    Args:
        out: folder of the results. Trainings that it holds are not made again.
        seeds: number of orders of arrival.
        say: shows progress.
    """
    out.mkdir(parents=True, exist_ok=True)
    cells = [_cell(ratings, out, seeds, say) for ratings in RATINGS]
    summary = {"seeds": seeds, "cells": cells}
    rows = [{"data": cell["data"]} | row for cell in cells for row in cell["arms"]]
    write_data(out / "bandits", rows, summary)
    draw(out / "bandits.png", cells)
    return summary


def _cell(ratings: PublicTable, out: Path, seeds: int, say: Say) -> dict[str, Any]:
    """Returns everything about one data set."""
    say(f"{ratings.title}: import")
    log = out / "logs" / ratings.name
    records = ratings.imported(log, say)
    config = filled(BanditConfig(on=str(log)), records)
    people = rated(config, records)
    arms: list[dict[str, Any]] = []

    def measured(arm: Arm, epsilon: float | None) -> None:
        say(f"{ratings.title}: {arm}" + ("" if epsilon is None else f", epsilon {epsilon:g}"))
        asked = config if epsilon is None else replace(config, target_epsilon=epsilon)
        found = _replays(asked, people, arm, seeds)
        exact = arms[0]["gain"] if arms else None
        arms.append({"arm": arm, "epsilon": epsilon} | _summed(found, exact))

    for arm in SILENT:
        measured(arm, None)
    for epsilon in EPSILONS:
        for noisy in NOISY:
            measured(noisy, epsilon)
    declaration = ratings.declaration
    return {
        "data": ratings.name,
        "title": ratings.title,
        "unit": ratings.unit,
        "delta": config.delta,
        "people": config.people,
        "features": config.features,
        "assumes": ratings.assumes,
        "source": declaration.source,
        "licence": declaration.licence,
        "already_public": declaration.already_public,
        "arms": arms,
        "trained": [_trained(log, epsilon, out, ratings, say) for epsilon in EPSILONS],
        "more_people": _more(config, people, max(1, seeds // 3), ratings, say),
    }


def _replays(config: BanditConfig, people: Rated, arm: Arm, seeds: int) -> list[Replay]:
    return [replay(config, people, arm, _FIRST_SEED + seed) for seed in range(seeds)]


def _summed(found: list[Replay], exact: float | None) -> dict[str, Any]:
    """Returns means over replays, and the gain as a share of that without privacy."""
    gains = np.array([one.value - one.random for one in found])
    mean = float(gains.mean())
    return {
        "value": float(np.mean([one.value for one in found])),
        "random": float(np.mean([one.random for one in found])),
        "gain": mean,
        "gain_error": float(gains.std(ddof=1) / np.sqrt(len(gains))) if len(gains) > 1 else 0.0,
        "share_of_gain": mean / (mean if exact is None else exact),
    }


def _trained(
    log: Path, epsilon: float, out: Path, ratings: PublicTable, say: Say
) -> dict[str, Any]:
    """Returns the certified training at one epsilon, which is made if `out` does not hold it."""
    place = out / ratings.name / f"epsilon-{epsilon:g}"
    say(f"{ratings.title}: training through the door, epsilon {epsilon:g}")
    run = (
        TrainedRun(place, finished=True)
        if (place / "certificate.json").exists()
        else train(BanditConfig(on=str(log), target_epsilon=epsilon), out=place)
    )
    certificate = run.certificate
    last = read(place / "metrics.jsonl")[-1].evaluation
    return {
        "epsilon": certificate.epsilon,
        "status": certificate.status,
        "verified": {one.status for one in verify(place).values()} == {"verified"},
        "gain": last["gain"],
        "gain_noise": last["gain_noise"],
    }


def _more(
    config: BanditConfig, people: Rated, seeds: int, ratings: PublicTable, say: Say
) -> list[dict[str, Any]]:
    """Returns shares of the gain at epsilon 1 for several times as many people."""
    found = []
    for times in TIMES:
        say(f"{ratings.title}: {times} times as many people")
        count = len(people.present) * times
        larger = replace(config, people=count, delta=0.1 / count, target_epsilon=1.0)
        chosen = np.random.default_rng(times).integers(0, len(people.present), count)
        drawn = at(people, chosen)
        exact = _summed(_replays(larger, drawn, "without privacy", seeds), None)
        private = _summed(_replays(larger, drawn, "private", seeds), exact["gain"])
        found.append({"people": count, "exact_gain": exact["gain"]} | private)
    return found


def draw(path: Path, cells: list[dict[str, Any]]) -> None:
    """Draws the gain over random choice against epsilon, for each data set and arm."""
    with panels(path, (5.4, 4.2), columns=len(cells)) as axes:
        for plot, cell in zip(axes, cells, strict=True):
            for color, arm in zip(COLOURS, NOISY, strict=False):
                own = [one for one in cell["arms"] if one["arm"] == arm]
                plot.errorbar(
                    range(len(own)),
                    [one["gain"] for one in own],
                    [1.96 * one["gain_error"] for one in own],
                    color=color,
                    marker="o",
                    label=arm,
                )
            silent = {one["arm"]: one["gain"] for one in cell["arms"] if one["epsilon"] is None}
            for name, gain in silent.items():
                close = any(gain < other < 1.05 * gain for other in silent.values())
                level(plot, gain, name, below=close)
            plot.set_xticks(range(len(EPSILONS)), [f"{one:g}" for one in EPSILONS])
            plot.set_xlim(-0.2, len(EPSILONS) - 0.3)  # names of levels are right of the last bar
            plot.set_xlabel("epsilon")
            plot.set_ylabel(f"gain ({cell['unit']})")
            title(plot, cell["title"], "gain over random choice; dotted: arms without noise")
            legend_below(plot, labelcolor=GREY, ncols=5)
        headline(axes[0], "Private bandits on real people's ratings (public data)")
