"""Figure 2 of Gohari et al. 2021 and its supplement: arms, numbers and pictures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes

from sotto.experiments import plots
from sotto.experiments.engine import Arm, Result, ResultFolder, Say, joined, run
from sotto.experiments.figure_files import write_data
from sotto.experiments.gohari2021 import training
from sotto.experiments.gohari2021.arms import (
    FIGURES,
    STUDENT,
    TEACHER,
    EnvName,
    FigureLearner,
    FigureName,
    ppo_config,
    settings,
)
from sotto.experiments.plots import GREY
from sotto.experiments.statistics import (
    BAND,
    REACHED,
    band,
    final,
    median_steps,
    speed_up,
    stays_from,
    steps_to_reach,
    threshold,
)
from sotto.rl.envs.gymnasium.air_raid import AIR_RAID, air_raid

_COLOURS = plots.COLOURS[:4]
_SHADED = 4  # more bands than these hide each other
_ABOUT = {
    "greedy": "return of the greedy policy",
    "sampled": "return of the policy",
    "training": "return of training episodes",
}


@dataclass(frozen=True)
class Reproduction:
    """Environment, length and seeds of the figures, and their folder."""

    env_id: EnvName
    scale: float
    seeds: tuple[int, ...]
    out: Path

    @property
    def store(self) -> ResultFolder:
        """Folder of the results of all arms."""
        return ResultFolder(self.out / "arms")

    def arms(self, learner: FigureLearner) -> list[Arm]:
        """Returns the arms of a learner: one for all seeds, or one for each on AirRaid."""
        alone = self.env_id == AIR_RAID
        blocks = [(seed,) for seed in self.seeds] if alone else [self.seeds]
        asks = learner.role == "kickstart"
        teachers = [(one,) for one in self.arms(TEACHER)] if asks else [()] * len(blocks)
        config = settings(self.env_id, learner, self.scale)
        return [
            training.arm(learner, config, block, teacher)
            for block, teacher in zip(blocks, teachers, strict=True)
        ]


def make_figure(
    experiment: Reproduction, name: FigureName, workers: int, say: Say
) -> dict[str, Any]:
    """Trains the missing arms, writes figure, data and summary, and returns the summary.

    Args:
        experiment: settings of the figures.
        name: name of the figure.
        workers: number of processes.
        say: shows the progress.
    """
    if experiment.env_id == AIR_RAID:
        air_raid(1)[0].close()  # raises now if a package is missing
    chosen, store = FIGURES[name], experiment.store
    learners = dict.fromkeys((TEACHER, *chosen.learners))
    arms = [arm for learner in learners for arm in experiment.arms(learner)]
    every = run(arms, store, workers, say)
    found = {result.arm.name: result for result in every}
    teacher, drawn = every[0], [found[learner.name] for learner in chosen.learners]
    alone = experiment.arms(STUDENT)
    student = None  # a comparison with it is added if it was trained before
    if not any(store.missing(arm) for arm in alone):
        student = joined([store.read(arm) for arm in alone])
    length = shortened(experiment.env_id, experiment.scale)
    path = experiment.out / f"{name}-{experiment.env_id}{length}"
    _draw(path.with_suffix(".png"), chosen.title, experiment.env_id, drawn, teacher)
    kind = kinds(teacher)[0]
    summary = {
        "name": path.name,
        "figure": name,
        "env_id": experiment.env_id,
        "seeds": len(experiment.seeds),
        "scale": experiment.scale,
        "kind": kind,
        "band_percentiles": list(BAND),
        "teacher_return": float(np.median(final(teacher, kind))),
        "reached_share": REACHED,
        "arms": [about(result, teacher, student) for result in every],
    }
    write_data(path, points(every), summary)
    return summary


def shortened(env_id: EnvName, scale: float) -> str:
    """Returns the part of a file's name that keeps shorter trainings apart from whole ones."""
    return "" if scale == 1 else f"-{ppo_config(env_id, scale).total_steps}-steps"


# --- numbers -------------------------------------------------------------------------------------


def kinds(result: Result) -> list[str]:
    """Returns the kinds of return; the first one is drawn."""
    return [kind for kind in result.curves if kind != "answered"]


def points(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Returns a row for each arm, seed and point, with every kind of return."""
    return [
        {
            "arm": result.arm.name,
            "seed": seed,
            "env_steps": int(result.steps[row, point]),
            "answered": int(result.curves["answered"][row, point]),
            **{f"{kind}_return": float(result.curves[kind][row, point]) for kind in kinds(result)},
        }
        for result in results
        for row, seed in enumerate(result.seeds)
        for point in range(result.steps.shape[1])
    ]


def silent_after(result: Result) -> int | None:
    """Returns the environment steps after which the median run got no more answers.

    It is None if the answers never stopped, or if there were none.
    """
    answered = np.median(result.curves["answered"], axis=0)
    if answered[-1] == 0:
        return None
    last = int(np.flatnonzero(np.diff(answered))[-1]) + 1
    return None if last == len(answered) - 1 else int(result.points[last])


def about(result: Result, teacher: Result, student: Result | None) -> dict[str, Any]:
    """Returns a summary of an arm as JSON values.

    Args:
        result: result of the arm.
        teacher: result of the teacher, whose final return is to be reached.
        student: result of the student alone, for comparison.
    """
    return {
        "arm": result.arm.name,
        "label": result.arm.label,
        "seeds": len(result.seeds),
        "answered": float(np.median(result.curves["answered"][:, -1])),
        "silent_after_steps": silent_after(result),
        "cost": result.more.get("cost"),
        "returns": {kind: _measured(result, teacher, student, kind) for kind in kinds(result)},
    }


def _measured(result: Result, teacher: Result, student: Result | None, kind: str) -> dict[str, Any]:
    level = threshold(teacher, kind)
    low, middle, high = np.percentile(final(result, kind), (BAND[0], 50.0, BAND[1]))
    stays = stays_from(result, level, kind)
    return {
        "final_median": float(middle),
        "final_band": [float(low), float(high)],
        "reached_at_return": level,
        "steps_to_reach": median_steps(result, level, kind),
        "seeds_that_reach": int(np.isfinite(steps_to_reach(result, level, kind)).sum()),
        "median_stays_from": stays if math.isinf(stays) else int(stays),
        "faster_than_teacher": speed_up(teacher, result, level, kind),
        "faster_than_student": student and speed_up(student, result, level, kind),
    }


# --- pictures ------------------------------------------------------------------------------------


def _draw(path: Path, title: str, env_id: str, results: Sequence[Result], teacher: Result) -> None:
    """Draws medians over seeds, the teacher's final return, and the ends of its answers.

    Up to four curves have bands.
    """
    kind, few = kinds(teacher)[0], len(results) <= _SHADED
    with plots.panels(path, (7.6, 4.8)) as (axes,):
        for result, colour in zip(results, _colours(len(results)), strict=True):
            low, median, high = band(result, kind)
            edges = (low, high) if few and len(result.seeds) > 1 else None
            style: dict[str, Any] = {"label": result.arm.label, "linewidth": 2.0 if few else 1.4}
            plots.line(axes, result.points, median, edges, color=colour, **style)
        _teacher(axes, teacher, kind, results)
        stops = sorted({steps for one in results if (steps := silent_after(one)) is not None})
        for index, steps in enumerate(stops):
            label = "teacher stops answering" if index == 0 else None
            axes.axvline(steps, color=plots.BLACK, linestyle=":", linewidth=1.5, label=label)
        seeds = max(len(result.seeds) for result in results)
        shaded = f", {BAND[0]:.0f}th to {BAND[1]:.0f}th percentile" if few else ""
        said = "one seed" if seeds == 1 else f"median of {seeds} seeds{shaded}"
        plots.title(axes, f"{title}: {env_id}", said)
        plots.steps_axis(axes)
        axes.set_ylabel(_ABOUT[kind])
        plots.legend_below(axes, 0.13, left=True, fontsize=9, ncols=3)


def _teacher(axes: Axes, teacher: Result, kind: str, results: Sequence[Result]) -> None:
    """Draws the teacher's learning curve, if it is not among the results, and its final return."""
    if teacher.arm.name not in {result.arm.name for result in results}:
        _, median, _ = band(teacher, kind)
        label = "teacher"
        plots.line(axes, teacher.points, median, None, color=GREY, linewidth=1.2, label=label)
    ended = float(np.median(final(teacher, kind)))
    label = f"teacher, final return: {ended:.4g}"
    axes.axhline(ended, color=GREY, linestyle="--", linewidth=1.5, label=label)


def _colours(count: int) -> Sequence[str]:
    if count <= len(_COLOURS):
        return _COLOURS[:count]
    spread = mpl.colormaps["viridis"]
    return [mpl.colors.to_hex(spread(i / (count - 1) * 0.92)) for i in range(count)]
