"""The run directory: all files of a run, and the settings with which it was started.

```
runs/x/  config.json  ledger.sqlite  certificate.json  metrics.jsonl  tensorboard/
         checkpoints/  figures/  report.html
```

Several seeds that are trained together are an *experiment*. Each has a full run directory
`runs/x/seed-K/`, and `runs/x/config.json` lists them all. `open_experiment` accepts either kind.

`config.json` is written last, so a directory with this file is complete. A training that is killed
while it creates the directory has released nothing; it must be started again and not resumed.
"""

import shlex
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from sotto.algorithms.base import AnyLedger
from sotto.errors import RunError
from sotto.files import read_model, require_regular, write_model
from sotto.frozen import FrozenModel
from sotto.privacy.errors import LedgerUnavailable
from sotto.privacy.ledger.entries import now
from sotto.privacy.units import PopulationKind
from sotto.runs import marks
from sotto.runs.registry import algorithm_named, config_from_json

DEVICES = "devices.json"
"""File of a run whose people's devices add the noise (`sotto.federated.runs`)."""

_LEDGER = "ledger.sqlite"
_MOST_SEEDS = 10_000
_LARGEST_SETTINGS = 2**20  # bytes of config.json
_VERSIONS = ("sotto", "jax", "jax-privacy", "dp-accounting", "equinox", "optax", "gymnasium")


class RunSettings(FrozenModel):
    """Contents of config.json: everything that resuming, evaluating and reporting need.

    Attributes:
        run_id: id of the run, which its ledger also contains; each run of an experiment has one.
        config: the algorithm's settings, as JSON values.
        preset: name of the preset from which the settings started.
        seeds: one seed for a run, several for an experiment.
        population: "simulated" or "real" people.
        ledger: name of the ledger's file in the run directory, absolute path of another file, or a
            SQLAlchemy URL; None for an algorithm without a ledger.
        versions: versions of the software that started the run.
        command: command that started the run.
    """

    format: Literal[1] = 1
    run_id: str
    algorithm: str
    preset: str | None
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**31, strict=True)], ...] = Field(
        min_length=1, max_length=_MOST_SEEDS
    )
    population: PopulationKind
    ledger: str | None
    config: dict[str, Any]
    versions: dict[str, str]
    command: str
    created: str


def new_settings(
    *,
    algorithm: str,
    config: dict[str, Any],
    preset: str | None,
    seeds: tuple[int, ...],
    population: PopulationKind,
    ledger: str | None,
    command: str,
    created: str | None = None,
) -> RunSettings:
    """Returns the settings of a new run, with an id and the versions of the installed software.

    Args:
        ledger: value of `RunSettings.ledger`, as `ledger_place` returns it.
        created: time of creation, ISO 8601 in UTC; None is now.
    """
    return RunSettings(
        run_id=uuid.uuid4().hex,
        algorithm=algorithm,
        preset=preset,
        seeds=seeds,
        population=population,
        ledger=ledger,
        config=config,
        versions={name: version(name) for name in _VERSIONS} | {"python": python_version()},
        command=command,
        created=created or now(),
    )


def ledger_place(ledger: str | None, flag: str = "--ledger") -> str:
    """Returns the location of the ledger for config.json: by default a file in the run directory.

    Raises:
        RunError: the URL contains a password, or cannot be parsed.
    """
    if ledger is None:
        return _LEDGER
    if "://" not in ledger:
        return str(Path(ledger).absolute())
    try:
        url = make_url(ledger)
    except ArgumentError as error:
        raise RunError(
            f"{flag} {ledger} is not a SQLAlchemy URL; give one, or the path of a file"
        ) from error
    if url.password or any("password" in option.lower() for option in url.query):
        raise RunError(
            f"what is stored would reveal the password in the URL of {flag}; remove it from the "
            "URL and give it to the database driver (for PostgreSQL: PGPASSWORD or ~/.pgpass)"
        )
    return ledger


@dataclass(frozen=True)
class Named:
    """Locations that the user gave in this call, and therefore trusts.

    Another person may have made the directory. Nothing that its files name is connected to,
    imported or executed, unless the user gives the same name.

    Attributes:
        ledger: value of --ledger.
        env_id: value of --env-id.
        budget: value of --budget.
        numbers: value of --numbers.
        teacher: value of --teacher.
    """

    ledger: str | None = None
    env_id: str | None = None
    budget: str | None = None
    numbers: Path | None = None
    teacher: str | None = None


NOTHING_NAMED = Named()
"""No trusted locations; only files in the directory are opened."""


def ledger_location(
    directory: Path, place: str, named: str | None, flag: str = "--ledger"
) -> Path | str:
    """Returns the location of a ledger that settings in a directory name.

    Args:
        directory: directory of the settings.
        place: file in the directory, absolute path of another file, or a SQLAlchemy URL.
        named: value of the flag.
        flag: flag that names the location.

    Raises:
        RunError: the ledger is outside the directory, and the user did not give its location. The
            author of the settings could otherwise choose where this program sends passwords.
    """
    inside = "://" not in place and Path(place).name == place
    inside = inside and not (directory / place).is_symlink()
    if not inside and (named is None or ledger_place(named) != place):
        raise RunError(
            f"the settings of {directory} say that its ledger is elsewhere, at {place}; give "
            f"{flag} {place} if you trust that location"
        )
    return place if "://" in place else directory / place


@dataclass(frozen=True)
class Run:
    """One run directory: one seed, one ledger, one certificate."""

    path: Path
    settings: RunSettings
    named: Named = NOTHING_NAMED

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.settings.seeds[0]

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """File of metrics, with one line per chunk of training."""
        return self.path / "metrics.jsonl"

    @property
    def certificate(self) -> Path:
        """File of the certificate, which is derived from the ledger."""
        return self.path / "certificate.json"

    @property
    def ledger_location(self) -> Path | str:
        """Location of the ledger.

        Raises:
            RunError: the run has no ledger, or it is outside the directory and the user did not
                give its location.
        """
        place = self.settings.ledger
        if place is None:
            algorithm = algorithm_named(self.settings.algorithm)
            _, why = algorithm.without_ledger(config_from_json(algorithm, self.settings.config))
            raise RunError(f"{self.path} has no ledger and no certificate of its own: {why}")
        return ledger_location(self.path, place, self.named.ledger)

    def open_ledger(self) -> AnyLedger:
        """Opens the run's ledger.

        Raises:
            LedgerMismatch: the ledger belongs to another run.
            LedgerOlder: checkpoints, metrics or the certificate are newer than the ledger.
            LedgerCorrupt, LedgerUnavailable: the ledger is damaged, missing or cannot be read.
        """
        algorithm, place = algorithm_named(self.settings.algorithm), self.ledger_location
        if isinstance(place, Path) and not place.is_file():
            raise LedgerUnavailable(
                f"the ledger of the run {self.path} is missing: there is no file {place}; restore "
                "it from a backup, since the run cannot be certified or resumed without it"
            )
        ledger = algorithm.open_ledger(place, self.settings.run_id)
        marks.refuse_older(self.path, ledger)
        return ledger


@dataclass(frozen=True)
class Experiment:
    """One run, or several seeds that are trained together."""

    path: Path
    settings: RunSettings
    runs: tuple[Run, ...]
    named: Named = NOTHING_NAMED


def create_experiment(
    out: Path,
    settings: RunSettings,
    create_ledger: Callable[[Run], object],
    named: Named = NOTHING_NAMED,
    promise: BaseModel | None = None,
) -> Experiment:
    """Makes the directory and its ledgers; the settings are written last.

    Without settings a directory is no run, so a kill in between leaves none that lacks a file.

    Args:
        out: the directory.
        settings: settings of all runs.
        create_ledger: function that creates the ledger of a run.
        named: locations outside the directory that the user has given.
        promise: what people's devices are promised, for the file `DEVICES`; None if none take part.

    If several trainings start at the same place at once, only the one that makes the directory
    continues. It owns all files in it, and removes them if it fails.

    Raises:
        RunError: `out` exists.
    """
    try:
        out.mkdir(parents=True)
    except FileExistsError as error:
        raise RunError(
            f"{out} exists already; give another --out, or --resume to continue the run in it"
            if (out / "config.json").exists()
            else f"{out} exists and is not a run; give another --out, or remove it"
        ) from error
    # The settings were made from this command line.
    env_id, teacher = (settings.config.get(name) for name in ("env_id", "teacher"))
    named = replace(named, ledger=settings.ledger, env_id=env_id, teacher=teacher)
    runs = _runs(out, settings, named)
    try:
        for run in runs:
            run.path.mkdir(exist_ok=run.path == out)
            if run.settings.ledger is not None:
                create_ledger(run)
        if promise is not None:
            write_model(out / DEVICES, promise)
        for run in runs:
            write_model(run.path / "config.json", run.settings)
        if len(runs) > 1:
            write_model(out / "config.json", settings)
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)  # this call made it, and nothing was released
        raise
    return Experiment(out, settings, runs, named)


def resume_command(experiment: Experiment) -> str:
    """Returns the command that continues an experiment.

    It names again the files and locations outside the directory. For a teacher's URL that the user
    has not given in this call it says URL, because a token would be sent there. Options that are
    not stored, such as --devices, are left out.
    """
    settings, named = experiment.settings, experiment.named
    algorithm = algorithm_named(settings.algorithm)
    words = ["sotto", "train", settings.algorithm, "--out", str(experiment.path), "--resume"]
    for name in algorithm.files:
        if (file := settings.config.get(name)) != getattr(algorithm.config_type, name, None):
            words += [f"--{name.replace('_', '-')}", str(file)]
    ledger = None if settings.ledger == _LEDGER else settings.ledger
    given = {"ledger": ledger, "budget": named.budget, "numbers": named.numbers}
    if named.env_id is not None and ":" in named.env_id:  # its module is imported
        given["env-id"] = named.env_id
    if "://" in str(settings.config.get("teacher")):
        given["teacher"] = named.teacher or "URL"
    for flag, value in given.items():
        words += [] if value is None else [f"--{flag}", str(value)]
    return shlex.join(words)


def with_settings(experiment: Experiment, **changes: Any) -> Experiment:
    """Returns the experiment with changed fields of `RunSettings`; `store` writes them."""
    settings = experiment.settings.model_copy(update=changes)
    runs = _runs(experiment.path, settings, experiment.named)
    return Experiment(experiment.path, settings, runs, experiment.named)


def store(experiment: Experiment) -> None:
    """Writes the settings of all runs if they differ from the stored ones."""
    if open_experiment(experiment.path).settings == experiment.settings:
        return
    for run in experiment.runs:
        write_model(run.path / "config.json", run.settings)
    write_model(experiment.path / "config.json", experiment.settings)


def open_experiment(path: Path, named: Named = NOTHING_NAMED) -> Experiment:
    """Opens the run, or the runs of several seeds, in a directory.

    Args:
        path: the directory.
        named: locations outside the directory that the user has given.

    Raises:
        RunError: there is no run, or its settings cannot be read.
    """
    file, place = path / "config.json", shlex.quote(str(path))
    if not path.exists():
        train = f"sotto train ALGORITHM --out {place}"
        raise RunError(f"there is no run at {path}; train one with: {train}")
    if path.is_file():
        lone = f", or for this file alone: sotto verify {place}" if path.suffix == ".json" else ""
        raise RunError(f"{path} is a file; give the directory of its run{lone}")
    if not file.is_file():
        # An evaluation, a campaign or a service.
        certified = (path / "certificate.json").is_file()
        instead = f", or read its certificate with: sotto certificate {place}" if certified else ""
        if any(path.glob("*/config.json")):
            instead = f", or compare the runs in it with: sotto runs {place}"
        raise RunError(
            f"{path} is not a run directory: it has no config.json; give the --out of a "
            f"training{instead}"
        )
    require_regular(path)
    if file.stat().st_size > _LARGEST_SETTINGS:
        raise RunError(f"{file} is larger than the settings of any run; restore it")
    settings = read_model(file, RunSettings)
    return Experiment(path, settings, _runs(path, settings, named), named)


def _runs(path: Path, settings: RunSettings, named: Named) -> tuple[Run, ...]:
    if len(settings.seeds) == 1:
        return (Run(path, settings, named),)
    return tuple(
        Run(
            path / f"seed-{seed}",
            settings.model_copy(
                update={
                    "run_id": f"{settings.run_id}-{seed}",
                    "seeds": (seed,),
                    "config": settings.config | {"seed": seed},
                }
            ),
            named,
        )
        for seed in settings.seeds
    )
