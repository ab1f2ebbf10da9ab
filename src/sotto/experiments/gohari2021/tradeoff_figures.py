"""Speed-up against epsilon, with certificates about training data: trains, draws, says."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sotto.algorithms.kickstarting.teachers import Ensemble
from sotto.experiments import curve_files, learning_curves
from sotto.experiments.gohari2021 import tradeoff
from sotto.experiments.gohari2021.kept_trainings import Job, together, train_all
from sotto.experiments.gohari2021.tradeoff import (
    DELTA,
    EXACT,
    MECHANISMS,
    PLAIN,
    SHARD,
    SHARD_SEED,
    Mechanism,
    NativeName,
    Point,
)
from sotto.experiments.gohari2021.training import evaluated
from sotto.experiments.kept_jobs import Say, write_json
from sotto.experiments.learning_curves import BAND, REACHED, Curve
from sotto.runs.figures import BLUE, GREEN, GREY, ORANGE, figure

_TOGETHER = 50  # small teachers trained side by side
_EVALUATIONS = 8  # of the mean policy, each of many episodes
_DRAWN: dict[Mechanism, tuple[str, str]] = {
    "gaussian-policy": ("Gaussian", BLUE),
    "dirichlet": ("Dirichlet", ORANGE),
    "truncated-dirichlet": ("truncated Dirichlet", GREEN),
}


@dataclass(frozen=True)
class Tradeoff:
    """Which environment, how long, how many small teachers, and where results are kept."""

    env_id: NativeName
    scale: float
    seeds: tuple[int, ...]
    teachers: int
    epsilons: tuple[float, ...]
    out: Path

    def shards(self) -> list[Job]:
        """The small teachers, some at a time."""
        config = tradeoff.shard_config(self.env_id, self.scale)
        first = range(SHARD_SEED, SHARD_SEED + self.teachers, _TOGETHER)
        last = SHARD_SEED + self.teachers
        blocks = [tuple(range(seed, min(seed + _TOGETHER, last))) for seed in first]
        return [Job(self._folder, SHARD, config, block) for block in blocks]

    def plain(self) -> Job:
        """The student alone."""
        config = tradeoff.plain_config(self.env_id, self.scale)
        return Job(self._folder, PLAIN, config, self.seeds)

    def student(self, point: Point | None) -> Job:
        """A student of the mean; with exact answers where there is no point."""
        config = tradeoff.student_config(self.env_id, self.scale, point)
        arm = EXACT if point is None else point.arm
        return Job(self._folder, arm, config, self.seeds, tuple(self.shards()), shards=True)

    @property
    def _folder(self) -> Path:
        return self.out / "arms"


def make_tradeoff(what: Tradeoff, workers: int, say: Say) -> dict[str, Any]:
    """Trains what is missing, then writes figure, data and summary; returns the summary.

    Args:
        what: is traded off, and where it is kept.
        workers: processes.
        say: told in words what happens.
    """
    points = [point for point in tradeoff.points(what.epsilons) if _possible(what, point, say)]
    jobs = {point: what.student(point) for point in points}
    plain, exact, shards = what.plain(), what.student(None), what.shards()
    train_all([*shards, plain, exact, *jobs.values()], workers, say)
    level = _levels(what, plain.curve())
    rows = [_row(point, job.curve(), plain.curve(), level) for point, job in jobs.items()]
    name = f"tradeoff-{what.env_id}"
    without = _measured(exact.curve(), plain.curve(), level)
    _draw(what.out / f"{name}.png", what, rows, without)
    curves = [plain.curve(), exact.curve(), *(job.curve() for job in jobs.values())]
    curve_files.write(what.out / f"{name}.parquet", curves)
    summary = {
        "name": name,
        "env_id": what.env_id,
        "seeds": len(what.seeds),
        "scale": what.scale,
        "teachers": what.teachers,
        "delta": DELTA,
        "band_percentiles": list(BAND),
        "reached_share": REACHED,
        "reached_at_return": level,
        "plain": _measured(plain.curve(), plain.curve(), level),
        "exact": without,
        "points": rows,
    }
    write_json(what.out / f"{name}.json", summary)
    return summary


def _possible(what: Tradeoff, point: Point, say: Say) -> bool:
    """Whether some noise of the mechanism brings all answers to the epsilon; says so if none."""
    least = tradeoff.least_epsilon(what.env_id, what.scale, point.mechanism, what.teachers)
    if least <= point.epsilon:
        return True
    say(
        f"left out: no {point.mechanism} noise brings the answers below epsilon {least:.3g}, "
        f"so {point.epsilon:g} is out of reach; more --teachers would help"
    )
    return False


def _levels(what: Tradeoff, plain: Curve) -> dict[str, float]:
    """The return that counts as the teacher's, by kind: of the mean policy, without noise."""
    policies = together([job.policies() for job in what.shards()])
    mean = jax.tree.map(lambda x: x[None], Ensemble(policies).policy)
    returns = np.mean(
        [evaluated(what.env_id, mean, episode) for episode in range(_EVALUATIONS)], axis=0
    )
    starts = [float(np.median(plain.values(kind)[:, 0])) for kind in plain.returns]
    return {
        kind: start + REACHED * (float(final[0]) - start)
        for kind, start, final in zip(plain.returns, starts, returns, strict=True)
    }


def _row(point: Point, curve: Curve, plain: Curve, level: dict[str, float]) -> dict[str, Any]:
    assert curve.cost is not None
    return {
        "mechanism": point.mechanism,
        "target_epsilon": point.epsilon,
        "epsilon": curve.cost.epsilon,
        "answered": curve.cost.answered,
        **_measured(curve, plain, level),
    }


def _measured(curve: Curve, plain: Curve, level: dict[str, float]) -> dict[str, Any]:
    """Steps, speed-up and final return, by kind of return."""
    return {
        kind: {
            "steps_to_reach": learning_curves.median_steps(curve, level[kind], kind),
            "speed_up": learning_curves.speed_up(plain, curve, level[kind], kind),
            "final_median": float(np.median(curve.final(kind))),
            "final_band": np.percentile(curve.final(kind), BAND).tolist(),
        }
        for kind in curve.returns
    }


def _draw(
    path: Path, what: Tradeoff, rows: Sequence[dict[str, Any]], without: dict[str, Any]
) -> None:
    with figure(path, width=7.6, height=4.8) as axes:
        for mechanism in MECHANISMS:
            label, colour = _DRAWN[mechanism]
            chosen = [row for row in rows if row["mechanism"] == mechanism]
            for kind, style in (("greedy", "-"), ("sampled", ":")):
                axes.plot(
                    [row["target_epsilon"] for row in chosen],
                    [row[kind]["speed_up"] for row in chosen],
                    color=colour,
                    linestyle=style,
                    marker="o",
                    markersize=4,
                    label=f"{label}, {kind} policy",
                )
        best = without["greedy"]["speed_up"]
        if math.isfinite(best):
            axes.axhline(best, color=GREY, linestyle="--", linewidth=1.5, label="exact, greedy")
        axes.axhline(1, color=GREY, linewidth=1, label="no faster than alone")
        axes.set_xscale("log")
        axes.set_xticks(what.epsilons, [f"{epsilon:g}" for epsilon in what.epsilons])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_title(f"What a training-set certificate costs: {what.env_id}\n")
        said = f"mean of {what.teachers} teachers, delta {DELTA:g}, {len(what.seeds)} students"
        axes.text(0, 1.02, said, transform=axes.transAxes, fontsize=9, color=GREY)
        axes.set_xlabel("certified epsilon of all answers")
        axes.set_ylabel("times faster than alone")
        axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.13), fontsize=9, ncols=3)
