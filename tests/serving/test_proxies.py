"""The address of a request behind proxies: the right-most one that no trusted proxy has."""

import http.client
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from urllib.parse import urlsplit

import httpx
import pytest
from commands import refused
from fastapi import FastAPI, Request
from fastapi.responses import Response
from served import running

from sotto.serving.server import Address
from sotto.serving.traffic.callers import Callers
from sotto.serving.traffic.connections import Connections
from sotto.serving.traffic.limits import Limits
from sotto.serving.traffic.proxies import Proxies
from sotto.serving.traffic.refusals import Refusal

PROXIES = Proxies(("10.0.0.0/8", "192.0.2.7", "fd00::/8"))


@pytest.mark.parametrize(
    ("forwarded", "host"),
    [
        ("198.51.100.4", "198.51.100.4"),
        ("203.0.113.9, 198.51.100.4", "198.51.100.4"),  # the client wrote the first one
        ("198.51.100.4, 10.1.2.3,192.0.2.7", "198.51.100.4"),  # a chain of proxies
        ("garbage, 198.51.100.4", "198.51.100.4"),
        ("2001:db8::1, fd00::2", "2001:db8::1"),
        ("::ffff:198.51.100.4, ::ffff:10.0.0.1", "198.51.100.4"),
        ("", "10.0.0.1"),
        ("10.9.9.9", "10.0.0.1"),
        ("198.51.100.4, garbage", "10.0.0.1"),
        ("198.51.100.4, ", "10.0.0.1"),
        ("198.51.100.4:80", "10.0.0.1"),
        ("[2001:db8::1]", "10.0.0.1"),
        ("\xff\x00", "10.0.0.1"),
    ],
)
def test_the_right_most_address_that_is_not_trusted(forwarded, host):
    assert PROXIES.client("10.0.0.1", forwarded) == host


@pytest.mark.parametrize(
    ("host", "trusted"),
    [
        ("10.255.0.1", True),
        ("::ffff:10.0.0.1", True),  # how a socket for both versions shows it
        ("11.0.0.1", False),
        ("192.0.2.7", True),
        ("192.0.2.8", False),
        ("fd12::1%eth0", True),
        ("::1", False),
        ("", False),
    ],
)
def test_who_is_trusted(host, trusted):
    assert PROXIES.trusts(host) is trusted
    assert not Proxies().trusts(host)


@pytest.mark.parametrize("network", ["10.0.0.1/8", "10.0.0.0/33", "proxy.example.org", ""])
@pytest.mark.parametrize(
    "command", ["campaign serve DIR", "serve teacher --out DIR --queries 1 --target-epsilon 1"]
)
def test_malformed_networks_are_one_sentence(tmp_path, capsys, command, network):
    call = [word.replace("DIR", str(tmp_path)) for word in command.split()]
    said = refused(capsys, *call, "--trusted-proxies", "10.0.0.0/8", network)
    assert said.startswith("sotto: --trusted-proxies takes networks such as 10.0.0.0/8")
    assert list(tmp_path.iterdir()) == []


# --- a service behind a proxy --------------------------------------------------------------------

BURST = 3


@contextmanager
def service(*proxies: str, host: str = "127.0.0.1", **limits) -> Iterator[SimpleNamespace]:
    """A service with a page for strangers; `seen` are the addresses that it counted."""
    connections = Connections(
        Limits(stranger_burst=BURST, stranger_requests_per_second=0.001, **limits)
    )
    callers = Callers(None, lambda _token: False, connections.limits, connections)
    app, seen = FastAPI(), []
    app.state.connections = connections

    @app.get("/")
    async def page(request: Request) -> Response:
        seen.append(connections.host(request.client))
        try:
            callers.stranger(request)
        except Refusal as refusal:
            return refusal.response()
        return Response("page")

    with running(app, Address(host, 0, None, None, proxies)) as url, ExitStack() as stack:

        def ask(*forwarded: str) -> int:
            headers = [("X-Forwarded-For", one) for one in forwarded]
            return client.get("/", headers=headers).status_code

        client = stack.enter_context(httpx.Client(base_url=url, trust_env=False, timeout=5))
        yield SimpleNamespace(url=url, seen=seen, ask=ask, connections=connections)
    callers.close()


def test_people_behind_a_proxy_have_their_own_limits():
    with service("127.0.0.0/8") as found:
        for person in range(10):
            assert [found.ask(f"198.51.100.{person}") for _ in range(BURST)] == [200] * BURST
        assert found.ask("198.51.100.3") == 429
        assert found.ask("198.51.100.77") == 200  # over the same connection, at once


def test_an_untrusted_peer_cannot_choose_its_address():
    with service("10.0.0.0/8") as found:
        asked = [found.ask(f"198.51.100.{n}") for n in range(BURST + 1)]
        assert asked == [200] * BURST + [429]
        assert set(found.seen) == {"127.0.0.1"}


def test_a_client_behind_a_proxy_cannot_choose_its_address():
    """The proxy appends the client's address, in the same header or in another one."""
    with service("127.0.0.1") as found:
        one = [found.ask(f"203.0.113.{n}, 198.51.100.4") for n in range(BURST)]
        assert one == [200] * BURST
        assert found.ask("203.0.113.99", "198.51.100.4") == 429
        assert set(found.seen) == {"198.51.100.4"}


def test_garbage_counts_as_the_proxy():
    with service("127.0.0.1") as found:
        assert [found.ask(f"garbage-{n}") for n in range(BURST + 1)] == [200] * BURST + [429]
        assert set(found.seen) == {"127.0.0.1"}


def test_ipv6():
    """A client is a network of 64 bits, behind a proxy too."""
    with service("::1", host="::1") as found:
        assert [found.ask(f"2001:db8::{n:x}") for n in range(BURST)] == [200] * BURST
        assert found.ask("2001:db8::ffff") == 429
        assert found.ask("2001:db8:0:1::1") == 200


def counts(connections):
    """The number of open connections of strangers, by network."""
    return {network: len(one) for network, one in connections._strangers.items()}


def test_connections_count_as_their_clients():
    """One client behind the proxy takes connections from itself only."""
    with service("127.0.0.1", strangers_per_address=2) as found, ExitStack() as stack:
        address = urlsplit(found.url)
        opened = []
        for host in ["198.51.100.1"] + ["198.51.100.2"] * 3 + ["198.51.100.3"]:
            one = http.client.HTTPConnection(address.hostname, address.port, timeout=5)
            stack.callback(one.close)
            one.request("GET", "/", headers={"X-Forwarded-For": host})
            assert one.getresponse().read() == b"page"
            opened.append(one)
        assert counts(found.connections) == {
            "198.51.100.1": 1,
            "198.51.100.2": 2,
            "198.51.100.3": 1,
        }
        opened[1].request("GET", "/", headers={"X-Forwarded-For": "198.51.100.2"})
        with pytest.raises((http.client.HTTPException, OSError)):
            opened[1].getresponse()
        # A connection that is used for somebody else counts as theirs.
        opened[0].request("GET", "/", headers={"X-Forwarded-For": "198.51.100.3"})
        assert opened[0].getresponse().read() == b"page"
        assert counts(found.connections) == {"198.51.100.2": 2, "198.51.100.3": 2}
    assert not counts(found.connections)
