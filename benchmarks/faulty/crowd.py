"""Simulated people behind a bad network, and all that the service told them."""

import asyncio
import hashlib
import json
import random
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from faulty.network import BadNetwork
from sotto.people.campaign import Campaign
from sotto.people.plan import CampaignPlan
from sotto.people.units import packed, read_trajectory, read_update, written_update

_AT_ONCE = 6
_AGAIN = (400, 408, 429, 503)  # the bad network cuts requests, and the service may be down
_DROP_OUT, _RIVAL, _REPEAT, _WITHDRAW, _STEAL, _LOOK = 0.06, 0.1, 0.25, 0.06, 0.05, 0.15

Answer = tuple[int, dict[str, Any]]


@dataclass
class Told:
    """What people sent and were told. Only the thread of the crowd writes it.

    Attributes:
        sent: contributions that were sent for each place, as the store keeps them.
        owner: person and release of each place.
        kept: acknowledged contribution of each place.
        withdrawing: people who asked to withdraw.
        receipts: receipt of each person who withdrew.
        answers: number of answers of each kind.
        wrong: answers that must not be.
    """

    sent: dict[str, list[bytes]] = field(default_factory=dict)
    owner: dict[str, tuple[int, int]] = field(default_factory=dict)
    kept: dict[str, bytes] = field(default_factory=dict)
    withdrawing: set[int] = field(default_factory=set)
    receipts: dict[int, dict[str, Any]] = field(default_factory=dict)
    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Crowd:
    """People who take part in a campaign, in a thread, until `close`.

    Args:
        campaign: the campaign.
        tokens: tokens by number of the person. Person 0 gives nothing.
        ports: ports of the web processes.
        seed: seed of everything that people do.
    """

    def __init__(self, campaign: Campaign, tokens: list[str], ports: list[int], seed: int) -> None:
        self.told = Told()
        self._settings, self._plan = campaign.settings, CampaignPlan(campaign)
        self._tokens = tokens
        self._random = random.Random(seed)
        self._network = BadNetwork(ports, seed)
        self._over = False
        self._waiting = [*range(1, len(tokens))]
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    @property
    def network(self) -> dict[str, int]:
        """Number of requests with each fate in the network."""
        return self._network.counts

    def close(self) -> None:
        """Lets everybody finish the request that they wait for."""
        self._over = True
        self._thread.join(60)

    # --- people ----------------------------------------------------------------------------------

    async def _run(self) -> None:
        await self._network.start()
        workers = [asyncio.create_task(self._worker()) for _ in range(_AT_ONCE)]
        for result in await asyncio.gather(*workers, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, _OverError):
                self.told.wrong.append(f"a simulated person failed: {result!r}")
        await self._network.close()

    async def _worker(self) -> None:
        while self._waiting and not self._over:
            person = self._waiting.pop(0)
            if await self._take_part(person):
                self._waiting.append(person)

    async def _take_part(self, person: int) -> bool:
        """Lets a person take part once; returns whether they may come again."""
        status, place = await self._ask(person, "/v1/places", {})
        if status != 200:
            code = place.get("error")
            if code == "no-place" or (code == "took-part" and self._plan.config.participations > 1):
                await asyncio.sleep(0.2)
                return True
            self._expect(code in ("took-part", "withdrew", "finished"), person, "place", place)
            return False
        self.told.owner[place["place"]] = (person, place["release"])
        if self._chance(_STEAL):
            thief = self._random.randrange(1, len(self._tokens))
            answer = await self._give(thief, place["place"], self._contribution(place["place"], 9))
            self._expect(answer[0] == 404 or thief == person, thief, "theft", answer[1])
        if self._chance(_DROP_OUT):
            return True
        await self._give_for(person, place["place"])
        if self._chance(_WITHDRAW):
            await self._withdraw(person)
            return False
        if self._chance(_LOOK):
            await self._look(person)
        return True

    async def _give_for(self, person: int, place: str) -> None:
        """Gives for a place; sometimes another contribution tries to replace it."""
        given = await self._lived(person, place)
        if given is None:
            return
        self._note(place, given)
        contributions = [given]
        if self._chance(_RIVAL) and self._settings.terms.acts == "device":
            rival = self._contribution(place, 1)
            self._note(place, rival)
            contributions.append(rival)
        giving = [self._give(person, place, one) for one in contributions]
        for one, (status, answer) in zip(contributions, await asyncio.gather(*giving), strict=True):
            self._judge(person, place, one, status, answer)
        while place in self.told.kept and self._chance(_REPEAT):
            status, answer = await self._give(person, place, given)
            self._judge(person, place, given, status, answer)

    def _judge(
        self, person: int, place: str, sent: dict[str, Any], status: int, answer: dict[str, Any]
    ) -> None:
        """Notes what a contribution was answered with."""
        contribution = self._packed(sent)
        if status == 200:
            before = self.told.kept.setdefault(place, contribution)
            self._expect(before == contribution, person, "two contributions kept", answer)
            return
        codes = ("place-closed", "contribution-conflict")
        self._expect(status == 409 and answer.get("error") in codes, person, "giving", answer)
        if answer.get("error") == "contribution-conflict":
            is_kept = self.told.kept.get(place) == contribution
            self._expect(not is_kept, person, "a conflict with the same contribution", answer)

    async def _withdraw(self, person: int) -> None:
        self.told.withdrawing.add(person)
        status, answer = await self._ask(person, "/v1/withdrawals", {})
        self._expect(status == 200, person, "withdrawing", answer)
        if status == 200:
            self.told.receipts[person] = answer["receipt"]

    async def _look(self, person: int) -> None:
        """Reads the person's own page, which must know of all that was kept."""
        kept = {r for place, (who, r) in self.told.owner.items()
                if who == person and place in self.told.kept}  # fmt: skip
        status, answer = await self._ask(person, "/v1/me", None)
        known = {one["release"] for one in answer.get("places", ()) if one["state"] in
                 ("given", "released", "lost", "refused")}  # fmt: skip
        self._expect(status == 200 and kept <= known, person, f"page without {kept}", answer)

    # --- contributions ---------------------------------------------------------------------------

    async def _lived(self, person: int, place: str) -> dict[str, Any] | None:
        """Returns what a person gives; None if the place closed while actions were asked for."""
        given = self._contribution(place, 0)
        if self._settings.terms.acts == "device":
            return given
        actions = []
        for step, seen in enumerate(given["observations"][:-1]):
            asked = {"place": place, "step": step, "observation": seen}
            found = [await self._ask(person, "/v1/actions", asked) for _ in range(2)]
            if any(status != 200 for status, _ in found):
                codes = {answer.get("error") for status, answer in found if status != 200}
                self._expect(codes == {"place-closed"}, person, "an action", found[0][1])
                return None
            self._expect(found[0] == found[1], person, "two actions of one step", found[0][1])
            actions.append(found[0][1]["action"])
        return {name: one for name, one in given.items() if name != "actions"} | {"chosen": actions}

    def _contribution(self, place: str, variant: int) -> dict[str, Any]:
        """Returns a contribution that no other place, and no other variant, has."""
        rng = np.random.default_rng(seed_of(place, variant))
        plan = self._plan
        if plan.gives == "update":
            return {"update": written_update(code(plan, rng))}
        steps = plan.config.steps_per_user
        return {
            "observations": rng.normal(size=(steps + 1, plan.env.observation_size)).tolist(),
            "actions": rng.integers(0, 2, steps).tolist(),
            "rewards": rng.normal(size=steps).tolist(),
            "terminated": False,
        }

    def _packed(self, given: dict[str, Any]) -> bytes:
        """Returns a contribution as the store keeps it."""
        if self._plan.gives == "update":
            return packed(read_update(given, self._plan.first.policy))
        named = {name: one for name, one in given.items() if name != "chosen"}
        named["actions"] = given.get("chosen", given.get("actions"))
        return packed(read_trajectory(named, self._plan.env, self._plan.config.steps_per_user))

    def _note(self, place: str, given: dict[str, Any]) -> None:
        self.told.sent.setdefault(place, []).append(self._packed(given))

    async def _give(self, person: int, place: str, given: dict[str, Any]) -> Answer:
        body = {name: one for name, one in given.items() if name != "chosen"} | {"place": place}
        if self._settings.terms.acts == "server":
            body.pop("actions", None)
        return await self._ask(person, "/v1/contributions", body)

    # --- requests --------------------------------------------------------------------------------

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _expect(self, holds: bool, person: int, what: str, answer: dict[str, Any]) -> None:
        if not holds:
            self.told.wrong.append(f"person {person}: {what}: {answer}")

    async def _ask(self, person: int, path: str, body: dict[str, Any] | None) -> Answer:
        """Sends a request until there is an answer that is no failure, as a device does.

        Raises:
            _OverError: everybody goes home.
        """
        while not self._over:
            with suppress(OSError, TimeoutError, ValueError, EOFError):
                async with asyncio.timeout(6):
                    status, answer = await self._send_once(person, path, body)
                self.told.answers[f"{path} {status} {answer.get('error', '')}".strip()] += 1
                if status not in _AGAIN:
                    return status, answer
            await asyncio.sleep(self._random.uniform(0.01, 0.1))
        raise _OverError

    async def _send_once(self, person: int, path: str, body: dict[str, Any] | None) -> Answer:
        """Sends a request; raises ValueError or EOFError if the answer is incomplete."""
        data = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: campaign\r\n"
            f"Authorization: Bearer {self._tokens[person]}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", self._network.port)
        try:
            writer.write(head.encode() + data)
            first = await reader.readuntil(b"\r\n\r\n")
            found = json.loads(await reader.read())
        finally:
            writer.close()
        if not isinstance(found, dict):
            raise ValueError("no JSON object")
        return int(first.split()[1]), found


class _OverError(Exception):
    """Everybody goes home."""


def seed_of(place: str, variant: int) -> int:
    """Returns the seed of a contribution for a place."""
    return int.from_bytes(hashlib.sha256(f"{variant} {place}".encode()).digest()[:8])


def code(plan: CampaignPlan, rng: np.random.Generator) -> np.ndarray:
    """Returns a random update, a little shorter than the clip norm, so that it is not clipped."""
    size = len(packed(plan.unit)) // 4
    length = 0.99 * plan.config.clip_norm
    found: np.ndarray = rng.choice([-1.0, 1.0], size) * (length / np.sqrt(size))
    return found
