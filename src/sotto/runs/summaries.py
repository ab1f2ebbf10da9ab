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
from sotto.privacy.certificates.derive import derive
from sotto.privacy.errors import PrivacyError
from sotto.runs.directory import Experiment, open_experiment
from sotto.runs.metrics import Line, read
from sotto.runs.registry import algorithm_named, config_from_json
from sotto.runs.seeds import sharing

NOT_PRIVATE = "not private"
"""Status of a run without a ledger."""
UNKNOWN = "unknown"
"""Status of a run whose ledger cannot be read."""


@dataclass(frozen=True)
class Summary:
    """One run, or several seeds that were trained together.

    Attributes:
        path: the directory.
        algorithm: name of the algorithm.
        task: environment, log or text on which it learns; empty if no setting names it.
        population: "simulated" or "real" people.
        seeds: the seeds.
        updates: number of updates that every seed has made.
        total_updates: number of updates that the settings ask for.
        env_steps: largest possible number of environment steps so far.
        evaluation: last measurements of each policy or quantity, one number for each seed.
        status: status of the weakest certificate, or NOT_PRIVATE, or UNKNOWN.
        epsilon: largest epsilon; of all seeds together if they share their people. None if nothing
            is proved.
        delta: delta of the guarantee; None as `epsilon`.
        why: the reason for a status that is not "proved".
        settings: the algorithm's settings, as JSON values.
        created: when the run began, ISO 8601 in UTC.
        lines: metrics of each seed.
    """

    path: Path
    algorithm: str
    task: str
    population: str
    seeds: tuple[int, ...]
    updates: int
    total_updates: int
    env_steps: int
    evaluation: Mapping[str, list[float]]
    status: str
    epsilon: float | None
    delta: float | None
    why: str
    settings: Mapping[str, Any]
    created: str
    lines: Sequence[Sequence[Line]]

    def as_json(self) -> dict[str, Any]:
        """Returns the summary as JSON values, without the curves."""
        left_out = ("lines", "settings", "path", "evaluation")
        plain = {k: v for k, v in vars(self).items() if k not in left_out}
        measured = {
            name: {"mean": float(np.mean(values)), "seeds": values}
            for name, values in self.evaluation.items()
        }
        return {"path": str(self.path), **plain, "evaluation": measured}


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
    status, epsilon, delta, why = _certified(experiment)
    return Summary(
        path=path,
        algorithm=settings.algorithm,
        task=task(settings.config),
        population=settings.population,
        seeds=settings.seeds,
        updates=min(line.updates for line in last) if len(last) == len(lines) else 0,
        total_updates=algorithm.num_updates(config),
        env_steps=max((line.env_steps for line in last), default=0),
        evaluation=_last_evaluations(lines),
        status=status,
        epsilon=epsilon,
        delta=delta,
        why=why,
        settings=settings.config,
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
    """Returns the settings in which runs differ, each with its value in every run.

    The seed is left out. A run whose algorithm has no such setting has None.
    """
    names = dict.fromkeys(name for one in summaries for name in one.settings if name != "seed")
    values = {name: [one.settings.get(name) for one in summaries] for name in names}
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


def _certified(experiment: Experiment) -> tuple[str, float | None, float | None, str]:
    """Returns status, epsilon, delta and the reason for a status that is not "proved"."""
    settings = experiment.settings
    if settings.ledger is None:
        algorithm = algorithm_named(settings.algorithm)
        _, why = algorithm.without_ledger(config_from_json(algorithm, settings.config))
        return NOT_PRIVATE, None, None, why
    try:
        ledgers = [run.open_ledger() for run in experiment.runs]
        found = [derive(ledger) for ledger in ledgers]
        shared = sharing(settings, ledgers) if len(ledgers) > 1 else None
    except (RunError, PrivacyError) as error:
        return UNKNOWN, None, None, str(error)
    worst = max(found, key=lambda one: (one.status != "proved", one.epsilon))
    if worst.status != "proved":
        return worst.status, None, None, "nothing is proved; sotto certificate says why"
    together = None if shared is None else shared.epsilon
    return "proved", together or worst.epsilon, worst.delta, ""


def task(config: Mapping[str, Any]) -> str:
    """Returns what a run learns on, from the settings that name it."""
    named = (config.get(name) for name in ("env_id", "on", "feedback", "dataset"))
    return next((str(one) for one in named if one not in (None, "none")), "")
