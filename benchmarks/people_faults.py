"""Faults of the whole service of live people, and whether anything was lost or used twice.

    python benchmarks/people_faults.py --faults 1000 --database sqlite

It runs two processes of `sotto campaign serve --no-updater` and one or two of `sotto campaign
update` on one database, lets simulated people take part over a network that loses, repeats and
delays requests, and injects one fault after the other at random moments. After each fault it starts
again whatever died, waits until the service answers, and compares the database, the ledger, the
policies and the certificate with each other and with what people were told (`faulty.inspection`).
When a campaign has made its releases, the next one begins. Full disks, clock steps and killed
processes are real; the machine itself does not lose power. PostgreSQL is a server of its own.
"""

import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import tyro
from faulty.crowd import Crowd
from faulty.injection import Faults
from faulty.inspection import Inspector
from faulty.service import UPDATERS, WEB, Nursery, Service

from sotto.algorithms.dppg.config import DPPGConfig
from sotto.people import campaign as campaigns
from sotto.people import start
from sotto.people.campaign import Campaign, Terms
from sotto.people.errors import CampaignError, StoreUnavailable
from sotto.people.spaces import Spaces
from sotto.privacy.errors import PrivacyError

SLOTS, STEPS = 3, 3
_STUCK_SECONDS = 60.0
_RECOVERY_SECONDS = 30.0
_PEOPLE = 6  # times the number of places
_TERMS: list[tuple[Terms, dict[str, Any]]] = [
    (Terms(gives="update"), {"noise_multiplier": 0.1, "correlated_noise": False, "hidden": (64,)}),
    (Terms(acts="server"), {"target_epsilon": 2.0}),
    (
        Terms(),
        {
            "target_epsilon": 2.0,
            "correlated_noise": False,
            "participations": 2,
            "min_separation": 2,
        },
    ),
]


@dataclass
class Settings:
    """Which faults are injected."""

    faults: int = 100
    """Number of faults."""
    database: Literal["sqlite", "postgresql"] = "sqlite"
    """Database of the campaigns. PostgreSQL's programs must be installed."""
    updates: int = 16
    """Number of releases of a campaign."""
    seed: int = 0
    """Seed of people, network and faults."""
    minutes: float = 60.0
    """Time after which no further fault is injected."""
    json: bool = False
    """Print one JSON object instead of text."""


@dataclass
class Report:
    """What happened.

    Attributes:
        faults: number of faults of each kind.
        violations: a sentence for each broken promise.
        network: number of requests with each fate.
        answers: number of answers of each kind.
        releases: number of releases made, and lost with their updater.
        kept: number of acknowledged contributions.
        ended: number of processes that ended by themselves, by their last words, and of tracebacks.
        seconds: duration.
    """

    faults: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    network: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    releases: Counter[str] = field(default_factory=Counter)
    kept: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


class Trial:
    """One campaign under faults."""

    def __init__(
        self,
        nursery: Nursery,
        server: Any,
        folder: Path,
        number: int,
        settings: Settings,
        chance: random.Random,
        pace: float,
    ) -> None:
        self._random, self._pace = chance, pace
        where = None if server is None else server.new_database()
        self.campaign = _new_campaign(folder, number, settings.updates, where)
        self.store = self.campaign.open_store()
        self._tokens = tokens = self.store.enrol(1 + _PEOPLE * SLOTS * settings.updates)
        self.service = Service(nursery, folder, self.campaign.path, where, tokens[0])
        files = [self.campaign.path / f"{one}.sqlite" for one in ("people", "ledger")]
        self.faults = Faults(
            self.service, self.store, server, files if server is None else [], chance, pace
        )
        self.inspector = Inspector(self.campaign, self.store)
        self.restart()
        self.crowd = Crowd(self.campaign, tokens, self.service.ports, chance.randrange(2**31))
        self._progress = (-1, time.monotonic())

    def restart(self) -> None:
        """Starts what died, and waits until a web process answers."""
        if not self.service.running(UPDATERS):
            self.service.start(UPDATERS[0])
        for name in WEB:
            self.service.start(name)
        self.service.wait(WEB, lambda answers: answers > 0)

    def fault(self) -> str:
        """Injects a fault at a random moment; returns its name."""
        time.sleep(self._pace * self._random.uniform(0.0, 0.4))
        names = [*self.faults.all]
        name = self._random.choices(names, [self.faults.all[one][0] for one in names])[0]
        self.faults.all[name][1]()
        self.service.set_time(self.service.now.offset + self._random.uniform(0, 5))
        return name

    def check(self) -> list[str]:
        """Returns violations of what holds at any moment."""
        deadline = time.monotonic() + _RECOVERY_SECONDS
        while True:
            try:
                found = self.inspector.check(self.crowd.told)
                version = self.store.version()
                break
            except (CampaignError, PrivacyError) as error:
                if time.monotonic() > deadline:
                    return [f"the campaign cannot be read: {error}"]
                time.sleep(0.1)  # it may still recover
        found += self.crowd.told.wrong
        self.crowd.told.wrong.clear()
        if version != self._progress[0]:
            self._progress = (version, time.monotonic())
        elif time.monotonic() - self._progress[1] > _STUCK_SECONDS and not self._goes_on(version):
            found.append(f"no release after version {version}, although everything works")
        return found

    def _goes_on(self, version: int) -> bool:
        """Returns whether the next release is made while no fault happens."""
        self._progress = (version, time.monotonic())
        while time.monotonic() - self._progress[1] < 2 * _STUCK_SECONDS:
            with suppress(StoreUnavailable):
                if self.store.version() != version:
                    return True
            self.restart()
            self.faults.end_lease()
            time.sleep(1)
        return False

    @property
    def finished(self) -> bool:
        """Whether all releases are made."""
        try:
            return self.store.version() == self.campaign.config.num_updates
        except StoreUnavailable:
            return False

    def end(self, report: Report) -> None:
        """Checks once more when everything works again, and ends the campaign."""
        self.crowd.close()
        self.restart()
        self.service.wait(WEB, lambda answers: answers == len(WEB))
        report.violations += self.check()
        version = self.store.version()
        for name in WEB:
            said = (self.service.facts(name) or {}).get("version")
            if said not in (version, version + 1):
                report.violations.append(f"{name} says version {said} and the database {version}")
        for name, text in self.service.logs().items():
            if any(token in text for token in self._tokens):
                report.violations.append(f"the log of {name} has a token")
            report.ended[f"{name.split()[0]}: traceback in the log"] += text.count("Traceback")
        counts = self.store.counts()
        report.releases.update(made=counts.made, lost=counts.lost)
        report.network.update(self.crowd.network)
        report.answers.update(self.crowd.told.answers)
        report.kept += len(self.crowd.told.kept)
        report.ended.update(self.service.ended)

    def close(self) -> None:
        """Ends all processes."""
        self.crowd.close()
        self.service.close()
        self.inspector.close()
        self.store.close()


def _new_campaign(folder: Path, number: int, updates: int, where: str | None) -> Campaign:
    terms, changes = _TERMS[number % len(_TERMS)]
    fields: dict[str, Any] = {
        "env_id": "campaign",
        "population": "real",
        "users_per_update": SLOTS,
        "steps_per_user": STEPS,
        "total_steps": SLOTS * STEPS * updates,
        "delta": 1e-3,
        "one_episode": True,
        "hidden": (4,),
        "evaluation_episodes": 0,
    }
    short = Terms(**asdict(terms) | {"place_minutes": 0.5, "release_minutes": 3.0})
    settings = campaigns.new_settings(
        "faults",
        Spaces.model_validate({"observations": 2, "actions": 2}),
        DPPGConfig(**fields | changes),
        short,
        where,
    )
    return start.create(folder / "campaign", settings, where)


def inject(
    settings: Settings,
    server: Any,
    nursery: Nursery,
    say: Callable[[str], None] = lambda _text: None,
    pace: float = 1.0,
) -> Report:
    """Injects faults and returns what happened.

    Args:
        settings: how many, and where.
        server: PostgreSQL server (`tests/postgres.py`); None for SQLite.
        nursery: process that starts the services.
        say: shows the progress.
        pace: factor of the durations of faults.
    """
    report, began = Report(), time.monotonic()
    chance = random.Random(settings.seed)
    number = 0
    with ExitStack() as stack:
        while report.faults.total() < settings.faults and not _late(settings, began):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sotto-")))
            trial = Trial(nursery, server, folder, number, settings, chance, pace)
            try:
                while report.faults.total() < settings.faults and not trial.finished:
                    if _late(settings, began):
                        break
                    name = trial.fault()
                    report.faults[name] += 1
                    trial.restart()
                    found = [f"after {name}, campaign {number}: {one}" for one in trial.check()]
                    report.violations += found
                    for one in found:
                        say(f"VIOLATION {one}")
                trial.end(report)
            finally:
                trial.close()
            number += 1
            say(
                f"{report.faults.total()} faults in {time.monotonic() - began:.0f} s, "
                f"{report.releases}, {len(report.violations)} violations"
            )
    report.seconds = time.monotonic() - began
    return report


def _late(settings: Settings, began: float) -> bool:
    return time.monotonic() - began > 60 * settings.minutes


def main(settings: Settings) -> int:
    """Injects faults and prints what happened; returns 1 if anything was violated."""
    server: Any = None
    nursery = Nursery()
    if settings.database == "postgresql":
        sys.path.append(str(Path(__file__).parents[1] / "tests"))
        from postgres import Server  # type: ignore[import-not-found]

        server = Server()
    try:
        report = inject(
            settings, server, nursery, lambda text: print(text, file=sys.stderr, flush=True)
        )
    finally:
        nursery.close()
        if server is not None:
            server.stop()
    found = {name: dict(value) if isinstance(value, Counter) else value
             for name, value in vars(report).items()}  # fmt: skip
    if settings.json:
        print(json.dumps(found, indent=2))
    else:
        for name, value in found.items():
            print(f"{name}:", *(f"\n  {k}: {v}" for k, v in value.items())
                  if isinstance(value, dict) else (value,))  # fmt: skip
    return bool(report.violations)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Settings, description=__doc__)))
