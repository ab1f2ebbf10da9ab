"""Figures of Gohari et al. 2021: trains what a figure needs, draws it, and says what it shows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sotto.experiments import curve_files, learning_curves
from sotto.experiments.gohari2021 import plots
from sotto.experiments.gohari2021.arms import (
    FIGURES,
    STUDENT,
    TEACHER,
    Arm,
    EnvName,
    FigureName,
    settings,
)
from sotto.experiments.gohari2021.kept_trainings import Job, train_all
from sotto.experiments.kept_jobs import Say, write_json
from sotto.experiments.learning_curves import BAND, REACHED, Curve, joined
from sotto.rl.envs.gymnasium.air_raid import AIR_RAID, air_raid


@dataclass(frozen=True)
class Experiment:
    """Which environment, how long, with which seeds, and where results are kept."""

    env_id: EnvName
    scale: float
    seeds: tuple[int, ...]
    out: Path

    def jobs(self, arm: Arm) -> list[Job]:
        """The trainings of an arm: all seeds together, or each alone on AirRaid."""
        alone = self.env_id == AIR_RAID
        blocks = [(seed,) for seed in self.seeds] if alone else [self.seeds]
        asks = arm.role == "kickstart"
        teachers = [(one,) for one in self.jobs(TEACHER)] if asks else [()] * len(blocks)
        config = settings(self.env_id, arm, self.scale)
        return [
            Job(self.out / "arms", arm, config, block, teacher)
            for block, teacher in zip(blocks, teachers, strict=True)
        ]


def make_figure(experiment: Experiment, name: FigureName, workers: int, say: Say) -> dict[str, Any]:
    """Trains what is missing, then writes figure, data and summary; returns the summary.

    Args:
        experiment: what is trained, and where it is kept.
        name: of the figure.
        workers: processes.
        say: told in words what happens.
    """
    chosen = FIGURES[name]
    found = _curves(experiment, chosen.arms, workers, say)
    teacher = found[TEACHER.name]
    student = found.get(STUDENT.name) or _kept(experiment, STUDENT)
    # Another figure may have named the same curve otherwise.
    drawn = [replace(found[arm.name], label=arm.label) for arm in chosen.arms]
    every = list({curve.arm: curve for curve in (teacher, *drawn)}.values())
    path = experiment.out / f"{name}-{experiment.env_id}"
    plots.learning_figure(
        path.with_name(path.name + ".png"), chosen.title, experiment.env_id, drawn, teacher
    )
    curve_files.write(path.with_name(path.name + ".parquet"), every)
    summary = {
        "name": path.name,
        "figure": name,
        "env_id": experiment.env_id,
        "seeds": len(experiment.seeds),
        "scale": experiment.scale,
        "kind": teacher.kind,
        "band_percentiles": list(BAND),
        "teacher_return": float(np.median(teacher.final())),
        "reached_share": REACHED,
        "arms": [learning_curves.summary(curve, teacher, student) for curve in every],
    }
    write_json(path.with_name(path.name + ".json"), summary)
    return summary


def _curves(
    experiment: Experiment, arms: Sequence[Arm], workers: int, say: Say
) -> dict[str, Curve]:
    """The curves of the arms and of their teacher, by name."""
    if experiment.env_id == AIR_RAID:
        air_raid(1)[0].close()  # says what is missing before anything begins
    jobs = {arm: experiment.jobs(arm) for arm in (TEACHER, *arms)}
    train_all([job for ours in jobs.values() for job in ours], workers, say)
    return {arm.name: joined([job.curve() for job in ours]) for arm, ours in jobs.items()}


def _kept(experiment: Experiment, arm: Arm) -> Curve | None:
    """The curve of an arm, if it was trained already."""
    jobs = experiment.jobs(arm)
    return joined([job.curve() for job in jobs]) if all(job.done for job in jobs) else None
