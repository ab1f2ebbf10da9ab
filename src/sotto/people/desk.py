"""Answers of the service, as blocking functions of requests, the database and the campaign."""

import hashlib
import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from sotto.people.campaign import Campaign
from sotto.people.database.records import Place
from sotto.people.database.releases import closed
from sotto.people.database.store import CampaignDatabase
from sotto.people.errors import BadContribution
from sotto.people.plan import CampaignPlan, Published, require_as_started
from sotto.people.policy import NumpyPolicy, as_json
from sotto.people.units import LARGEST, packed, read_trajectory, read_update

WITHDRAWN = (
    "You take no further part. The receipt says from which releases your contribution was deleted, "
    "and of which it is a part, because they are made or have begun. Their policies stay as they "
    "are. They are private, so they tell little about you; the epsilon that they cost is not "
    "refunded."
)
_COLLECTED = {
    "trajectory": "For each place: what your device observed, the actions, and the rewards. It is "
    "encrypted, and deleted when the release is made.",
    "update": "For each place: the update of the policy that your device computed. It is "
    "encrypted, and deleted when the release is made.",
}
_COLLECTED_ACTING = (
    " The service chooses the actions: your device sends it each observation, also if you then "
    "give nothing. It reads the observation for the action, and stores it only as part of what you "
    "give."
)
_ADVERSARY = {
    "trajectory": "The operator of this service could read your trajectory until its release is "
    "made, and later from a copy that it kept. Everybody else sees released policies, and how many "
    "people took part.",
    "update": "The operator of this service could read your device's update until its release is "
    "made, and later from a copy that it kept; an update tells much about its trajectory. "
    "Everybody else sees released policies, and how many people took part.",
}
_ADVERSARY_ACTING = (
    " The operator could also read each observation for which your device asks for an action, as "
    "it comes and later from a copy, also if you then give nothing."
)


class Desk:
    """Answers for people and the operator. Released policies are kept in memory.

    Args:
        campaign: the campaign.
        store: its database.
        clock: returns the time in seconds.

    Raises:
        CampaignMismatch: campaign.json was changed after the campaign began.
    """

    def __init__(
        self, campaign: Campaign, store: CampaignDatabase, clock: Callable[[], float]
    ) -> None:
        require_as_started(campaign, store)
        self.plan = CampaignPlan(campaign)
        self._campaign, self._store, self._clock = campaign, store, clock
        self._published = lru_cache(maxsize=4)(self._read_published)
        self.policy_json = lru_cache(maxsize=4)(self._read_policy_json)
        self._policy = lru_cache(maxsize=4)(self._read_policy)
        self._newest = -1  # version of the newest policy in memory
        self._places: dict[tuple[str, int], Place] = {}  # of one release
        self._release = -1

    @property
    def shares_budget(self) -> bool:
        """Whether the campaign shares a budget, so that people have the operator's numbers."""
        return self._campaign.settings.shared_budget is not None

    @property
    def collected(self) -> str:
        """Words for a person on what the service collects about them."""
        acting = _COLLECTED_ACTING if self.plan.acts == "server" else ""
        return _COLLECTED[self.plan.gives] + acting

    @property
    def _adversary(self) -> str:
        """Words for people on who could see what."""
        acting = _ADVERSARY_ACTING if self.plan.acts == "server" else ""
        return _ADVERSARY[self.plan.gives] + acting

    def _read_published(self, version: int) -> Published:
        return Published.from_bytes(self._store.policy(version)[1])

    def keep(self, place: Place, person: int) -> None:
        """Keeps a person's place in memory, with its secret, while its release is not made."""
        if place.release != self._release:  # the others are over, and so are their secrets
            self._places, self._release = {}, place.release
        self._places[place.id, person] = place

    def forget(self, person: int) -> None:
        """Forgets the places of a person who withdrew, who gets no further actions for them."""
        for known in list(self._places):
            if known[1] == person:
                self._places.pop(known, None)

    def knows(self, place_id: str, person: int) -> bool:
        """Returns whether the place, and the policy of its version, are in memory."""
        place = self._places.get((place_id, person))
        return place is not None and place.release == self._newest

    def _place(self, place_id: str, person: int) -> Place:
        """Returns a person's place, from memory if it was read before."""
        found = self._places.get((place_id, person))
        if found is None:
            found = self._store.place(place_id, person)
            self.keep(found, person)
        return found

    def action(self, given: dict[str, Any], place_id: str, person: int) -> int | list[float]:
        """Returns the action for an observation, by the policy of the place's version.

        Raises:
            BadContribution: step or observation is out of range.
            UnknownPlace, PlaceClosed: the place is not this person's, or is closed.
        """
        place, step = self._place(place_id, person), given.get("step")
        if self._clock() >= place.expires:  # it is still in memory
            raise closed()
        most = self.plan.config.steps_per_user - 1
        if not isinstance(step, int) or not 0 <= step <= most:
            raise BadContribution(f"step is a whole number from 0 to {most}")
        seen = [given.get("observation")]
        found: int | list[float] = _actions(self._policy(place.release), place, step, seen)[0]
        return found

    def certificate(self) -> dict[str, Any]:
        """Returns the certificate as of the last release."""
        found: dict[str, Any] = self._published(self._store.version()).facts["certificate"]
        return found

    def _read_policy_json(self, version: int, averaged: bool = False) -> bytes:
        """Returns the policy of a version, or the moving average up to it, as JSON."""
        state = self.plan.state(self._published(version))
        policy = state.ema if averaged else state.policy
        return json.dumps(as_json(policy, version), allow_nan=False).encode()

    def state(self, version: int) -> bytes:
        """Returns the public state of a version, from which devices compute updates."""
        return self._published(version).state

    def _read_policy(self, version: int) -> NumpyPolicy:
        found = NumpyPolicy(json.loads(self.policy_json(version)))
        self._newest = max(version, self._newest)
        return found

    def contribution(self, given: dict[str, Any], place_id: str, person: int) -> bytes:
        """Returns what a person gives, checked and packed.

        Raises:
            BadContribution: it is not what this campaign takes.
            UnknownPlace, PlaceClosed: the place is not this person's, or is closed.
        """
        plan = self.plan
        if plan.gives == "update":
            return packed(read_update(given, plan.first.policy))
        if plan.acts == "server":
            if "actions" in given:
                raise BadContribution("the service chose the actions; leave them out")
            place = self._place(place_id, person)
            policy = self._policy(place.release)
            seen = given.get("observations")
            rows = seen[:-1] if isinstance(seen, list) else []
            given = given | {"actions": _actions(policy, place, 0, rows) if rows else []}
        return packed(read_trajectory(given, plan.env, plan.config.steps_per_user))

    def facts(self) -> dict[str, Any]:
        """Returns public facts and terms."""
        settings, config = self._campaign.settings, self.plan.config
        version = self._store.version()
        certificate = self._published(version).facts["certificate"]
        learning = {"learning": settings.config} if self.plan.gives == "update" else {}
        return {
            "name": settings.name,
            **learning,
            "spaces": settings.spaces.model_dump(mode="json"),
            "steps": config.steps_per_user,
            "gives": settings.terms.gives,
            "acts": settings.terms.acts,
            "version": version,
            "horizon": config.num_updates,
            "slots": config.users_per_update,
            "participations": config.participations,
            "state": "finished" if version >= config.num_updates else "open",
            "privacy": {
                "epsilon": certificate["budget"]["epsilon"],
                "delta": certificate["budget"]["delta"],
                "unit": config.privacy_unit.sentence(),
                "adversary": self._adversary,
            },
        }

    def overview(self) -> dict[str, Any]:
        """Returns counts, the budget and the state of the updater."""
        counts, facts = self._store.counts(), self.facts()
        published = self._published(facts["version"])
        now, made = self._clock(), published.facts.get("made")
        return {
            **{name: facts[name] for name in ("name", "version", "horizon", "state")},
            "people": {
                "enrolled": counts.enrolled,
                "took_part": counts.took_part,
                "withdrew": counts.withdrew,
            },
            "release": {
                "number": counts.release,
                "slots": facts["slots"],
                "taken": counts.taken,
                "given": counts.given,
                "expired": counts.expired,
                "withdrawn": counts.withdrawn,
                "seconds_left": None
                if counts.deadline is None
                else max(0.0, counts.deadline - now),
            },
            "empty_slots": counts.empty_slots,
            "releases_lost": counts.lost,
            "budget": published.facts["certificate"]["budget"]
            | {
                "spent": published.facts["certificate"]["epsilon"],
                "planned": published.facts["certificate"]["budget"]["epsilon"],
            },
            "privacy": facts["privacy"],
            "returns": published.facts["returns"],
            "health": {
                "updater": "working" if (counts.updater_until or 0.0) > now else "absent",
                "last_update_seconds": None if made is None else max(0.0, now - made),
            },
        }


def _actions(policy: NumpyPolicy, place: Place, first: int, observations: list[Any]) -> list[Any]:
    """Returns the actions of consecutive steps, the same ones however often they are asked for."""
    try:
        seen = np.asarray(observations, np.float64) + 0.0  # -0 asks the same as 0
    except (TypeError, ValueError, OverflowError):
        seen = np.empty(0)
    fits = seen.shape == (len(observations), policy.observations)
    if not (fits and (np.abs(seen) <= LARGEST).all()):
        raise BadContribution(
            f"an observation is {policy.observations} numbers between -1e6 and 1e6"
        )
    drawn = b"".join(
        hashlib.blake2b(
            step.to_bytes(8) + row.tobytes() + number.to_bytes(8), key=place.secret, digest_size=8
        ).digest()
        for step, row in enumerate(seen, first)
        for number in range(policy.draws)
    )
    uniform = (np.frombuffer(drawn, np.uint64) >> np.uint64(11)) * 2.0**-53
    return policy.actions(seen, uniform.reshape(len(seen), policy.draws))
