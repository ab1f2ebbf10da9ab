"""`sotto campaign`: private learning from people who come one after the other."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from sotto.algorithms.dppg.config import DPPGConfig
from sotto.cli.terminal.options import Budget, Json, RunPath
from sotto.cli.terminal.output import print_json
from sotto.cli.terminal.parsing import command, flags_given, parse
from sotto.cli.terminal.settings import flags_of
from sotto.errors import RunError, visible
from sotto.extras import require
from sotto.people import campaign as campaigns
from sotto.people import recipe
from sotto.people.campaign import Campaign, Terms
from sotto.people.errors import CampaignError
from sotto.people.spaces import Spaces
from sotto.privacy.bounds import guarantee
from sotto.privacy.errors import LedgerCorrupt, LedgerMismatch, LedgerUnavailable
from sotto.privacy.ledger.shared import SharedBudget

Database = Annotated[
    str | None,
    arg(
        help="SQLAlchemy URL of a PostgreSQL database that several machines share. The default is "
        "files in the directory. Give it again with every command."
    ),
]


@dataclass(frozen=True)
class Start:
    """Facts about a new campaign."""

    spaces: Path | None = None
    """JSON file with the number of observations and the actions, such as {"observations": 4,
    "actions": 2}. Give it, or recipe."""
    recipe: str | None = None
    """Environment written in JAX, such as CartPole-v1. Its spaces, and the settings of sotto train
    dppg for it, are the defaults. This is for trials with simulated people."""
    name: str = "campaign"
    """Name that people see."""
    updates: int = 100
    """Number of updates of the policy, which is fixed from the start."""
    database: str | None = None
    """SQLAlchemy URL of a PostgreSQL database that several machines share. The default is files in
    the directory."""
    budget: str | None = None
    """File or SQLAlchemy URL of a budget that the campaign shares with other products (sotto budget
    create). Whoever has spent it takes part no more. Give it again with serve and update."""
    json: bool = False
    """Print one JSON object instead of text."""


_RESTART_SECONDS = 2.0
_MUST_STOP = 4  # exit code of an updater that must not go on
_HIDDEN = {  # settings of DPPG that have no flag here, and why
    **{name: why for name, (_, why) in campaigns.FIXED.items()},
    "env_id": "people live in the world; --spaces describes it",
    "total_steps": "give --updates",
    "evaluation_episodes": "there is no simulator",
    "observation_range": "it is for observation statistics, which a campaign does not have",
    "observation_noise_ratio": "it is for observation statistics, which a campaign does not have",
    "trust_region_radius": "give --clip-norm",
    "trust_region_confidence": "give --clip-norm",
}
_DEFAULTS: dict[str, Any] = {
    "env_id": "campaign",
    "population": "real",
    "one_episode": True,
    "target_epsilon": 1.0,
    "evaluation_episodes": 0,
}


def start(args: list[str]) -> int:
    """Runs `sotto campaign start`."""
    given = flags_given(args)
    env_id = given.get("recipe")
    learning = vars(DPPGConfig(target_epsilon=1.0)) if env_id is None else recipe.settings(env_id)
    default = learning | _DEFAULTS
    if "noise_multiplier" in given and "target_epsilon" not in given:
        default |= {"target_epsilon": None, "noise_multiplier": 1.0}  # the flag replaces it
    start_flags, terms_flags = flags_of(Start), flags_of(Terms)
    learning_flags = flags_of(DPPGConfig, default, _HIDDEN)
    for name, why in _HIDDEN.items():
        if name in given:
            raise ValueError(f"--{name.replace('_', '-')} is not a setting of a campaign: {why}")

    def run(path: RunPath, /, *, start: Any, terms: Any, learning: Any) -> None:
        """Starts a campaign: people take part one after the other, and each trajectory is private.

        The directory gets a ledger with the budget, and a database of people. Then make tokens for
        people and serve the campaign.

        Examples:
          sotto campaign start study --spaces spaces.json --target-epsilon 1 --users-per-update 64
          sotto campaign invite study 1000 > tokens.txt
          sotto campaign serve study
          sotto campaign start trial --recipe CartPole-v1

        Args:
            path: Directory of the new campaign.
        """
        named = vars(learning)
        if (start.spaces is None) == (start.recipe is None):
            raise ValueError("give either --spaces FILE or --recipe ENVIRONMENT")
        if start.updates < 1:
            raise ValueError(f"--updates must be at least 1, got {start.updates}")
        each = named["users_per_update"] * named["steps_per_user"] * named["action_repeat"]
        # Without people or steps the error is about them, and not about their product.
        config = DPPGConfig(**named | {"total_steps": max(1, start.updates * each)})
        spaces = Spaces.read(start.spaces) if start.spaces else recipe.spaces(start.recipe)
        shared = None if start.budget is None else SharedBudget.open(start.budget).budget_id
        settings = campaigns.new_settings(
            start.name, spaces, config, Terms(**vars(terms)), start.database, shared
        )
        require("cryptography")
        from sotto.people.start import create

        made = create(path, settings, start.database, start.budget)
        _announce(made, start.json)

    run.__annotations__ |= {"start": start_flags, "terms": terms_flags, "learning": learning_flags}
    run.__kwdefaults__ = {
        "start": start_flags(
            updates=Start.updates if env_id is None else recipe.num_updates(env_id)
        ),
        "terms": terms_flags(),
        "learning": learning_flags(**default),
    }
    return parse(run, args, "campaign start")


def _announce(made: Campaign, json: bool) -> None:
    config = made.config
    found = {
        "campaign": str(made.path),
        "updates": config.num_updates,
        "people": config.users_per_update * config.num_updates,
        "delta": config.delta,
        "epsilon": config.target_epsilon,
    }
    if json:
        print_json(found)
        return
    print(f"A new campaign in {made.path}: {config.num_updates} updates of the policy.")
    print(f"Each update has {config.users_per_update} places. {config.privacy_unit.sentence()}")
    shared = made.settings.shared_budget is not None
    whom, again = ("--numbers FILE", " --budget PLACE") if shared else ("COUNT", "")
    print(f"Tokens for people:    sotto campaign invite {made.path} {whom}")
    print(f"Token for yourself:   sotto campaign operator {made.path}")
    print(f"Serve it:             sotto campaign serve {made.path}{again}")


@command("campaign serve")
def serve(
    path: RunPath,
    /,
    host: str = "127.0.0.1",
    port: int = 8000,
    tls_certificate: Path | None = None,
    tls_key: Path | None = None,
    trusted_proxies: tuple[str, ...] = (),
    updater: bool = True,
    database: Database = None,
    budget: Budget = None,
    json: Json = False,
) -> None:
    """Serves a campaign over HTTP, with pages for the operator and for people.

    Example:
      sotto campaign serve study --host 0.0.0.0 --tls-certificate cert.pem --tls-key key.pem

    Args:
        path: Directory of the campaign.
        host: Address to listen on; 0.0.0.0 stands for all networks of this machine.
        port: Port to listen on; 0 takes any free port.
        tls_certificate: PEM file of the server's certificate. With it the service uses https.
        tls_key: PEM file of the certificate's private key.
        trusted_proxies: Networks of proxies in front of the service, such as 10.0.0.0/8. Only a
            connection from one of them may say, by X-Forwarded-For, from which address its request
            comes.
        updater: Whether this service also starts the process that makes releases.
    """
    from sotto.people.app import create_app
    from sotto.serving.server import Address, serve

    address = Address(host, port, tls_certificate, tls_key, trusted_proxies)
    address.check()
    found = campaigns.open_campaign(path, database, budget)
    if updater:
        found.ledger_to_charge()  # refuses at once what the updater would refuse
    if address.in_clear_text:
        print(
            f"sotto: tokens and trajectories are sent in clear text over {host}; give "
            "--tls-certificate and --tls-key, or use a proxy with TLS",
            file=sys.stderr,
        )
    app = create_app(found, open_store(found), found.operator.matches)
    with _updating(path, database, budget) if updater else nullcontext():
        serve(app, address, lambda url: _ready(found, url, json))


@contextmanager
def _updating(path: Path, database: str | None, budget: str | None) -> Iterator[None]:
    """Runs an updater in another process meanwhile, and starts it again if it dies.

    One that must not go on is not started again.
    """
    context, over = multiprocessing.get_context("spawn"), threading.Event()

    def start() -> Any:
        given = (path, database, budget, os.getpid())
        process = context.Process(target=_update_beside, args=given, daemon=True)
        process.start()
        return process

    process = start()

    def watch() -> None:
        nonlocal process
        while not over.wait(_RESTART_SECONDS):
            if process.exitcode == _MUST_STOP:
                return
            if not process.is_alive():
                print("sotto: the updater died and is started again", file=sys.stderr, flush=True)
                process = start()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        process.terminate()
        process.join(timeout=20)


def _ready(found: Campaign, url: str, json: bool) -> None:
    if json:
        print_json({"url": url, "campaign": str(found.path)})
    else:
        print(f"Campaign {found.settings.name} at {url}")
        print(f"Dashboard:            {url}/ (token: sotto campaign operator {found.path})")
        print(f"Page for people:      {url}/me")
        print("Serving. Ctrl-C stops the service; the same command continues it.", flush=True)


@command("campaign update")
def update(path: RunPath, /, database: Database = None, budget: Budget = None) -> None:
    """Makes the releases of a campaign until Ctrl-C, where `serve` runs with --no-updater.

    Several such processes may run. One of them has the lease, and another takes over if it dies.

    Example:
      sotto campaign update study --database postgresql+psycopg://host/study

    Args:
        path: Directory of the campaign.
    """
    _update(path, database, budget)


def _update(
    path: Path, database: str | None, budget: str | None, parent: int | None = None
) -> None:
    """Makes releases until SIGTERM or SIGINT, and finishes the one that has begun.

    It also ends when the process `parent` that started it has died.
    """
    from sotto.people.updater import run
    from sotto.serving.traffic.logs import log_safely, without_values

    stopped = False

    def stop(_number: int, _frame: Any) -> None:
        nonlocal stopped
        stopped = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    log_safely()
    campaign = campaigns.open_campaign(path, database, budget)
    if parent is None:
        print(f"Making the releases of {path} as people give. Ctrl-C stops it.", flush=True)
    try:
        run(campaign, lambda: stopped or parent not in (None, os.getppid()))
    except (CampaignError, LedgerCorrupt, LedgerMismatch):  # they name nobody
        raise
    except Exception as error:
        raise RunError(f"the updater died: {without_values(error)}") from None


def _update_beside(path: Path, database: str | None, budget: str | None, parent: int) -> None:
    """Runs as the updater of the service whose process is `parent`."""
    try:
        _update(path, database, budget, parent)
    except (ValueError, OSError) as error:
        print(f"sotto: {visible(str(error))}", file=sys.stderr, flush=True)
        again = isinstance(error, RunError | LedgerUnavailable | OSError)  # also StoreUnavailable
        sys.exit(1 if again else _MUST_STOP)


@command("campaign status")
def status(path: RunPath, /, database: Database = None, json: Json = False) -> None:
    """Prints how far a campaign is: people, updates, places and the certificate's epsilon.

    Example:
      sotto campaign status study

    Args:
        path: Directory of the campaign.
    """
    import time

    from sotto.people.desk import Desk

    found = campaigns.open_campaign(path, database)
    overview = Desk(found, open_store(found), time.time).overview()
    if json:
        print_json(overview)
        return
    people, release, privacy = (overview[name] for name in ("people", "release", "privacy"))
    print(f"{overview['name']}: {overview['version']} of {overview['horizon']} updates are made.")
    print(
        f"People: {people['enrolled']} enrolled, {people['took_part']} took part, "
        f"{people['withdrew']} withdrew."
    )
    print(
        f"Places of the open release: {release['given']} given and {release['taken']} taken, of "
        f"{release['slots']}."
    )
    most = guarantee(privacy["epsilon"], privacy["delta"])
    print(f"Each person pays at most {most}. {privacy['unit']}")


def open_store(found: Campaign) -> Any:
    """Opens the database of a campaign, with its key."""
    require("cryptography")
    return found.open_store()
