"""Runs the service with uvicorn: one process, optional TLS, and a log without private data."""

import asyncio
import gc
import ipaddress
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.loops.auto import auto_loop_factory

from sotto.serving.traffic.connections import protocol
from sotto.serving.traffic.logs import log_safely
from sotto.serving.traffic.proxies import Proxies

_GRACE_SECONDS = 10
_BACKLOG = 512
_MOST_HEADER_BYTES = 16 * 1024
_HANDSHAKE_SECONDS = 5.0


@dataclass(frozen=True)
class Address:
    """The address at which the service listens.

    Attributes:
        host: name or address of a network interface of this machine.
        port: port; 0 takes any free port.
        tls_certificate: PEM file with the server's certificate and its chain.
        tls_key: PEM file with the certificate's private key.
        trusted_proxies: networks of proxies that may say from which address a request comes.
    """

    host: str
    port: int
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    trusted_proxies: tuple[str, ...] = ()

    @property
    def in_clear_text(self) -> bool:
        """Whether tokens and answers are sent over a network in clear text."""
        return self.tls_certificate is None and not _is_loopback(self.host)

    def check(self) -> None:
        """Checks port, certificate, key and proxies.

        Raises:
            ValueError: the port is out of range, a file is missing, the files do not fit, or a
                network is malformed.
            OSError: a file cannot be read.
        """
        Proxies(self.trusted_proxies)
        if not 0 <= self.port < 2**16:
            raise ValueError(f"port must be between 0 and {2**16 - 1}, got {self.port}")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("TLS needs both --tls-certificate and --tls-key")
        if self.tls_certificate is None or self.tls_key is None:
            return
        for path in (self.tls_certificate, self.tls_key):
            path.open("rb").close()
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                self.tls_certificate, self.tls_key, password=""
            )
        except (ssl.SSLError, ValueError) as error:
            raise ValueError(
                f"{self.tls_certificate} and {self.tls_key} are no certificate and its key, in "
                "PEM and without a pass phrase"
            ) from error


def serve(app: FastAPI, address: Address, ready: Callable[[str], None]) -> None:
    """Serves until SIGINT or SIGTERM, and then finishes the requests that have begun.

    Args:
        app: the service.
        address: address that was checked.
        ready: is called with the service's URL once connections are accepted.

    Raises:
        OSError: the address cannot be used.
    """
    log_safely()
    # Once it has stopped, uvicorn raises the signal that stopped it again.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _answer_evenly()
    with suppress(KeyboardInterrupt), listening(address.host, address.port) as listener:
        ready(url_of(listener, address))
        uvicorn_server(app, address).run(sockets=[listener])


def _answer_evenly() -> None:
    """Keeps the interpreter from delaying single requests for long.

    A full garbage collection visits every object of JAX and of our modules, which takes 0.1 s; they
    live as long as the process, so it may leave them out. A thread that waits for the interpreter
    gets it after 0.5 ms in place of 5, since a request passes through several threads.
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(5e-4)


def uvicorn_server(app: FastAPI, address: Address) -> uvicorn.Server:
    """Returns a server that runs on a listening socket."""
    config = uvicorn.Config(
        app,
        access_log=False,
        log_config=None,
        ssl_certfile=address.tls_certificate,
        ssl_keyfile=address.tls_key,
        ws="none",
        proxy_headers=False,  # it would believe what is no address
        server_header=False,
        # `connections` limits connections: uvicorn's limit would refuse late clients.
        http=protocol(app.state.connections, Proxies(address.trusted_proxies)),
        h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
        backlog=_BACKLOG,
        loop=f"{__name__}:new_event_loop",
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    return uvicorn.Server(config)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Returns uvicorn's event loop with a short timeout for TLS handshakes."""
    loop = auto_loop_factory()()
    create_server = loop.create_server

    async def impatient(*arguments: Any, **options: Any) -> asyncio.Server:
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = _HANDSHAKE_SECONDS
        return await create_server(*arguments, **options)

    loop.create_server = impatient  # type: ignore[method-assign]
    return loop


def url_of(listener: socket.socket, address: Address) -> str:
    """Returns the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    scheme = "http" if address.tls_certificate is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def listening(host: str, port: int) -> socket.socket:
    """Returns a socket that accepts connections.

    Raises:
        OSError: the address cannot be used.
    """
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except socket.gaierror as error:
        raise OSError(f"cannot listen on {host}: {error.strerror}; give another --host") from error
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(f"cannot listen on {host} port {port}: {reason}; give another") from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
