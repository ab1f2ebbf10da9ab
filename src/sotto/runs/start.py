"""Begins a run, or goes on with one: from settings to a directory that can be trained."""

import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from sotto.algorithms.base import Algorithm
from sotto.errors import RunError
from sotto.keys import seed_range
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.errors import PrivacyError
from sotto.rl.envs.registry import from_data
from sotto.runs.directory import (
    Experiment,
    Named,
    Run,
    create_experiment,
    ledger_place,
    new_settings,
    open_experiment,
    with_settings,
)
from sotto.runs.registry import algorithm_named, config_from_json, config_to_json
from sotto.runs.states import last_common_checkpoint

_LENGTH = "total_steps"


def begin(
    algorithm: Algorithm[Any],
    config: Any,
    out: Path,
    *,
    seeds: int = 1,
    ledger: str | None = None,
    preset: str | None = None,
    command: str,
) -> Experiment:
    """Makes the directory of a new run, or of several seeds side by side.

    Args:
        algorithm: what is trained.
        config: its settings; what they leave open is filled in.
        out: the directory, which must not exist.
        seeds: how many, from `config.seed` on.
        ledger: SQLAlchemy URL or file of the ledger, instead of one in the directory.
        preset: which named settings `config` started from.
        command: what made the run, for the report.

    Raises:
        ValueError: settings that cannot be run. Nothing is left behind.
    """
    numbers = tuple(seed_range(config.seed, seeds))
    algorithm.check_seeds(config, numbers)
    config_to_json(algorithm, config)  # refuses what is too large before anything is made of it
    config = algorithm.resolved(config)
    if ledger is not None and not algorithm.has_ledger(config):
        raise ValueError("a run of these settings keeps no ledger; leave out --ledger")
    settings = new_settings(
        algorithm=algorithm.name,
        config=config_to_json(algorithm, config),
        preset=preset,
        seeds=numbers,
        population=getattr(config, "population", "simulated"),
        ledger=ledger_place(ledger) if algorithm.has_ledger(config) else None,
        command=command,
    )

    def create_ledger(run: Run) -> None:
        algorithm.create_ledger(config, run.ledger_location, run.settings.run_id)

    return create_experiment(out, settings, create_ledger)


def go_on(
    algorithm: Algorithm[Any],
    config: Any,
    out: Path,
    *,
    seeds: int = 1,
    ledger: str | None = None,
    preset: str | None = None,
    env_id: str | None = None,
) -> Experiment:
    """The experiment in a directory, if it was started with these settings.

    Only `total_steps` may have grown: then the training goes on past its first end, under the
    budget that its ledger has. config.json says so once that is charged (`training.train`).

    Arguments are those of `begin`; `seeds=1` and None stand for what it was started with. A ledger
    outside of the directory, and an environment that is imported, are named again: a file may be
    somebody else's.

    Raises:
        RunError: it was started with others, or cannot be longer.
    """
    experiment = open_experiment(out, Named(ledger, env_id))
    settings = experiment.settings
    asked = config_to_json(algorithm, config)
    # A run of an earlier version may have other names, and lack what there was not.
    stored = config_to_json(algorithm, config_from_json(algorithm, settings.config))
    changed = [key for key, value in asked.items() if value != stored[key]]
    if seeds not in (1, len(settings.seeds)):
        changed.append("seeds")
    if preset not in (None, settings.preset):
        changed.append("preset")
    if ledger is not None and ledger_place(ledger) != settings.ledger:
        changed.append("ledger")
    if changed == [_LENGTH] and asked[_LENGTH] > settings.config[_LENGTH]:
        return _longer(algorithm, config, experiment)
    if changed == [_LENGTH]:
        raise RunError(
            f"{out} was started with {settings.config[_LENGTH]} steps, and can only get more; "
            "leave out --total-steps"
        )
    if changed:
        raise RunError(
            f"a run is resumed with the settings it was started with; leave out "
            f"--{changed[0].replace('_', '-')}, or start a new run"
        )
    return experiment


def _longer(algorithm: Algorithm[Any], config: Any, experiment: Experiment) -> Experiment:
    """The experiment with more steps, which is not yet stored.

    Raises:
        RunError: it is one of several seeds, or what it has kept does not fit a longer training.
    """
    path, settings = experiment.path, experiment.settings
    above = path.parent / "config.json"
    if above.is_file() and len(open_experiment(path.parent).settings.seeds) > 1:
        raise RunError(
            f"{path} is one of several seeds, which stay alike; give all of them more steps, with "
            f"--out {path.parent}"
        )
    before = config_of(experiment)
    first, longer = (
        jax.tree.map(jnp.shape, algorithm.initial_states(one, settings.seeds[:1]))
        for one in (before, config)
    )
    if first != longer:
        raise RunError(
            f"what a training of {settings.algorithm} keeps depends on its length here, so that "
            f"{path} cannot go on past its end; start a new run"
        )
    changed = {_LENGTH: config_to_json(algorithm, config)[_LENGTH]}
    return with_settings(experiment, settings.config | changed)


def stored_config(algorithm: Algorithm[Any], out: Path, env_id: str | None = None) -> Any:
    """The settings of the run in a directory.

    Args:
        algorithm: of which it is a run.
        out: the directory.
        env_id: what the user named; the settings name no other environment that is imported.

    Raises:
        RunError: there is none, or it is a run of another algorithm.
    """
    experiment = open_experiment(out, Named(env_id=env_id))
    if experiment.settings.algorithm != algorithm.name:
        raise RunError(f"{out} is a run of {experiment.settings.algorithm}; resume it with that")
    return config_of(experiment)


def config_of(experiment: Experiment) -> Any:
    """The settings of an experiment that is there, to be run with.

    Raises:
        RunError: they are not settings of its algorithm.
        ValueError: their environment would import a module, and the user did not name it.
    """
    settings = experiment.settings
    env_id = settings.config.get("env_id")
    if env_id is not None:
        from_data(str(env_id), experiment.path / "config.json", experiment.named.env_id)
    return config_from_json(algorithm_named(settings.algorithm), settings.config)


def discard_if_unused(experiment: Experiment) -> None:
    """Removes the directory of a new training that failed before it charged or saved anything."""
    if _nothing_made(experiment):
        shutil.rmtree(experiment.path, ignore_errors=True)


def _nothing_made(experiment: Experiment) -> bool:
    if experiment.settings.ledger is None:
        return last_common_checkpoint(experiment.runs) == 0
    try:
        ledgers = [run.open_ledger() for run in experiment.runs]
    except (PrivacyError, RunError):  # what cannot be read may have been charged
        return False
    return not any(
        one.spent().answered if isinstance(one, AnswerLedger) else one.streams for one in ledgers
    )
