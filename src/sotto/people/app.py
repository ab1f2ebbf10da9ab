"""The HTTP endpoints of a campaign, for people's devices, the operator and a browser.

```
GET  /v1/campaign       public facts and terms
GET  /v1/policy         the current policy, which people follow
GET  /v1/state          the public state of the current version, for devices that compute updates
GET  /v1/result         the moving average of the released policies
POST /v1/places         {} -> {"place", "release", "version", "seconds_left"}
POST /v1/actions        {"place", "step", "observation"} -> {"action"}
POST /v1/contributions  {"place", ...} -> {"kept", "repeated"}
POST /v1/withdrawals    {} -> {"receipt", "meaning"}
GET  /v1/me             the caller's own part and its cost
GET  /v1/certificate    the certificate
GET  /v1/operator, POST /v1/people   for the operator's token
```

Paths with v1 need `Authorization: Bearer TOKEN`. `sotto.serving.traffic.refusals` describes
refusals. A contribution is on disk, encrypted, before it is acknowledged. Answers to one person
depend on that person's own requests, on released policies, and on the number of people who took
part.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import resources
from typing import Any, TypeVar, cast

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from sotto.people import openapi
from sotto.people.campaign import Campaign
from sotto.people.database.store import CampaignDatabase
from sotto.people.database.writer import Writer
from sotto.people.desk import WITHDRAWN, Desk
from sotto.people.errors import CampaignError
from sotto.people.units import packed
from sotto.serving.traffic.apps import json_response, new_app
from sotto.serving.traffic.bodies import Bodies, parsed
from sotto.serving.traffic.callers import Caller, Callers
from sotto.serving.traffic.connections import Connections
from sotto.serving.traffic.limits import Limits
from sotto.serving.traffic.outages import Outage
from sotto.serving.traffic.refusals import Code, Refusal

_PAGES = {"/": "dashboard.html", "/me": "me.html", "/play": "play.html"}
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}


def _files() -> dict[str, tuple[bytes, str]]:
    """Returns contents and type of each page, script and style, by its address."""
    folder = resources.files("sotto.people").joinpath("pages")
    names = _PAGES | {f"/{one.name}": one.name for one in folder.iterdir()}
    return {
        path: (folder.joinpath(name).read_bytes(), _TYPES[name.rpartition(".")[2]])
        for path, name in names.items()
    }


_FILES = _files()
_STATUS = {
    "no-place": 409,
    "took-part": 403,
    "withdrew": 403,
    "finished": 410,
    "unknown-place": 404,
    "place-closed": 409,
    "contribution-conflict": 409,
    "bad-contribution": 422,
}
_RETRY_SECONDS = "2"
_BYTES_PER_NUMBER = 32
_MOST_TOKENS = 10_000
_MOST_BODIES = 8
_BELIEVED_SECONDS = 1.0  # then replaced tokens are known
_T = TypeVar("_T")


def create_app(
    campaign: Campaign,
    store: CampaignDatabase,
    is_operator: Callable[[str], bool],
    limits: Limits | None = None,
    clock: Callable[[], float] = time.time,
) -> FastAPI:
    """Returns the service of a campaign, for one process.

    Args:
        campaign: the campaign.
        store: its database.
        is_operator: tells whether a token is the operator's.
        limits: limits of size and rate.
        clock: returns the time in seconds, as the updater's clock does.
    """
    service = _Service(campaign, store, is_operator, limits or Limits(), clock)
    of_all = (service.callers, service.connections, service.close)
    app = new_app("A campaign of private learning", *of_all)
    for method, path, endpoint in (
        ("GET", "/v1/campaign", service.campaign),
        ("GET", "/v1/policy", service.policy),
        ("GET", "/v1/state", service.state),
        ("GET", "/v1/result", service.result),
        ("POST", "/v1/places", service.places),
        ("POST", "/v1/actions", service.actions),
        ("POST", "/v1/contributions", service.contributions),
        ("POST", "/v1/withdrawals", service.withdrawals),
        ("GET", "/v1/me", service.me),
        ("GET", "/v1/certificate", service.certificate),
        ("GET", "/v1/operator", service.operator),
        ("POST", "/v1/people", service.people),
        ("GET", "/healthz", service.health),
        ("GET", "/openapi.json", service.description),
        *(("GET", page, service.page) for page in _FILES),
    ):
        app.add_api_route(path, endpoint, methods=[method])
    return app


class _Service:
    """The endpoints of the service. Its private methods may block unless they are async."""

    def __init__(
        self,
        campaign: Campaign,
        store: CampaignDatabase,
        is_operator: Callable[[str], bool],
        limits: Limits,
        clock: Callable[[], float],
    ) -> None:
        self._campaign, self._store, self._clock = campaign, store, clock
        self._limits = limits
        self._desk = Desk(campaign, store, clock)
        self.connections = Connections(limits)
        self._failures = partial(as_refusals, Outage())
        callers = (store, is_operator, limits, self.connections, self._failures, _BELIEVED_SECONDS)
        self.callers = Callers(*callers)
        self.callers.read_now()
        store.withdraw_again()
        self._writer = Writer(store)
        self._bodies = Bodies(_MOST_BODIES)
        numbers = len(packed(self._desk.plan.unit)) // 2
        self._most_bytes = 4096 + numbers * _BYTES_PER_NUMBER

    def close(self) -> None:
        """Finishes the work that has begun."""
        self.callers.close()
        self._writer.close()

    # --- for people ------------------------------------------------------------------------------

    async def campaign(self, request: Request) -> Response:
        """Returns public facts and terms."""
        await self.callers.caller(request)
        return json_response(await self._read(self._desk.facts))

    async def policy(self, request: Request) -> Response:
        """Returns the current policy; 304 if the caller has it."""
        await self.callers.caller(request)
        version = await self._read(self._store.version)
        tag = f'"{version}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        found = await self._read(self._desk.policy_json, version)
        return Response(found, media_type="application/json", headers={"etag": tag})

    async def state(self, request: Request) -> Response:
        """Returns the public state of the current version, which its ETag names."""
        await self.callers.caller(request)
        version = await self._read(self._store.version)
        found = await self._read(self._desk.state, version)
        headers = {"etag": f'"{version}"'}
        return Response(found, media_type="application/octet-stream", headers=headers)

    async def result(self, request: Request) -> Response:
        """Returns the moving average of the released policies, which is the campaign's result."""
        await self.callers.caller(request)
        version = await self._read(self._store.version)
        found = await self._read(self._desk.policy_json, version, True)
        return Response(found, media_type="application/json")

    async def places(self, request: Request) -> Response:
        """Gives the caller a place in the open release."""
        person = await self._person(request)
        await self._object(request, person)
        place = await self._write(self._store.take_place, person, self._clock())
        self._desk.keep(place, person)
        return json_response(
            {
                "place": place.id,
                "release": place.release,
                "version": place.release,
                "seconds_left": max(0.0, place.expires - self._clock()),
            }
        )

    async def actions(self, request: Request) -> Response:
        """Chooses an action for an observation, with the policy of the place's version."""
        person = await self._person(request)
        if self._campaign.settings.terms.acts != "server":
            raise Refusal(409, "acts-elsewhere", "devices of this campaign choose their actions")
        given = await self._object(request, person)
        place = _text(given, "place")
        if self._desk.knows(place, person):  # then nothing blocks, and a thread would cost more
            with as_refusals(Outage()):  # this tells nothing about the database
                return json_response({"action": self._desk.action(given, place, person)})
        return json_response({"action": await self._read(self._desk.action, given, place, person)})

    async def contributions(self, request: Request) -> Response:
        """Keeps what the caller gives for a place."""
        person = await self._person(request)
        given = await self._object(request, person)
        place_id = _text(given, "place")
        contribution = await self._read(self._desk.contribution, given, place_id, person)
        kept = await self._write(self._store.give, place_id, person, contribution, self._clock())
        return json_response({"kept": True, "repeated": not kept})

    async def withdrawals(self, request: Request) -> Response:
        """Ends the caller's part in the campaign."""
        person = await self._person(request)
        await self._object(request, person)
        receipt = await self._write(self._store.withdraw, person)
        self._desk.forget(person)
        return json_response({"receipt": receipt.as_json(), "meaning": WITHDRAWN})

    async def me(self, request: Request) -> Response:
        """Returns what was collected about the caller, and what it cost."""
        person = await self._person(request)
        history = await self._read(self._store.history, person)
        facts = await self._read(self._desk.facts)
        charged = {"released", "lost"}
        if not self._desk.shares_budget:  # the ledger refuses only whom it has charged
            charged.add("refused")
        took_part = any(state in charged for _, state in history.places)
        privacy = facts["privacy"]
        cost = {name: privacy[name] for name in ("epsilon", "delta")} if took_part else None
        return json_response(
            {
                "person": person,
                "withdrew": history.withdrew,
                "places": [{"release": r, "state": state} for r, state in history.places],
                "cost": cost,
                "collected": self._desk.collected,
            }
        )

    async def certificate(self, request: Request) -> Response:
        """Returns the certificate as of the last release."""
        await self.callers.caller(request)
        return json_response(await self._read(self._desk.certificate))

    # --- for the operator ------------------------------------------------------------------------

    async def operator(self, request: Request) -> Response:
        """Returns counts, the budget and the state of the updater."""
        self._require_operator(await self.callers.caller(request))
        return json_response(await self._read(self._desk.overview))

    async def people(self, request: Request) -> Response:
        """Makes tokens of new people, which are shown once."""
        self._require_operator(await self.callers.caller(request))
        if self._desk.shares_budget:
            raise _bad("this campaign shares a budget; enrol with sotto campaign invite --numbers")
        given = await self._object(request, None)
        count = given.get("count")
        if not isinstance(count, int) or not 1 <= count <= _MOST_TOKENS:
            raise _bad(f"count is a whole number from 1 to {_MOST_TOKENS}")
        return json_response({"tokens": await self._write(self._store.enrol, count)})

    # --- for everybody ---------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """Returns whether the database can be read; it needs no token."""
        self.callers.stranger(request)
        try:
            async with asyncio.timeout(2.0):
                await run_in_threadpool(self._store.version)
        except (CampaignError, TimeoutError):
            return JSONResponse({"status": "the database cannot be used"}, 503)
        return JSONResponse({"status": "ok"})

    async def description(self, request: Request) -> Response:
        """Returns the description of this interface (OpenAPI 3.1); it needs no token."""
        self.callers.stranger(request)
        return json_response(openapi.description(self._campaign.settings.name))

    async def page(self, request: Request) -> Response:
        """Returns a page, a script or the style; it needs no token."""
        self.callers.stranger(request)
        contents, media_type = _FILES[request.url.path]
        return Response(contents, media_type=media_type)

    # --- reading and writing ---------------------------------------------------------------------

    async def _person(self, request: Request) -> int:
        caller = await self.callers.caller(request)
        if caller.name is None:
            raise Refusal(403, "not-a-person", "this needs the token of a person who takes part")
        return int(caller.name)

    @staticmethod
    def _require_operator(caller: Caller) -> None:
        if caller.name is not None:
            raise Refusal(403, "not-the-operator", "this needs the operator's token")

    async def _object(self, request: Request, person: int | None) -> dict[str, Any]:
        """Returns the JSON object of a request by this person; None is the operator."""
        seconds = self._limits.body_seconds
        body = await self._bodies.read(
            person, request, self._most_bytes, seconds, "send fewer steps"
        )
        try:
            found = await parsed(body)
        except (ValueError, RecursionError):
            raise Refusal(400, "not-json", "the body is not JSON") from None
        if not isinstance(found, dict):
            raise Refusal(400, "not-json", "the body must be a JSON object")
        return found

    async def _read(self, work: Callable[..., _T], *arguments: Any) -> _T:
        with self._failures():
            return await run_in_threadpool(work, *arguments)

    async def _write(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """Does the work in the thread that writes, and returns when it is on disk."""
        with self._failures():
            return await asyncio.wrap_future(self._writer.submit(work, *arguments))


@contextmanager
def as_refusals(outage: Outage) -> Iterator[None]:
    """Turns failures of a campaign into refusals that do not say where the database is."""
    try:
        yield
        outage.worked()
    except CampaignError as error:
        if (status := _STATUS.get(error.code)) is not None:
            retry = {"Retry-After": _RETRY_SECONDS} if error.code == "no-place" else {}
            raise Refusal(status, cast(Code, error.code), str(error), headers=retry) from None
        outage.failed(error)
        raise Refusal(
            503,
            "store-unavailable",
            "the service cannot use its database; nothing was kept, send the same request again",
            headers={"Retry-After": _RETRY_SECONDS},
        ) from None


def _bad(message: str) -> Refusal:
    return Refusal(422, "bad-contribution", message)


def _text(given: dict[str, Any], name: str) -> str:
    found = given.get(name)
    if not isinstance(found, str) or not 1 <= len(found) <= 128 or not found.isprintable():
        raise _bad(f"{name} must be a text of 1 to 128 printable characters")
    return found
