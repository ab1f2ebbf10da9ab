"""The start of a campaign: its directory, its ledger and its database."""

from pathlib import Path

from sotto.algorithms.dppg.training import create_ledger
from sotto.errors import RunError
from sotto.files import private_directory, write_model
from sotto.people.campaign import SETTINGS, Campaign, CampaignSettings
from sotto.people.database.sealing import MasterKey
from sotto.people.database.store import CampaignDatabase
from sotto.people.plan import CampaignPlan, Published
from sotto.people.units import packed
from sotto.privacy.certificates.derive import derive
from sotto.privacy.ledger.entries import json_values
from sotto.privacy.ledger.shared import SharedBudget
from sotto.runs.budgets import give_budget


def create(
    path: Path,
    settings: CampaignSettings,
    named_database: str | None = None,
    named_budget: str | None = None,
) -> Campaign:
    """Makes the directory of a campaign, with its ledger and its database.

    A budget is given if the settings say that the campaign shares it with other products.

    The settings are written last, so that a directory that has them is complete.

    Raises:
        RunError: `path` exists and is not empty.
        PrivacyError: the budget does not cover the campaign, or the ledger cannot be written.
        CampaignError: the database cannot be written.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(f"{path} exists already; give another directory")
    campaign = Campaign(path, settings, named_database, named_budget)
    with private_directory(path):
        _create(campaign)
    write_model(path / SETTINGS, settings)
    (path / SETTINGS).chmod(0o600)
    return campaign


def _create(campaign: Campaign) -> None:
    """Makes the ledger and the database of a new campaign, with policy version 0."""
    plan, config, terms = CampaignPlan(campaign), campaign.config, campaign.settings.terms
    if campaign.named_budget is not None:
        places = config.users_per_update * config.num_updates
        people = -(-places // config.participations)
        delta = SharedBudget.open(campaign.named_budget).allowance.delta
        if delta * people >= 1:
            raise RunError(
                f"the campaign needs {people:,} people or more, which are too many for the delta "
                f"of {delta:g} of the shared budget; use fewer updates or places, or create a "
                f"budget with a delta of {1 / (10 * people):.1g} or less"
            )
    ledger = create_ledger(config, campaign.ledger_place, campaign.settings.campaign_id)
    give_budget(ledger, campaign.named_budget)
    if (ledger.joined or {"budget": None})["budget"] != campaign.settings.shared_budget:
        raise RunError("the settings of the campaign name another shared budget than the one given")
    # The stream is opened here, so that a budget that does not cover it is refused at once.
    plan.open(ledger, plan.first)
    facts = {
        "certificate": json_values(derive(ledger)),
        "returns": [],
        "settings": campaign.settings.fingerprint,
    }
    CampaignDatabase.create(
        campaign.people_place,
        campaign.settings.campaign_id,
        slots=config.users_per_update,
        horizon=config.num_updates,
        participations=config.participations,
        min_separation=config.separation if config.participations > 1 else None,
        place_seconds=60 * terms.place_minutes,
        release_seconds=60 * terms.release_minutes,
        contribution_bytes=len(packed(plan.unit)),
        master=MasterKey.create(campaign.key),
        first_policy=Published(facts, packed(plan.first)).to_bytes(),
        fixed_times=terms.fixed_times,
    )
