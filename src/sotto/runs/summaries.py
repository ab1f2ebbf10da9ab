"""The summary of a run for a stranger: its result and its guarantee, read from its directory.

The numbers are measured returns, and what the ledger certifies. Nothing that the directory's files
name is opened, so a ledger elsewhere is reported as such.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sotto.errors import RunError
from sotto.runs.directory import open_experiment
from sotto.runs.guarantees import Guarantee, guarantee_of
from sotto.runs.metrics import Line, read
from sotto.runs.registry import algorithm_named, config_from_json, config_to_json


@dataclass(frozen=True)
class Summary:
    """One run, or several seeds that were trained together.

    Attributes:
        path: the directory.
        algorithm: name of the algorithm.
        preset: name of the preset from which the settings started; None without one.
        task: environment, log or text on which it learns; empty if no setting names it.
        population: "simulated" or "real" people.
        seeds: the seeds.
        updates: number of updates that every seed has made.
        total_updates: number of updates that the settings ask for.
        env_steps: largest possible number of environment steps so far.
        evaluation: last measurements of each policy or quantity, one number for each seed.
        guarantee: what the ledgers certify.
        settings: the algorithm's settings under their present names, as JSON values.
        versions: versions of the software that started the run.
        created: when the run began, ISO 8601 in UTC.
        lines: metrics of each seed.
    """

    path: Path
    algorithm: str
    preset: str | None
    task: str
    population: str
    seeds: tuple[int, ...]
    updates: int
    total_updates: int
    env_steps: int
    evaluation: Mapping[str, list[float]]
    guarantee: Guarantee
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    created: str
    lines: Sequence[Sequence[Line]]

    def as_json(self) -> dict[str, Any]:
        """Returns the summary as JSON values, without the curves."""
        left_out = ("lines", "settings", "path", "evaluation", "guarantee")
        plain = {k: v for k, v in vars(self).items() if k not in left_out}
        measured = {
            name: {"mean": float(np.mean(values)), "seeds": values}
            for name, values in self.evaluation.items()
        }
        guarantee = self.guarantee.as_json()
        return {"path": str(self.path), **plain, **guarantee, "evaluation": measured}


def summarise(path: Path) -> Summary:
    """Returns the summary of the run, or of the seeds, in a directory.

    Raises:
        RunError: there is no run, or its settings or metrics cannot be read.
        ValueError: this version has no such algorithm or settings.
    """
    experiment = open_experiment(path)
    settings = experiment.settings
    algorithm = algorithm_named(settings.algorithm)
    config = config_from_json(algorithm, settings.config)
    lines = [read(run.metrics) if run.metrics.exists() else [] for run in experiment.runs]
    last = [one[-1] for one in lines if one]
    return Summary(
        path=path,
        algorithm=settings.algorithm,
        preset=settings.preset,
        task=task(settings.config),
        population=settings.population,
        seeds=settings.seeds,
        updates=min(line.updates for line in last) if len(last) == len(lines) else 0,
        total_updates=algorithm.num_updates(config),
        env_steps=max((line.env_steps for line in last), default=0),
        evaluation=_last_evaluations(lines),
        guarantee=guarantee_of(experiment),
        settings=config_to_json(algorithm, config),
        versions=settings.versions,
        created=settings.created,
        lines=lines,
    )


def find(folder: Path) -> Iterator[Path]:
    """Yields the directories of runs in a folder and below it, in order of their names.

    Seeds that were trained together are one run. Links are not followed.

    Raises:
        RunError: the folder does not exist.
    """
    if not folder.is_dir():
        raise RunError(f"there is no folder {folder}; give one that holds runs")
    for place, inside, files in os.walk(folder):
        inside.sort()
        if "config.json" in files:
            inside.clear()
            yield Path(place)


def differing(summaries: Sequence[Summary]) -> dict[str, list[Any]]:
    """Returns in what runs differ: algorithm, preset, versions and settings, with every value.

    The seed is left out. A run whose algorithm has no such setting has None.
    """
    names = dict.fromkeys(name for one in summaries for name in one.settings if name != "seed")
    values: dict[str, list[Any]] = {
        "algorithm": [one.algorithm for one in summaries],
        "preset": [one.preset for one in summaries],
    }
    for name in ("sotto", "jax"):
        values[f"version of {name}"] = [one.versions.get(name) for one in summaries]
    values |= {name: [one.settings.get(name) for one in summaries] for name in names}
    return {name: row for name, row in values.items() if any(v != row[0] for v in row)}


def shown_setting(value: Any) -> str:
    """Returns a setting as text; "none" also for a run that does not have it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _last_evaluations(lines: Sequence[Sequence[Line]]) -> dict[str, list[float]]:
    """Returns the last measurements that every seed has."""
    last: list[dict[str, float]] = [
        next((line.evaluation for line in reversed(one) if line.evaluation), {}) for one in lines
    ]
    shared = [name for name in last[0] if all(name in one for one in last)]
    return {name: [one[name] for one in last] for name in shared}


def task(config: Mapping[str, Any]) -> str:
    """Returns what a run learns on, from the settings that name it."""
    named = (config.get(name) for name in ("env_id", "on", "feedback", "dataset"))
    return next((str(one) for one in named if one not in (None, "none")), "")
