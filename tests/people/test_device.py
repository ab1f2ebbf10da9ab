"""A device computes its own update: the service gets the same as if it had the trajectory."""

import base64
import json

import httpx
import jax
import numpy as np
import pytest
from live import SLOTS, STEPS, World, started

from sotto.keys import new_key
from sotto.people import campaign as campaigns
from sotto.people.campaign import Terms
from sotto.people.client import CampaignRefused, Person
from sotto.people.desk import Desk
from sotto.people.device import Device
from sotto.people.plan import CampaignPlan
from sotto.people.units import read_trajectory

CLIP = 0.05


def numbers_of(update: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(update), "<f4")


@pytest.fixture
def live(tmp_path):
    with started(tmp_path, Terms(gives="update"), clip_norm=CLIP) as found:
        yield found


class Spy(httpx.BaseTransport):
    """Passes requests on, and keeps their bodies."""

    def __init__(self) -> None:
        self._under, self.bodies = httpx.HTTPTransport(), {}

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.bodies[request.url.path] = request.content
        return self._under.handle_request(request)


def test_the_trajectory_stays_on_the_device(live):
    spy = Spy()
    with Person(live.url, live.tokens[0], seed=0, transport=spy) as one:
        assert one.live(World())["kept"]
        assert one.give_again()["repeated"]
    sent = json.loads(spy.bodies["/v1/contributions"])
    assert set(sent) == {"place", "update"}
    # It is clipped before it leaves.
    assert (
        0.99 * CLIP < np.linalg.norm(numbers_of(sent["update"])) <= CLIP
    )  # clipped before it leaves
    assert all(len(body) < 3 for path, body in spy.bodies.items() if path != "/v1/contributions")


def test_it_is_what_the_service_computes_from_the_trajectory(live):
    facts = Desk(live.campaign, live.store, lambda: 0.0).facts()
    plan = CampaignPlan(live.campaign)
    rng = np.random.default_rng(0)
    given = {
        "observations": rng.normal(size=(4, 2)).tolist(),
        "actions": [0, 1, 1],
        "rewards": [0.0, 1.0, -1.0],
        "terminated": True,
    }
    state = Desk(live.campaign, live.store, lambda: 0.0).state(0)
    update = numbers_of(Device(facts).update(state, given, 0))

    with_trajectories = live.campaign.settings.model_copy(update={"terms": Terms()})
    same = CampaignPlan(campaigns.Campaign(live.campaign.path, with_trajectories))
    trajectory = read_trajectory(given, plan.env, plan.config.steps_per_user)
    computed, _ = same.release(1).local(plan.first, trajectory, new_key(0))
    whole = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(computed["policy"])])
    expected = whole * min(1.0, CLIP / np.linalg.norm(whole))
    np.testing.assert_allclose(update, expected, rtol=1e-4, atol=1e-6)


def test_a_campaign_of_updates_learns_from_them(live):
    live.live(*range(SLOTS))
    assert live.updater.step()
    assert live.store.version() == 1
    with live.person(SLOTS) as one:
        assert one.live(World())["kept"]  # with the state of version 1


def test_a_version_that_is_over_is_not_used(live):
    live.live(0)
    with live.person(1) as one:
        place = one.take_place()
        live.now += 60 * live.campaign.settings.terms.release_minutes + 1
        assert live.updater.step()
        for read in (one._state_of, one._policy_of):
            with pytest.raises(CampaignRefused) as refused:
                read(place["version"])
            assert refused.value.code == "place-closed"


@pytest.mark.parametrize("ends", [True, False])
def test_a_trajectory_says_whether_its_world_has_ended(tmp_path, ends):
    """Where it was only cut off, what would have followed has a value."""

    class Ending(World):
        def step(self, action):
            return *super().step(action)[:2], ends

    spy = Spy()
    with started(tmp_path) as live, Person(live.url, live.tokens[0], transport=spy) as one:
        assert one.live(Ending())["kept"]
    sent = json.loads(spy.bodies["/v1/contributions"])
    assert (sent["terminated"], len(sent["rewards"])) == (ends, 1 if ends else STEPS)


def test_campaigns_of_trajectories_have_no_learning_settings(tmp_path):
    with started(tmp_path) as live:
        assert "learning" not in live.get(0, "/v1/campaign").json()
