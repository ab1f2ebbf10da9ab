"""Limits on open connections, which hold before a client has shown its token.

A connection is a *stranger's* until a request with a known token has come over it. Strangers are
counted separately, so they take no places from known clients. If there are too many strangers, the
service ends the connection that has idled longest, of the address with the most connections. A
client with a question sends its request at once, so this is rarely its connection.

A connection from a trusted proxy counts as that of the client whose request came over it last.
"""

import asyncio
import ipaddress
import random
from functools import lru_cache
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from sotto.serving.traffic.limits import Limits
from sotto.serving.traffic.proxies import Proxies, address_of

Peer = tuple[str, int]
"""Address and port of the other side."""


_NETWORKS_IN_MEMORY = 4096


@lru_cache(_NETWORKS_IN_MEMORY)
def network(host: str) -> str:
    """Returns the network of one client: an IPv4 address, or 64 bits of an IPv6 address."""
    address = address_of(host)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    return host if address is None else str(address)


class Connections:
    """The open connections of one server. It is used only in the event loop."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._open: dict[Peer, Connection] = {}
        # Open connections in the order in which they were opened, or became known.
        self._strangers: dict[str, dict[Peer, Connection]] = {}  # of each network
        self._known: dict[Peer, Connection] = {}

    def opened(self, connection: "Connection") -> None:
        """Counts a new connection and ends another one if there are too many."""
        if (before := self._open.get(connection.peer)) is not None:
            self.closed(before)
        self._open[connection.peer] = connection
        self._strangers.setdefault(connection.network, {})[connection.peer] = connection
        if not connection.of_proxy:  # a proxy's connections are many people's
            self._limit(connection.network)
        if len(self._open) - len(self._known) > self.limits.strangers:
            self._end_one(max(self._strangers.values(), key=len))

    def asked(self, connection: "Connection", host: str) -> None:
        """Counts a connection from a proxy as that of the client whose request it carries now."""
        here, before = network(host), connection.network
        is_counted = self._open.get(connection.peer) is connection and not connection.known
        if is_counted and here != before:
            self._forget(connection)
            self._strangers.setdefault(here, {})[connection.peer] = connection
        connection.host, connection.network = host, here
        if is_counted and here not in (before, network(connection.peer[0])):
            self._limit(here)

    def host(self, peer: Peer | None) -> str:
        """Returns the address from which the request comes that a connection carries now."""
        if peer is None:
            return ""
        connection = self._open.get((peer[0], peer[1]))
        return peer[0] if connection is None else connection.host

    def closed(self, connection: "Connection") -> None:
        """Removes a closed connection from the counts."""
        if self._open.get(connection.peer) is connection:
            del self._open[connection.peer]
            if connection.known:
                del self._known[connection.peer]
            else:
                self._forget(connection)

    def known(self, peer: Peer | None) -> None:
        """Marks a connection as known, after a request with a known token."""
        connection = None if peer is None else self._open.get((peer[0], peer[1]))
        if connection is None or connection.known:
            return
        self._forget(connection)
        connection.become_known(self.limits.idle_seconds)
        self._known[connection.peer] = connection
        if len(self._known) > self.limits.known_connections:
            self._end_one(self._known)

    def refused(self, peer: Peer | None) -> None:
        """Pauses the connection of a client that sends too many requests.

        A proxy's connection goes on, since the next request on it may be somebody else's.
        """
        connection = None if peer is None else self._open.get((peer[0], peer[1]))
        if connection is not None and not connection.of_proxy:
            connection.pause()

    def _limit(self, network: str) -> None:
        """Ends a connection of a network that has too many."""
        of_network = self._strangers[network]
        if len(of_network) > self.limits.strangers_per_address:
            self._end_one(of_network)

    def _end_one(self, connections: "dict[Peer, Connection]") -> None:
        """Ends the oldest idle one of these connections, or else the oldest one."""
        oldest = next(iter(connections.values()))
        ended = next((one for one in connections.values() if not one.busy), oldest)
        self.closed(ended)
        ended.transport.abort()

    def _forget(self, connection: "Connection") -> None:
        """Removes a stranger's connection from the count of its network."""
        of_network = self._strangers[connection.network]
        del of_network[connection.peer]
        if not of_network:
            del self._strangers[connection.network]


class Connection(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with a deadline for the request."""

    connections_of_server: Connections
    proxies: Proxies

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.peer: Peer = ("", 0)
        self.host = self.network = ""  # of the client whose request came last
        self.of_proxy = False
        self.known = False
        self._deadline: asyncio.TimerHandle | None = None
        self._paused: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def become_known(self, idle_seconds: int) -> None:
        """Lets the connection stay open between requests, after a known token came over it."""
        self.known = True
        self.timeout_keep_alive = idle_seconds

    def pause(self) -> None:
        """Stops reading for a while and begins no request that was read already.

        Connections that were paused together do not go on together: their next requests would
        delay everybody else's.
        """
        if self._paused is None:
            self.transport.pause_reading()
            seconds = self.connections_of_server.limits.pause_seconds * random.uniform(1, 2)
            self._paused = self.loop.call_later(seconds, self._go_on)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Counts the connection and starts the deadline for its first request."""
        super().connection_made(transport)
        host, port, *_ = transport.get_extra_info("peername") or ("", id(self))
        self.peer, self.host, self.network = (host, port), host, network(host)
        self.of_proxy = self.proxies.trusts(host)
        self._expect_a_request()
        self.connections_of_server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Removes the connection from the counts."""
        self.connections_of_server.closed(self)
        for timer in (self._deadline, self._paused):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Reads bytes of a request, or of a body that is no longer read."""
        super().data_received(data)
        if self.busy:
            self._stop_expecting()
        elif self.conn.our_state is not h11.ERROR:
            self._expect_a_request()

    def handle_events(self) -> None:
        """Begins the next request, which may have been sent together with the last one."""
        if self._paused is not None:
            return
        before = self.cycle
        super().handle_events()
        if self.of_proxy and self.cycle is not before:  # the request's task has not begun yet
            values = [value for name, value in self.headers if name == b"x-forwarded-for"]
            forwarded = b",".join(values).decode("latin-1")
            host = self.proxies.client(self.peer[0], forwarded)
            self.connections_of_server.asked(self, host)

    def on_response_complete(self) -> None:
        """Keeps a paused connection from reading its next request."""
        super().on_response_complete()
        if self._paused is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def _expect_a_request(self) -> None:
        """Sets the time by which the headers must be complete; more bytes do not move it."""
        if self._deadline is None:
            seconds = self.connections_of_server.limits.header_seconds
            self._deadline = self.loop.call_later(seconds, self._too_late)

    def _stop_expecting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        if self.busy:
            self._deadline = None
        else:
            self.transport.abort()

    def _go_on(self) -> None:
        self._paused = None
        if not self.transport.is_closing():
            self.transport.resume_reading()
            self.handle_events()


def protocol(connections: Connections, proxies: Proxies) -> type[Connection]:
    """Returns the protocol of a server with these connections, for `uvicorn.Config`."""
    of_server = {"connections_of_server": connections, "proxies": proxies}
    return type("ServerConnection", (Connection,), of_server)
