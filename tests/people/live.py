"""A small campaign behind a real server, with simulated people and an updater by hand."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from served import running

from sotto.algorithms.dppg.config import DPPGConfig
from sotto.people import campaign as campaigns
from sotto.people import start
from sotto.people.app import create_app
from sotto.people.campaign import Campaign, Terms
from sotto.people.client import Person
from sotto.people.database.store import CampaignDatabase
from sotto.people.spaces import Spaces
from sotto.people.updater import Updater
from sotto.privacy.ledger.shared import SharedBudget
from sotto.serving.traffic.limits import Limits

SPACES = Spaces(observations=2, actions=2)
STEPS, SLOTS, UPDATES = 3, 2, 4
LIMITS = Limits(requests_per_second=1e6, burst=10**6, stranger_requests_per_second=1e6)


class World:
    """Two numbers; the action 1 is rewarded."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def reset(self) -> list[float]:
        return self._rng.normal(size=2).tolist()

    def step(self, action: Any) -> tuple[list[float], float, bool]:
        return self._rng.normal(size=2).tolist(), float(action == 1), False


def config(**changes: Any) -> DPPGConfig:
    fields: dict[str, Any] = {
        "env_id": "campaign",
        "population": "real",
        "users_per_update": SLOTS,
        "steps_per_user": STEPS,
        "total_steps": SLOTS * STEPS * UPDATES,
        "target_epsilon": 2.0,
        "delta": 1e-3,
        "one_episode": True,
        "hidden": (4,),
    }
    return DPPGConfig(**fields | changes)


class Live:
    """A running campaign."""

    def __init__(self, url: str, campaign: Campaign, store: CampaignDatabase) -> None:
        self.url, self.campaign, self.store = url, campaign, store
        self.now = 0.0
        self.http = httpx.Client(base_url=url, trust_env=False)
        self.tokens = store.enrol(12)
        self.updater = self.new_updater()

    def new_updater(self) -> Updater:
        return Updater(self.campaign, lambda: self.now)

    def person(self, number: int) -> Person:
        return Person(self.url, self.tokens[number], seed=number, patience_seconds=1.0)

    def live(self, *numbers: int) -> None:
        """Lets people give a trajectory each."""
        for number in numbers:
            with self.person(number) as one:
                one.live(World(number))

    def post(self, number: int, path: str, body: dict[str, Any]) -> httpx.Response:
        return self.http.post(path, json=body, headers=self.headers(number))

    def get(self, number: int, path: str) -> httpx.Response:
        return self.http.get(path, headers=self.headers(number))

    def headers(self, number: int) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[number]}"}


@contextmanager
def started(
    folder: Path, terms: Terms | None = None, budget: SharedBudget | None = None, **changes: Any
) -> Iterator[Live]:
    """Starts and serves a campaign, which may share the budget in `folder / "people.budget"`."""
    shared = None if budget is None else budget.budget_id
    settings = campaigns.new_settings(
        "test", SPACES, config(**changes), terms or Terms(), None, shared
    )
    place = None if budget is None else str(folder / "people.budget")
    campaign = start.create(folder / "campaign", settings, named_budget=place)
    store = campaign.open_store()
    made: list[Live] = []
    app = create_app(
        campaign, store, campaign.operator.matches, LIMITS, lambda: made[0].now if made else 0.0
    )
    with running(app) as url:
        made.append(Live(url, campaign, store))
        yield made[0]
        made[0].http.close()
    store.close()


def refused(response: httpx.Response, status: int, code: str) -> None:
    """Checks that a request was refused in this way."""
    assert (response.status_code, response.json()["error"]) == (status, code)
