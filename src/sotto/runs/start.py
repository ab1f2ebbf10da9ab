"""New and resumed runs: from settings to a run directory that can be trained."""

import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from pydantic import BaseModel

from sotto.algorithms.base import Algorithm
from sotto.cluster import on_cluster
from sotto.errors import RunError
from sotto.keys import seed_range
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.errors import PrivacyError
from sotto.privacy.release.devices import over_devices
from sotto.privacy.units import PopulationKind
from sotto.rl.envs.registry import from_data
from sotto.runs.budgets import give_budget
from sotto.runs.checkpoints import last_common_checkpoint
from sotto.runs.directory import (
    DEVICES,
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

_LENGTH = "total_steps"


@contextmanager
def on_machines(
    algorithm: Algorithm[Any], config: Any, devices: int, ray: str | None
) -> Iterator[None]:
    """Makes a training of this context use several devices, or a cluster.

    Args:
        algorithm, config: the training.
        devices: number of devices that share its people (`over_devices`).
        ray: address of a Ray cluster (`on_cluster`).

    Raises:
        ValueError: the training has nothing for them to do, or there are fewer devices.
        RunError: there is no such cluster.
    """
    if devices > 1 and not algorithm.has_sums(config):
        raise ValueError(
            f"devices share the people of a release, and {algorithm.name} with these settings "
            "releases no sums over people; use one device"
        )
    if ray is not None and not algorithm.has_tasks(config):
        raise ValueError(
            "a cluster collects simulated users of Gymnasium environments for dppg, and "
            f"{algorithm.name} with these settings has none; leave out --ray"
        )
    with over_devices(devices), on_cluster(ray):
        yield


def begin(
    algorithm: Algorithm[Any],
    config: Any,
    out: Path,
    *,
    seeds: int = 1,
    ledger: str | None = None,
    budget: str | None = None,
    numbers: Path | None = None,
    numbered: bool = False,
    preset: str | None = None,
    promise: BaseModel | None = None,
    population: PopulationKind | None = None,
    command: str,
) -> Experiment:
    """Makes the directory of a new run, or of several seeds that are trained together.

    Args:
        algorithm: the algorithm.
        config: its settings; open ones are filled in.
        out: the directory, which must not exist.
        seeds: number of seeds, from `config.seed` on.
        ledger: SQLAlchemy URL or file of the ledger, instead of a file in the directory.
        budget: file or SQLAlchemy URL of a budget that the run shares with other products.
        numbers: file with the operator's number of each person, in the order of enrolment.
        numbered: whether people enrol under the operator's numbers, so that no file lists them.
        preset: name of the preset from which `config` started.
        promise: what people's devices are promised; None if none take part.
        population: whether people are simulated or real; None is what the algorithm says.
        command: command that started the run, for the report.

    Raises:
        ValueError: the settings cannot be run. No files are left.
    """
    each = tuple(seed_range(config.seed, seeds))
    algorithm.check_seeds(config, each)
    config_to_json(algorithm, config)  # refuses too large settings before anything is built
    config = algorithm.resolved(config)
    if ledger is not None and not algorithm.has_ledger(config):
        raise ValueError("a run with these settings has no ledger; leave out --ledger")
    if budget is not None:
        _check_budget(algorithm, config, budget, numbers is not None, numbered, seeds)
    elif numbers is not None:
        raise ValueError("numbers are for a shared budget; give --budget too, or leave them out")
    whose = population or algorithm.population(config)
    charged = algorithm.has_ledger(config)
    if seeds > 1 and charged and _would_meet_again(algorithm, config, whose):
        raise ValueError(
            "each seed would number the same real people from 0, and its certificate would not "
            "count the other seeds; leave out --seeds"
        )
    settings = new_settings(
        algorithm=algorithm.name,
        config=config_to_json(algorithm, config),
        preset=preset,
        seeds=each,
        population=whose,
        ledger=ledger_place(ledger) if charged else None,
        command=command,
    )

    def create_ledger(run: Run) -> None:
        made = algorithm.create_ledger(config, run.ledger_location, run.settings.run_id)
        give_budget(made, budget, numbers)

    named = Named(budget=budget, numbers=numbers)
    return create_experiment(out, settings, create_ledger, named, promise)


def _check_budget(
    algorithm: Algorithm[Any], config: Any, budget: str, listed: bool, numbered: bool, seeds: int
) -> None:
    """Refuses a shared budget that does not fit the run, before anything is made."""
    ledger_place(budget, "--budget")  # refuses a password, which the stored command would reveal
    if not algorithm.has_ledger(config):
        raise ValueError("a run with these settings protects nobody; leave out --budget")
    if not numbered:  # devices bring their numbers themselves
        algorithm.check_numbered(config)
    if not listed and not numbered:
        raise ValueError(
            "a shared budget knows people by your numbers; name a file with the number of each "
            "person, in the order of enrolment: --numbers FILE"
        )
    if seeds > 1:
        raise ValueError(
            "several seeds each number their people from 0, and a shared budget counts each of "
            "them; train the seeds one after the other, each with its own --numbers"
        )


def go_on(
    algorithm: Algorithm[Any],
    config: Any,
    out: Path,
    *,
    seeds: int = 1,
    ledger: str | None = None,
    budget: str | None = None,
    numbers: Path | None = None,
    preset: str | None = None,
    env_id: str | None = None,
    teacher: str | None = None,
) -> Experiment:
    """Opens the experiment in a directory, if it was started with these settings.

    Only `total_steps` may be larger. The training then continues past its first end, under the
    budget of its ledger. config.json is updated when the first chunk is charged
    (`training.train`).

    The arguments are those of `begin`; `seeds=1` and None stand for the stored values. A ledger
    outside the directory, and an environment whose module is imported, must be given again, since
    another person may have written the file.

    Raises:
        RunError: the experiment has other settings, or cannot be longer.
    """
    experiment = open_experiment(out, Named(ledger, env_id, budget, numbers, teacher))
    settings = experiment.settings
    if (out / DEVICES).exists():
        raise RunError(
            f"{out} is a run on people's devices, who were promised that the server sees no more "
            "than sums; continue it with the command that began it, and --resume"
        )
    # An earlier version may have stored other names, and lacks newer settings.
    stored = config_to_json(algorithm, config_from_json(algorithm, settings.config))
    asked, changed = _changes(algorithm, config, stored)
    if changed not in ([], [_LENGTH]):
        # The stored settings are filled in, and those given from Python may still be open.
        try:
            config = algorithm.resolved(config)
        except (ValueError, RunError):  # settings that cannot be run differ anyway
            if not set(changed).isdisjoint(algorithm.files):  # the error says what is wrong with it
                raise
        else:
            asked, now = _changes(algorithm, config, stored)
            # What an earlier version left open may be filled in by this one, and is no change.
            changed = [one for one in changed if one in now]
            moved = {
                name: asked[name] for name in changed if _same_file(algorithm, asked, stored, name)
            }
            experiment = with_settings(experiment, config=settings.config | moved)
            changed = [one for one in changed if one not in moved]
    if seeds not in (1, len(settings.seeds)):
        changed.append("seeds")
    if preset not in (None, settings.preset):
        changed.append("preset")
    if ledger is not None and ledger_place(ledger) != settings.ledger:
        changed.append("ledger")
    if changed == [_LENGTH] and asked[_LENGTH] > settings.config[_LENGTH]:
        experiment, changed = _longer(algorithm, config, experiment), []
    if changed == [_LENGTH]:
        raise RunError(
            f"{out} was started with {settings.config[_LENGTH]} steps and cannot have fewer; "
            "leave out --total-steps, or give more"
        )
    if changed and changed[0] in algorithm.files:
        flag, file = changed[0].replace("_", "-"), stored[changed[0]]
        if file is None:
            raise RunError(f"{out} was started without --{flag}; leave it out, or start a new run")
        raise RunError(
            f"{out} was started with --{flag} {shlex.quote(str(file))}; give the same, or start a "
            "new run"
        )
    if changed:
        raise RunError(
            f"a run must be resumed with the settings with which it was started; leave out "
            f"--{changed[0].replace('_', '-')}, or start a new run"
        )
    if budget is not None:
        # An environment may no longer say whom it meets, and in earlier versions none did.
        algorithm.check_numbered(config_from_json(algorithm, experiment.settings.config))
        # Numbers name people in the order of their file, which the first charge fixes.
        if _nothing_made(experiment):
            raise RunError(
                f"nothing in {out} was charged, so nobody knows whether its numbers still name the "
                "same people; delete it, and start a new run"
            )
    # Earlier versions called people simulated whom the release of an own algorithm alone calls
    # real. It is asked last, with settings that the user has given or confirmed.
    whose = algorithm.population(config)
    if whose == "real":
        experiment = with_settings(experiment, population="real")
    charged = algorithm.has_ledger(config)
    if len(settings.seeds) > 1 and charged and _would_meet_again(algorithm, config, whose):
        raise RunError(
            f"all seeds of {out} number the same real people from 0, and go on no more: their "
            f"costs add up (sotto certificate {shlex.quote(str(out))}); start a new run of one seed"
        )
    return experiment


def _would_meet_again(algorithm: Algorithm[Any], config: Any, whose: PopulationKind) -> bool:
    """Whether several seeds would be about the same real people, and no sentence adds them up."""
    return whose == "real" and algorithm.shared(config) is None


def _changes(
    algorithm: Algorithm[Any], config: Any, stored: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Returns the settings in JSON, and the names of those that differ from the stored ones."""
    asked = config_to_json(algorithm, config)
    return asked, [key for key, value in asked.items() if value != stored[key]]


def _same_file(
    algorithm: Algorithm[Any], asked: dict[str, Any], stored: dict[str, Any], name: str
) -> bool:
    """Whether a setting names the same file in another place, by its identity."""
    identity = algorithm.files.get(name)
    return identity is not None and asked[identity] == stored[identity] is not None


def _longer(algorithm: Algorithm[Any], config: Any, experiment: Experiment) -> Experiment:
    """Returns the experiment with more steps; config.json is not changed yet.

    Raises:
        RunError: it is one of several seeds, or its checkpoints do not fit a longer training.
    """
    path, settings = experiment.path, experiment.settings
    above = path.parent / "config.json"
    if above.is_file() and len(open_experiment(path.parent).settings.seeds) > 1:
        raise RunError(
            f"{path} is one of several seeds, which must have equal settings; give all of them "
            f"more steps with --out {path.parent}"
        )
    before = config_of(experiment)
    first, longer = (
        jax.tree.map(jnp.shape, algorithm.one_state(one, settings.seeds[0]))
        for one in (before, config)
    )
    if first != longer:
        raise RunError(
            f"the size of the checkpoints of {settings.algorithm} depends on the number of steps "
            f"here, so {path} cannot continue past its end; start a new run"
        )
    changed = {_LENGTH: config_to_json(algorithm, config)[_LENGTH]}
    return with_settings(experiment, config=settings.config | changed)


def stored_config(algorithm: Algorithm[Any], out: Path, env_id: str | None = None) -> Any:
    """Reads the settings of the run in a directory.

    Args:
        algorithm: algorithm of the run.
        out: the directory.
        env_id: the environment that the user gave; a module is imported only if it is named there.

    Raises:
        RunError: there is no run, or it is a run of another algorithm.
    """
    experiment = open_experiment(out, Named(env_id=env_id))
    if experiment.settings.algorithm != algorithm.name:
        raise RunError(
            f"{out} is a run of {experiment.settings.algorithm}; resume it with: "
            f"sotto train {experiment.settings.algorithm} --out {shlex.quote(str(out))} --resume"
        )
    return config_of(experiment)


def config_of(experiment: Experiment) -> Any:
    """Returns the settings of an experiment, if its environment is safe to make.

    Raises:
        RunError: they are not settings of its algorithm.
        ValueError: the environment would import a module that the user did not name.
    """
    settings = experiment.settings
    env_id = settings.config.get("env_id")
    if env_id is not None:
        from_data(str(env_id), experiment.path / "config.json", experiment.named.env_id)
    return config_from_json(algorithm_named(settings.algorithm), settings.config)


@contextmanager
def opened(
    algorithm: Algorithm[Any],
    config: Any,
    out: Path,
    *,
    resume: bool,
    command: str,
    env_id: str | None = None,
    teacher: str | None = None,
    **given: Any,
) -> Iterator[Experiment]:
    """Yields the experiment of `begin`, or of `go_on`; a new one that fails unused is removed.

    Args:
        algorithm, config, out: the training.
        resume: whether to go on with the experiment in `out`.
        command: for `begin` alone.
        env_id, teacher: for `go_on` alone.
        given: the other arguments of either.

    Raises:
        ValueError: the settings cannot be run, or not go on.
    """
    if resume:
        yield go_on(algorithm, config, out, env_id=env_id, teacher=teacher, **given)
        return
    experiment = begin(algorithm, config, out, command=command, **given)
    try:
        yield experiment
    except BaseException:  # also after a bug or Ctrl-C: an unused directory blocks the next try
        discard_if_unused(experiment)
        raise


def discard_if_unused(experiment: Experiment) -> None:
    """Removes the directory of a new training that failed before any charge or checkpoint."""
    if _nothing_made(experiment):
        shutil.rmtree(experiment.path, ignore_errors=True)


def _nothing_made(experiment: Experiment) -> bool:
    if experiment.settings.ledger is None:
        return last_common_checkpoint(experiment.runs) == 0
    try:
        ledgers = [run.open_ledger() for run in experiment.runs]
    except (PrivacyError, RunError):  # an unreadable ledger may have charges
        return False
    return not any(
        one.spent().answered if isinstance(one, AnswerLedger) else one.streams for one in ledgers
    )
