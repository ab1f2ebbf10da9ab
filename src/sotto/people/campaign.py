"""The directory of a campaign, from which it continues after a restart.

```
DIR/  campaign.json  contributions.key  operator.sha256  certificate.json  withdrawals.txt
      ledger.sqlite  people.sqlite      (or one PostgreSQL database for both)
```

Several machines may serve copies of one directory if they share the database. The directory holds
no tokens. The key in contributions.key encrypts the keys of releases; it is never in the database.
"""

import hashlib
import shlex
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from sotto.algorithms.dppg.algorithm import DPPG
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.settings import Settings
from sotto.errors import RunError
from sotto.files import read_model
from sotto.frozen import FrozenModel
from sotto.people.spaces import Spaces
from sotto.privacy.ledger.entries import canonical, now, versions
from sotto.privacy.ledger.ledger import Ledger
from sotto.runs import marks
from sotto.runs.budgets import give_budget
from sotto.runs.directory import ledger_location, ledger_place
from sotto.runs.registry import config_from_json, config_to_json
from sotto.serving.operator import OperatorToken

if TYPE_CHECKING:
    from sotto.people.database.store import CampaignDatabase

SETTINGS = "campaign.json"
_LEDGER, _PEOPLE = "ledger.sqlite", "people.sqlite"

Gives = Literal["trajectory", "update"]
Acts = Literal["device", "server"]
Minutes = Annotated[float, Field(gt=0, le=1e6)]

FIXED: dict[str, tuple[Any, str]] = {
    "population": ("real", "people are real"),
    "unit": ("trajectory", "each person lives one trajectory"),
    "population_size": (None, "people come by themselves, and are not drawn"),
    "first_policy": (None, "devices begin with the random policy of the plan"),
    "parameter_noise": (0.0, "people follow the released policy"),
    "observation_centre": (None, "the spaces of the campaign have it"),
    "observation_scale": (None, "the spaces of the campaign have it"),
    "observation_statistics": (False, "devices scale observations by public constants"),
    "action_repeat": (1, "devices decide how often they ask"),
    "action_repeat_half_life": (None, "devices decide how often they ask"),
    "stop_at_return": (None, "the horizon is public"),
    "clip_norm_from": (None, "there is no public simulator; give clip_norm"),
}
"""Settings of DPPG that have one value in every campaign, and why."""


@dataclass(frozen=True)
class Terms(Settings):
    """Public terms of a campaign, beside the settings of the learning algorithm."""

    gives: Gives = "trajectory"
    """Kind of a contribution. trajectory: observations, actions and rewards. update: the policy's
    update, which the device computed and clipped; the service clips it again."""
    acts: Acts = "device"
    """Side that chooses actions. device: the device has the policy. server: the device sends each
    observation, and the service answers with an action."""
    place_minutes: Minutes = 60.0
    """Time in minutes after which a place expires whose person gave nothing."""
    release_minutes: Minutes = 1440.0
    """Time in minutes after which a release closes, from its first place on. Empty slots
    count as zero. A release that nobody gave for stays open."""
    fixed_times: bool = False
    """Whether releases close at fixed times instead: at whole multiples of release_minutes since
    midnight of 1 January 1970, UTC. It is the first such time that leaves place_minutes to the
    first place."""

    def check(self) -> None:
        """Refuses terms that contradict each other."""
        if self.acts == "server" and self.gives == "update":
            raise ValueError("a device that computes updates needs the policy; use acts device")


class CampaignSettings(FrozenModel):
    """The contents of campaign.json.

    Attributes:
        campaign_id: name of the campaign in its ledger and its database.
        name: name that people see.
        spaces: what devices observe, and the actions.
        config: settings of DPPG, as JSON values.
        terms: public terms.
        database: None for files in the directory, or a SQLAlchemy URL without a password.
        versions: versions of the software that made it.
        shared_budget: id of the budget that it shares with other products. Its people then enrol
            under the operator's numbers.
    """

    format: Literal[1] = 1
    campaign_id: str
    name: str
    spaces: Spaces
    config: dict[str, Any]
    terms: Terms
    database: str | None
    versions: dict[str, str]
    created: str
    shared_budget: str | None = None

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all settings that releases and promises to people depend on."""
        said = self.model_dump(mode="json", include={"campaign_id", "spaces", "config", "terms"})
        if self.shared_budget is not None:
            said["shared_budget"] = self.shared_budget
        return hashlib.sha256(canonical(said).encode()).hexdigest()


@dataclass(frozen=True)
class Campaign:
    """The directory of a campaign, with its settings."""

    path: Path
    settings: CampaignSettings
    named_database: str | None = None  # what the user gave as --database
    named_budget: str | None = None  # what the user gave as --budget

    @property
    def config(self) -> DPPGConfig:
        """Settings of the learning algorithm."""
        found: DPPGConfig = config_from_json(DPPG(), self.settings.config)
        return found

    @property
    def certificate(self) -> Path:
        """Path of the certificate, which the updater writes."""
        return self.path / "certificate.json"

    @property
    def key(self) -> Path:
        """Path of the key that encrypts the keys of releases."""
        return self.path / "contributions.key"

    @property
    def operator(self) -> OperatorToken:
        """The operator's token, of which the directory holds the hash."""
        return OperatorToken(self.path / "operator.sha256")

    @property
    def ledger_place(self) -> Path | str:
        """Location of the ledger, if the user named a database outside the directory."""
        return self._place(_LEDGER)

    @property
    def people_place(self) -> Path | str:
        """Location of the database of people."""
        return self._place(_PEOPLE)

    def open_store(self) -> "CampaignDatabase":
        """Opens the database of people, whose withdrawals this directory notes.

        Raises:
            CampaignError: the database or the key cannot be used.
        """
        # cryptography is an extra, which the other commands do not need.
        from sotto.people.database.sealing import MasterKey
        from sotto.people.database.store import CampaignDatabase
        from sotto.people.database.withdrawals import Withdrawals

        noted = Withdrawals(self.path / "withdrawals.txt")
        key = MasterKey.open(self.key)
        return CampaignDatabase.open(self.people_place, self.settings.campaign_id, key, noted)

    def open_ledger(self) -> Ledger:
        """Opens the ledger, and refuses one of another campaign or older than the certificate."""
        ledger = Ledger.open(self.ledger_place, self.settings.campaign_id)
        marks.refuse_older(self.path, ledger)
        return ledger

    def ledger_to_charge(self) -> Ledger:
        """Opens the ledger as `open_ledger` does, with the budget that it shares.

        Raises:
            PrivacyError: the campaign shares a budget that the user did not give, or another one.
        """
        ledger = self.open_ledger()
        give_budget(ledger, self.named_budget)
        return ledger

    def _place(self, file: str) -> Path | str:
        where = self.settings.database
        return ledger_location(self.path, where or file, self.named_database, "--database")


def new_settings(
    name: str,
    spaces: Spaces,
    config: DPPGConfig,
    terms: Terms,
    database: str | None,
    shared_budget: str | None = None,
) -> CampaignSettings:
    """Returns the settings of a new campaign.

    Raises:
        ValueError: the settings cannot be used with real people who come one after the other.
        RunError: the database's URL holds a password, which campaign.json would reveal.
    """
    check(config, terms)
    return CampaignSettings(
        campaign_id=uuid.uuid4().hex,
        name=name,
        spaces=spaces,
        config=config_to_json(DPPG(), config),
        terms=terms,
        database=None if database is None else ledger_place(database),
        versions=versions(),
        created=now(),
        shared_budget=shared_budget,
    )


def check(config: DPPGConfig, terms: Terms) -> None:
    """Refuses settings that live people cannot be served with.

    Raises:
        ValueError: names the setting.
    """
    refused = {
        "critic": (
            config.critic == "public",
            "there is no public simulator",
        ),
        "local_update": (
            config.local_update not in ("one-step", "adam"),
            "people follow the released policy; use one-step or adam",
        ),
        **{name: (getattr(config, name) != one, why) for name, (one, why) in FIXED.items()},
        "correlated_noise": (
            config.correlated_noise and config.participations > 1,
            "noise that is correlated over releases is forgotten at a restart, and people who come "
            "back would need it; use --no-correlated-noise",
        ),
    }
    # Everybody may come, so there can be as many people as places.
    if config.delta * (places := config.users_per_update * config.num_updates) >= 1:
        raise ValueError(
            f"delta {config.delta:g} is not below 1 / places = {1 / places:.3g}, and a different "
            "person may take each place; choose a smaller delta"
        )
    for name, (wrong, why) in refused.items():
        if wrong:
            raise ValueError(f"{name} does not fit a campaign: {why}")
    if terms.gives == "update" and len(config.noise_ratios) > 1:
        raise ValueError(
            "a device's update is the policy's only; leave out critic, adaptive_clip and "
            "private_return"
        )


def is_campaign(path: Path) -> bool:
    """Returns whether a directory holds a campaign."""
    return (path / SETTINGS).is_file()


def open_campaign(
    path: Path, named_database: str | None = None, named_budget: str | None = None
) -> Campaign:
    """Returns the campaign in a directory.

    Args:
        path: the directory.
        named_database: value of --database; one that only campaign.json names is not opened.
        named_budget: value of --budget.

    Raises:
        RunError: there is no campaign, or its settings cannot be read.
    """
    file, place = path / SETTINGS, shlex.quote(str(path))
    if not file.is_file():
        raise RunError(
            f"there is no campaign at {path}; start one with: sotto campaign start {place}"
        )
    settings = read_model(file, CampaignSettings)
    return Campaign(path, settings, named_database, named_budget)
