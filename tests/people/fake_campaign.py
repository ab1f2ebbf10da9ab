"""A campaign that speaks the HTTP API of live people from memory, for tests of its pages."""

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from sotto.serving.traffic.refusals import _HEADERS

OPERATOR = "operator-token"
KINDS = {"html": "text/html; charset=utf-8", "js": "text/javascript", "css": "text/css"}
PAGES = {"/": "dashboard.html", "/me": "me.html", "/play": "play.html"}

# Pushes towards the side to which the pole falls, so that the pole stays up for long.
BALANCING = {
    "version": 3,
    "layers": [
        {"weights": [[1, 0], [0, 1], [2, -2], [3, -3]], "bias": [0.01, -0.01]},
        {"weights": [[-9.0, 9.0], [9.0, -9.0]], "bias": [0, 0]},
    ],
    "activation": "tanh",
    "observation_scale": [0.1, 0.1, 1.0, 1.0],
    "observation_centre": None,
    "distribution": "softmax",
}

STATE = {
    **{"name": "balance", "version": 9, "horizon": 40, "state": "open"},
    "people": {"enrolled": 1280, "took_part": 402, "withdrew": 7},
    "release": {
        **{"number": 9, "slots": 64, "taken": 12, "given": 31, "expired": 2, "withdrawn": 1},
        "seconds_left": 412.3,
    },
    **{"empty_slots": 23, "releases_lost": 1},
    "budget": {"epsilon": 8.0, "delta": 1e-5, "spent": 2.31234, "planned": 6.912},
    "returns": [{"version": v, "return": 20.0 + 9 * v, "error": 2.5} for v in range(9)],
    "health": {"updater": "working", "last_update_seconds": 37.2},
}


class Refused(Exception):
    """A refusal: status, code, sentence, headers."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers


@dataclass
class FakeCampaign:
    """State of the campaign, and what was asked of it.

    Attributes:
        faults: for a path, what goes wrong in the next requests: "lost" handles the request and
            drops the response; "away" is 503; a Refused is that refusal.
        asked: method, path and body of every request below v1.
        unchanged: how often the policy was not sent, since the visitor had it.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=lambda: dict(BALANCING))
    tokens: dict[str, int] = field(default_factory=lambda: {"ann-token": 12})
    places: list[dict[str, Any]] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)
    faults: dict[str, list[Any]] = field(default_factory=dict)
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    unchanged: int = 0
    withdrew: bool = False
    state: dict[str, Any] = field(default_factory=lambda: dict(STATE))

    def __post_init__(self) -> None:
        self.facts = {
            **{"name": "balance", "spaces": {"observations": 4, "actions": 2}, "steps": 60},
            **{"gives": "trajectory", "acts": "device", "version": 3, "horizon": 10, "slots": 8},
            **{"participations": 2, "state": "open"},
            "privacy": {
                **{"epsilon": 4.0, "delta": 1e-5, "unit": "one person, with all they ever give"},
                "adversary": "The adversary sees every policy.",
            },
        } | self.facts

    def answer(self, token: str, method: str, path: str, body: Any) -> Any:
        """Handles a request below v1."""
        person = self.tokens.get(token)
        if person is None and token != OPERATOR:
            raise Refused(401, "unknown-token", "the token is unknown; check it for missing signs")
        if path in ("operator", "people") and token != OPERATOR:
            raise Refused(403, "not-the-operator", "this is for the operator; use their token")
        handlers = {
            ("GET", "campaign"): lambda: self.facts,
            ("GET", "policy"): lambda: self.policy,
            ("GET", "me"): lambda: self._me(person),
            ("GET", "operator"): lambda: self.state,
            ("POST", "people"): lambda: {"tokens": [f"new-{i}" for i in range(body["count"])]},
            ("POST", "places"): self._place,
            ("POST", "actions"): lambda: self._action(**body),
            ("POST", "contributions"): lambda: self._give(body),
            ("POST", "withdrawals"): self._withdraw,
        }
        return handlers[method, path]()

    def _me(self, person: int | None) -> dict[str, Any]:
        return {
            **{"person": person, "withdrew": self.withdrew},
            "places": [{"release": p["release"], "state": p["state"]} for p in self.places],
            "cost": {"epsilon": 1.25, "delta": 1e-5} if self.places else None,
            "collected": "The campaign collects one trajectory for each place you take.",
        }

    def _place(self) -> dict[str, Any]:
        if self.withdrew:
            raise Refused(403, "withdrew", "you withdrew from this campaign")
        open_ones = [p for p in self.places if p["state"] == "taken"]
        if not open_ones:
            if len(self.places) == self.facts["participations"]:
                raise Refused(403, "took-part", "you took part as often as anybody may; thank you")
            number = len(self.places)
            open_ones = [{"id": f"place-{number}", "release": 3 + number, "state": "taken"}]
            self.places += open_ones
        place = open_ones[0]
        return {"place": place["id"], "release": place["release"], "version": 3, "seconds_left": 60}

    def _action(self, place: str, step: int, observation: list[float]) -> dict[str, Any]:
        assert len(observation) == 4
        return {"action": int(2 * observation[2] + 3 * observation[3] > 0)}

    def _give(self, body: dict[str, Any]) -> dict[str, Any]:
        assert {*body} == {"place", "observations", "actions", "rewards", "terminated"}
        place = next(p for p in self.places if p["id"] == body["place"])
        if place["id"] in self.kept:
            if self.kept[place["id"]] != body:
                raise Refused(409, "contribution-conflict", "another contribution was kept")
            return {"kept": True, "repeated": True}
        self.kept[place["id"]] = body
        place["state"] = "given"
        return {"kept": True, "repeated": False}

    def _withdraw(self) -> dict[str, Any]:
        self.withdrew = True
        for place in self.places:
            place["state"] = "withdrawn" if place["state"] == "given" else place["state"]
        receipt = {"person": 12, "deleted_from_releases": [4], "part_of_releases": [3]}
        return {"receipt": receipt, "meaning": "The contribution of release 4 was deleted."}


def handler(campaign: FakeCampaign) -> type[BaseHTTPRequestHandler]:
    """The HTTP side of a campaign."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            if not self.path.startswith("/v1/"):
                self.page()
            else:
                self.api("GET", None)

        def do_POST(self) -> None:
            assert self.headers["Content-Type"] == "application/json"
            self.api("POST", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def page(self) -> None:
            name = PAGES.get(self.path, self.path[1:])
            file = resources.files("sotto").joinpath("people", "pages", name)
            if "/" in name or not file.is_file():
                self.reply(404, b"", {})
                return
            self.reply(200, file.read_bytes(), {"content-type": KINDS[name.rpartition(".")[2]]})

        def api(self, method: str, body: Any) -> None:
            path = self.path.removeprefix("/v1/")
            campaign.asked.append((method, path, body))
            faults = campaign.faults.get(path, [])
            fault = faults.pop(0) if faults else None
            token = self.headers["Authorization"].removeprefix("Bearer ")
            try:
                if isinstance(fault, Refused):
                    raise fault
                if fault == "away":
                    raise Refused(503, "store-unavailable", "the store is away; try again later")
                found = campaign.answer(token, method, path, body)
            except Refused as refused:
                said = {"error": refused.code, "message": refused.message}
                self.reply(refused.status, json.dumps(said).encode(), refused.headers)
                return
            if fault == "lost":
                self.close_connection = True
                return
            tag = f'"{campaign.policy["version"]}"'
            if path == "policy" and self.headers["If-None-Match"] == tag:
                campaign.unchanged += 1
                self.reply(304, b"", {"etag": tag})
                return
            headers = {"etag": tag} if path == "policy" else {}
            self.reply(200, json.dumps(found).encode(), headers)

        def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            # Chromium itself would repeat what is lost on a connection that is kept open.
            closing = {"connection": "close", "content-length": str(len(body))}
            self.send_response(status)
            for name, value in (_HEADERS | closing | headers).items():
                self.send_header(name.replace("_", "-"), value)
            with contextlib.suppress(ConnectionError):  # the visitor has left the page
                self.end_headers()
                self.wfile.write(body)

    return Handler


@contextlib.contextmanager
def served(campaign: FakeCampaign) -> Iterator[str]:
    """Serves a campaign while the block runs; gives its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(campaign))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
