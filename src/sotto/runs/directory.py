"""The run directory: where everything about a run lies, and the settings it was started with.

```
runs/x/  config.json  ledger.sqlite  certificate.json  metrics.jsonl  tensorboard/
         checkpoints/  figures/  report.html
```

Several seeds trained side by side are an *experiment*: `runs/x/seed-K/` is a full run directory for
each of them, and `runs/x/config.json` names them all. `open_experiment` accepts either.

`config.json` is written last, so a directory that has one is complete: a training killed while it
made its directory has released nothing, and is started again rather than resumed.
"""

import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from sotto.algorithms.base import AnyLedger
from sotto.errors import RunError
from sotto.files import write_model
from sotto.privacy.errors import LedgerUnavailable
from sotto.regular import require_regular
from sotto.runs import marks
from sotto.runs.registry import algorithm_named, config_from_json

_LEDGER = "ledger.sqlite"
_MOST_SEEDS = 10_000
_LARGEST_SETTINGS = 2**20  # bytes of config.json
_VERSIONS = ("sotto", "jax", "jax-privacy", "dp-accounting", "equinox", "optax", "gymnasium")


class RunSettings(BaseModel):
    """What config.json holds: everything needed to go on, to evaluate, and to report.

    Attributes:
        run_id: which run its ledger belongs to; an experiment's runs have ids of their own.
        config: the algorithm's settings, as JSON values.
        preset: which named settings they started from.
        seeds: one for a run, several for an experiment.
        population: "simulated" or "real" people.
        ledger: name of the ledger's file in the run directory, another file's absolute path, or a
            SQLAlchemy URL; None for an algorithm without privacy.
        versions: of the software that started it.
        command: what made it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: Literal[1] = 1
    run_id: str
    algorithm: str
    preset: str | None
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**31, strict=True)], ...] = Field(
        min_length=1, max_length=_MOST_SEEDS
    )
    population: Literal["simulated", "real"]
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
    population: Literal["simulated", "real"],
    ledger: str | None,
    command: str,
    created: str | None = None,
) -> RunSettings:
    """The settings of a run that starts now, on this machine's software.

    Args:
        ledger: a SQLAlchemy URL or a file to keep the ledger in, instead of one in each run
            directory; None where the algorithm has no ledger.
        created: when, ISO 8601 in UTC; None: now.

    Raises:
        RunError: the URL holds a password, which config.json would give away.
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
        created=created or datetime.now(UTC).isoformat(timespec="seconds"),
    )


def ledger_place(ledger: str | None) -> str:
    """What config.json says of where the ledger is: by default, a file in the run directory.

    Raises:
        RunError: a URL with a password in it, or one that cannot be read.
    """
    if ledger is None:
        return _LEDGER
    if "://" not in ledger:
        return str(Path(ledger).absolute())
    try:
        url = make_url(ledger)
    except ArgumentError as error:
        raise RunError(f"--ledger {ledger} is not a SQLAlchemy URL") from error
    if url.password:
        raise RunError(
            "config.json would give away the password in the ledger's URL; leave it out there "
            "and give it to the database driver (for PostgreSQL: PGPASSWORD or ~/.pgpass)"
        )
    return ledger


@dataclass(frozen=True)
class Named:
    """What the user named on this command line, and vouches for.

    A directory may be somebody else's. Nothing that its files name is connected to, imported or
    executed, unless the user names the same.

    Attributes:
        ledger: value of --ledger.
        env_id: value of --env-id.
    """

    ledger: str | None = None
    env_id: str | None = None


NOTHING_NAMED = Named()
"""What is in the directory alone."""


def ledger_location(directory: Path, place: str, named: str | None) -> Path | str:
    """Where a ledger is, as settings in a directory name it.

    Args:
        directory: that holds the settings.
        place: file in the directory, another file's absolute path, or a SQLAlchemy URL.
        named: what the user gave as --ledger.

    Raises:
        RunError: it is not in the directory, and the user did not name it: whoever wrote the
            settings would choose where this program connects to, and sends its passwords.
    """
    inside = "://" not in place and Path(place).name == place
    inside = inside and not (directory / place).is_symlink()
    if not inside and (named is None or ledger_place(named) != place):
        raise RunError(
            f"the ledger of {directory} is elsewhere, at {place}, as its settings say; give "
            f"--ledger {place} if you trust that, for nothing that only a file names is opened"
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
        """The run's seed."""
        return self.settings.seeds[0]

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """One line per chunk of training."""
        return self.path / "metrics.jsonl"

    @property
    def certificate(self) -> Path:
        """The certificate, derived from the ledger."""
        return self.path / "certificate.json"

    @property
    def ledger_location(self) -> Path | str:
        """Where the ledger is.

        Raises:
            RunError: the algorithm has none; or it is elsewhere, and the user did not say so.
        """
        place = self.settings.ledger
        if place is None:
            algorithm = algorithm_named(self.settings.algorithm)
            _, why = algorithm.without_ledger(config_from_json(algorithm, self.settings.config))
            raise RunError(f"{self.path} has no ledger and no certificate of its own: {why}")
        return ledger_location(self.path, place, self.named.ledger)

    def open_ledger(self) -> AnyLedger:
        """The run's ledger.

        Raises:
            LedgerMismatch: it belongs to another run.
            LedgerOlder: checkpoints, metrics or the certificate were made from charges that it
                does not hold.
            LedgerCorrupt, LedgerUnavailable: it is damaged, missing or cannot be read.
        """
        algorithm, place = algorithm_named(self.settings.algorithm), self.ledger_location
        if isinstance(place, Path) and not place.is_file():
            raise LedgerUnavailable(
                f"the ledger of the run {self.path} is missing: there is no file {place}; put it "
                "back from a backup, since without it nothing can be certified or gone on with"
            )
        ledger = algorithm.open_ledger(place, self.settings.run_id)
        marks.refuse_older(self.path, ledger)
        return ledger


@dataclass(frozen=True)
class Experiment:
    """One run, or several seeds trained side by side."""

    path: Path
    settings: RunSettings
    runs: tuple[Run, ...]
    named: Named = NOTHING_NAMED


def create_experiment(
    out: Path, settings: RunSettings, create_ledger: Callable[[Run], object]
) -> Experiment:
    """Makes the directory and its ledgers; the settings are written last.

    Of trainings that start in one place at once, the one that makes the directory wins: whatever is
    in it afterwards is its own, to be removed if nothing comes of it.

    Raises:
        RunError: there is something at `out` already.
    """
    try:
        out.mkdir(parents=True)
    except FileExistsError as error:
        raise RunError(
            f"{out} exists already; give another --out, or --resume to go on with the run in it"
            if (out / "config.json").exists()
            else f"{out} exists and is no run; give another --out, or remove it"
        ) from error
    # The settings were made from this command line.
    named = Named(ledger=settings.ledger, env_id=settings.config.get("env_id"))
    runs = _runs(out, settings, named)
    try:
        for run in runs:
            run.path.mkdir(exist_ok=run.path == out)
            if run.settings.ledger is not None:
                create_ledger(run)
        for run in runs:
            write_model(run.path / "config.json", run.settings)
        if len(runs) > 1:
            write_model(out / "config.json", settings)
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)  # all of it is ours, and nothing was released
        raise
    return Experiment(out, settings, runs, named)


def with_settings(experiment: Experiment, config: dict[str, Any]) -> Experiment:
    """The experiment with other settings of its algorithm; `store` writes them down."""
    settings = experiment.settings.model_copy(update={"config": config})
    runs = _runs(experiment.path, settings, experiment.named)
    return Experiment(experiment.path, settings, runs, experiment.named)


def store(experiment: Experiment) -> None:
    """Writes the settings of all its runs, where they are not what is stored."""
    if open_experiment(experiment.path).settings == experiment.settings:
        return
    for run in experiment.runs:
        write_model(run.path / "config.json", run.settings)
    write_model(experiment.path / "config.json", experiment.settings)


def open_experiment(path: Path, named: Named = NOTHING_NAMED) -> Experiment:
    """The run, or the runs of several seeds, in a directory.

    Args:
        path: of the directory.
        named: what its settings may name outside of it.

    Raises:
        RunError: there is none, or its settings cannot be read.
    """
    file = path / "config.json"
    if not path.is_dir():
        raise RunError(f"there is no run at {path}; train one with: sotto train dppg --out {path}")
    if not file.is_file():
        raise RunError(f"{path} is no run directory: it has no config.json")
    require_regular(path)
    try:
        if file.stat().st_size > _LARGEST_SETTINGS:
            raise RunError(f"{file} is larger than the settings of any run; put it back")
        settings = RunSettings.model_validate_json(file.read_bytes())
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"])) or "the file"
        raise RunError(f"{file} cannot be read: {where}: {problem['msg']}") from error
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
