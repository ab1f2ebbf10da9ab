"""Speed-up of a student against the epsilon of a certificate about the teacher's training data.

Gohari et al. protect observations and not the people from whom a teacher learned. Here the teacher
is the mean of many small teachers that are trained on different people, so one person changes only
one of them. The answers then have a certificate about training data, at any epsilon, with
Dirichlet, truncated Dirichlet or Gaussian noise.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sotto.algorithms.kickstarting.config import KickstartConfig
from sotto.algorithms.kickstarting.promises import CONCENTRATIONS, STDDEVS, promise
from sotto.algorithms.kickstarting.teachers import Ensemble
from sotto.experiments import plots
from sotto.experiments.engine import Arm, Result, ResultFolder, Say, run
from sotto.experiments.figure_files import write_data
from sotto.experiments.gohari2021 import figures, training
from sotto.experiments.gohari2021.arms import DELTA, FigureLearner, settings
from sotto.experiments.statistics import (
    BAND,
    REACHED,
    final,
    median_steps,
    speed_up,
    without_gaps,
)
from sotto.keys import new_key
from sotto.rl.envs.base import Discrete
from sotto.rl.envs.registry import make
from sotto.rl.networks import Policy
from sotto.trees import repeated, single

Mechanism = Literal["dirichlet", "truncated-dirichlet", "gaussian-policy"]
NativeName = Literal["CartPole-v1", "Acrobot-v1"]
_LABELS: dict[Mechanism, str] = {
    "gaussian-policy": "Gaussian",
    "dirichlet": "Dirichlet",
    "truncated-dirichlet": "truncated Dirichlet",
}
MECHANISMS = tuple(_LABELS)
SHARD_SEED = 1_000_000
"""Seed of the first small teacher; students have seeds 0, 1, 2, ..., so they meet other people."""

_PER_UPDATE, _ASKING_UPDATES = 128, 4
_FLOOR_SHARE = 0.8
_THRESHOLD = 0.03
_TOGETHER = 50  # small teachers that one arm trains at once
_EVALUATIONS = 8  # evaluations of the mean policy, each with many episodes


@dataclass(frozen=True)
class Point:
    """A mechanism and the epsilon to which it is calibrated."""

    mechanism: Mechanism
    epsilon: float

    @property
    def learner(self) -> FigureLearner:
        """Learner that asks for such answers."""
        return FigureLearner(
            f"{self.mechanism}-epsilon-{self.epsilon:g}", f"epsilon {self.epsilon:g}"
        )


SHARD = FigureLearner("shard", "small teachers", "teacher")
PLAIN = FigureLearner("plain", "student alone", "student")
EXACT = FigureLearner("exact-shards", "exact answers of the mean")


def points(epsilons: tuple[float, ...]) -> list[Point]:
    """Returns all points, mechanism by mechanism."""
    return [Point(mechanism, epsilon) for mechanism in MECHANISMS for epsilon in epsilons]


def student_config(env_id: NativeName, scale: float, point: Point | None) -> KickstartConfig:
    """Returns settings of a student of the mean policy, which asks few questions, and early.

    Each of the few answers has little noise. The floor is large for Dirichlet noise, because it
    bounds the cost of an answer; small for truncated Dirichlet noise, whose threshold bounds it;
    and zero for Gaussian noise. All of this is chosen from public parameters alone.

    Args:
        env_id: the environment.
        scale: factor of the number of environment steps.
        point: mechanism and epsilon; None for exact answers, which protect nobody.
    """
    chosen: dict[str, Any] = asdict(settings(env_id, PLAIN, scale)) | {
        "teacher": "mean of small teachers",
        "queries_per_update": _PER_UPDATE,
        "kickstart_weight": 5.0,
        "radius_factor": 0.0,
    }
    if point is None:
        return KickstartConfig(**chosen, teacher_mechanism="exact", stop_after=_ASKING_UPDATES)
    action = make(env_id).action
    assert isinstance(action, Discrete)
    floors: dict[Mechanism, float] = {
        "gaussian-policy": 0.0,
        "dirichlet": _FLOOR_SHARE / action.n,
        "truncated-dirichlet": 0.05,
    }
    return KickstartConfig(
        **chosen,
        teacher_mechanism=point.mechanism,
        protect="training-shards",
        floor=floors[point.mechanism],
        threshold=_THRESHOLD,
        queries=_PER_UPDATE * _ASKING_UPDATES,
        target_epsilon=point.epsilon,
        delta=DELTA,
    )


@functools.cache
def least_epsilon(env_id: NativeName, scale: float, mechanism: Mechanism, teachers: int) -> float:
    """Returns epsilon of all answers with the most noise, which is positive for Dirichlet noise."""
    config = student_config(env_id, scale, Point(mechanism, 1.0))  # the noise is given below
    noisiest: dict[str, Any] = {"target_epsilon": None}
    if mechanism == "gaussian-policy":
        noisiest["noise_stddev"] = STDDEVS[1]
    else:
        noisiest["concentration"] = CONCENTRATIONS[0]
    env = make(env_id)
    policy = Policy(env.observation_size, env.action, (1,), new_key(0))
    anybody = Ensemble(repeated(policy, teachers))
    statement, _ = promise(replace(config, **noisiest), anybody)
    return statement.planned_epsilon(DELTA)


# --- the figure ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tradeoff:
    """Environment, length, seeds, small teachers and epsilons of a trade-off, and its folder."""

    env_id: NativeName
    scale: float
    seeds: tuple[int, ...]
    teachers: int
    epsilons: tuple[float, ...]
    out: Path

    def shards(self) -> tuple[Arm, ...]:
        """Returns arms of the small teachers, up to 50 in each."""
        config = settings(self.env_id, SHARD, self.scale)
        last = SHARD_SEED + self.teachers
        blocks = [
            tuple(range(first, min(first + _TOGETHER, last)))
            for first in range(SHARD_SEED, last, _TOGETHER)
        ]
        return tuple(training.arm(SHARD, config, block) for block in blocks)

    def plain(self) -> Arm:
        """Returns the arm of the student alone."""
        return training.arm(PLAIN, settings(self.env_id, PLAIN, self.scale), self.seeds)

    def student(self, point: Point | None) -> Arm:
        """Returns the arm of a student of the mean; without a point, its answers are exact."""
        config = student_config(self.env_id, self.scale, point)
        learner = EXACT if point is None else point.learner
        return training.arm(learner, config, self.seeds, self.shards(), shards=True)


def make_tradeoff(what: Tradeoff, workers: int, say: Say) -> dict[str, Any]:
    """Trains the missing arms, writes figure, data and summary, and returns the summary.

    Args:
        what: settings of the trade-off.
        workers: number of processes.
        say: shows the progress.
    """
    chosen = [point for point in points(what.epsilons) if _possible(what, point, say)]
    store = ResultFolder(what.out / "arms")
    arms = [what.plain(), what.student(None), *(what.student(point) for point in chosen)]
    plain, exact, *students = run(arms, store, workers, say)
    level = _levels(what, store, plain)
    rows = [
        {
            "mechanism": point.mechanism,
            "target_epsilon": point.epsilon,
            "epsilon": student.more["cost"]["epsilon"],
            "answered": student.more["cost"]["answered"],
            **_measured(student, plain, level),
        }
        for point, student in zip(chosen, students, strict=True)
    ]
    name = f"tradeoff-{what.env_id}{figures.shortened(what.env_id, what.scale)}"
    without = _measured(exact, plain, level)
    _draw(what.out / f"{name}.png", what, rows, without)
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
        "plain": _measured(plain, plain, level),
        "exact": without,
        "points": rows,
    }
    write_data(what.out / name, figures.points([plain, exact, *students]), summary)
    return summary


def _possible(what: Tradeoff, point: Point, say: Say) -> bool:
    """Returns whether the mechanism can reach the epsilon for all answers; if not, says so."""
    least = least_epsilon(what.env_id, what.scale, point.mechanism, what.teachers)
    if least <= point.epsilon:
        return True
    say(
        f"left out: {point.mechanism} noise cannot bring the answers below epsilon {least:.3g}, "
        f"so epsilon {point.epsilon:g} is out of reach; give more --teachers"
    )
    return False


def _levels(what: Tradeoff, store: ResultFolder, plain: Result) -> dict[str, float]:
    """Computes the returns to reach, by kind, from those of the mean policy without noise."""
    policies = training.policies_of(what.shards(), store.folder)
    mean = single(Ensemble(policies).policy)
    returns = np.mean(
        [training.evaluated(what.env_id, mean, episode) for episode in range(_EVALUATIONS)], axis=0
    )
    kinds = figures.kinds(plain)
    starts = [float(np.median(without_gaps(plain, kind)[:, 0])) for kind in kinds]
    return {
        kind: start + REACHED * (float(ended[0]) - start)
        for kind, start, ended in zip(kinds, starts, returns, strict=True)
    }


def _measured(result: Result, plain: Result, level: dict[str, float]) -> dict[str, Any]:
    """Returns steps, speed-up and final return, by kind of return."""
    return {
        kind: {
            "steps_to_reach": median_steps(result, level[kind], kind),
            "speed_up": speed_up(plain, result, level[kind], kind),
            "final_median": float(np.median(final(result, kind))),
            "final_band": np.percentile(final(result, kind), BAND).tolist(),
        }
        for kind in figures.kinds(result)
    }


def _draw(
    path: Path, what: Tradeoff, rows: Sequence[dict[str, Any]], without: dict[str, Any]
) -> None:
    with plots.panels(path, (7.6, 4.8)) as (axes,):
        for (mechanism, label), colour in zip(_LABELS.items(), plots.COLOURS, strict=False):
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
            line: dict[str, Any] = {"color": plots.GREY, "linestyle": "--", "linewidth": 1.5}
            axes.axhline(best, label="exact, greedy", **line)
        axes.axhline(1, color=plots.GREY, linewidth=1, label="as fast as alone")
        plots.log_ticks(axes, what.epsilons)
        axes.set_ylim(bottom=0)
        said = f"mean of {what.teachers} teachers, delta {DELTA:g}, {len(what.seeds)} students"
        plots.title(axes, f"Cost of a certificate about training data: {what.env_id}", said)
        axes.set_xlabel("certified epsilon of all answers")
        axes.set_ylabel("times faster than alone")
        plots.legend_below(axes, 0.13, left=True, fontsize=9, ncols=2)
