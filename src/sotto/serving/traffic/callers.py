"""Identification of clients by their tokens, and limits for strangers.

Hashes of all tokens are in memory, so an unknown token costs a lookup and no work in the database.
For all unknown tokens together the database is read a few times a second. A known token is
confirmed in the database at each request, in a separate thread, so that a revoked one is refused at
once. Services with many requests believe the tokens in memory for a second instead.
"""

import asyncio
import functools
import hmac
import math
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, Protocol, TypeVar

from fastapi import Request

from sotto.privacy.answers.storage import KnownTokens
from sotto.privacy.errors import (
    LedgerCorrupt,
    LedgerMismatch,
    LedgerUnavailable,
    UnknownStudent,
)
from sotto.serving.traffic.connections import Connections, network
from sotto.serving.traffic.limits import Limits, RateLimiter
from sotto.serving.traffic.outages import Outage
from sotto.serving.traffic.refusals import Refusal
from sotto.tokens import token_hash

_RETRY_SECONDS = "1"
_REFRESH_SECONDS = 0.25
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}")

_T = TypeVar("_T")


class Caller(NamedTuple):
    """The holder of a token: a student or a person, or the operator, who has no name."""

    name: str | None


class Holders(Protocol):
    """The holders of tokens: students of a ledger, or people of a campaign."""

    def authenticate(self, token: str) -> str | None:
        """Returns the name of the token's holder, or None. It may block."""

    def known_tokens(self) -> KnownTokens:
        """Returns the tokens that are known now. It may block."""


class Callers:
    """Identifies the sender of a request. It is used in one event loop.

    Args:
        holders: those who hold tokens.
        is_operator: tells whether a token is the operator's.
        limits: limits of requests over time.
        connections: open connections, which are marked as known.
        failures: context that turns failures of `holders` into refusals.
        believed_seconds: time for which the tokens in memory are believed, after which changes are
            read. 0: a known token is confirmed at each request.
    """

    def __init__(
        self,
        holders: Holders,
        is_operator: Callable[[str], bool],
        limits: Limits,
        connections: Connections,
        failures: Callable[[], AbstractContextManager[None]] | None = None,
        believed_seconds: float = 0.0,
    ) -> None:
        self._believed_seconds = believed_seconds
        self._holders = holders
        self._failures = failures or functools.partial(ledger_failures, Outage())
        self._is_operator = is_operator
        self._limits = limits
        self._connections = connections
        self._students = RateLimiter(limits.requests_per_second, limits.burst)
        self._strangers = RateLimiter(limits.stranger_requests_per_second, limits.stranger_burst)
        self._known = KnownTokens(())
        self._operator = ""  # hash of the operator's token, once it was seen
        self._next_read: asyncio.Task[KnownTokens] | None = None
        self._reading: asyncio.Task[KnownTokens] | None = None  # the one that has begun
        self._last_read = -math.inf  # beginning of the last reading
        self._known_at = -math.inf  # beginning of the last reading that succeeded
        self._thread = ThreadPoolExecutor(1, "tokens")

    def read_now(self) -> None:
        """Reads the known tokens before the service starts, so that their holders are expected."""
        self._known = self._holders.known_tokens()

    def close(self) -> None:
        """Finishes the work that has begun."""
        self._thread.shutdown()

    async def student(self, request: Request) -> str:
        """Returns the student who holds the request's token.

        Raises:
            Refusal: the token is unknown or the operator's, or there are too many requests.
        """
        caller = await self.caller(request)
        if caller.name is None:
            raise Refusal(
                403,
                "not-a-student",
                "the operator's token shows budgets only; ask with a student's token",
            )
        return caller.name

    async def caller(self, request: Request) -> Caller:
        """Returns the holder of the request's token.

        Raises:
            Refusal: the token is unknown, or there are too many requests.
        """
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not _TOKEN.fullmatch(token):
            self.stranger(request)
            raise unknown_token()
        if not self._seems_known(token):
            self.stranger(request)
            with self._failures():
                known = await self._read_again()
            if known.holder(token) is None and not await self._in_thread(self._is_operator, token):
                raise unknown_token()
        elif self._is_out_of_date():
            with self._failures():  # a reading that has begun will do: it is new enough
                await (asyncio.shield(self._reading) if self._reading else self._read_again())
        holder = self._known.holder(token)
        wait = self._students.seconds_to_wait(holder or "")
        if wait > 0:
            self._connections.refused(request.client)  # refusals take time from others, too
            raise _too_many(self._limits.requests_per_second, wait)
        believed = holder is not None and self._believed_seconds > 0
        caller = Caller(holder) if believed else await self._confirmed(token)
        self._connections.known(request.client)
        return caller

    def stranger(self, request: Request) -> None:
        """Counts a request without a known token.

        Raises:
            Refusal: its address sends too many.
        """
        host = self._connections.host(request.client)
        wait = self._strangers.seconds_to_wait(network(host))
        if wait > 0:
            self._connections.refused(request.client)
            raise _too_many(self._limits.stranger_requests_per_second, max(wait, 1.0))

    def _seems_known(self, token: str) -> bool:
        """Returns whether the token was known a moment ago."""
        student = self._known.holder(token)
        return hmac.compare_digest(token_hash(token), self._operator) or student is not None

    def _is_out_of_date(self) -> bool:
        """Returns whether the tokens in memory are believed no more until they are read again."""
        age = asyncio.get_running_loop().time() - self._known_at
        return 0 < self._believed_seconds < age

    async def _confirmed(self, token: str) -> Caller:
        """Returns the holder of the token according to the ledger."""
        with self._failures():
            student = await self._in_thread(self._holders.authenticate, token)
        if student is not None:
            return Caller(student)
        if not await self._in_thread(self._is_operator, token):
            raise unknown_token()
        self._operator = token_hash(token)
        return Caller(None)

    async def _read_again(self) -> KnownTokens:
        """Reads the tokens of the ledger; one reading serves all requests that wait for it."""
        if self._next_read is None:
            self._next_read = asyncio.get_running_loop().create_task(self._read())
        return await asyncio.shield(self._next_read)

    async def _read(self) -> KnownTokens:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._last_read + _REFRESH_SECONDS - loop.time())
        began = loop.time()
        self._reading, self._next_read = self._next_read, None  # new tokens wait for the next one
        self._last_read = began
        try:
            self._known = await self._in_thread(self._holders.known_tokens)
            self._known_at = began
        finally:
            if self._reading is asyncio.current_task():
                self._reading = None
        return self._known

    async def _in_thread(self, work: Callable[..., _T], *arguments: str) -> _T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, work, *arguments)


def unknown_token() -> Refusal:
    """Returns the refusal of an unknown token."""
    return Refusal(
        401,
        "unknown-token",
        "send Authorization: Bearer TOKEN with a token that is known and was not revoked; the "
        "operator of the service issues them",
        headers={"WWW-Authenticate": "Bearer"},
    )


@contextmanager
def ledger_failures(outage: Outage) -> Iterator[None]:
    """Turns failures of the ledger into refusals that do not say where the ledger is."""
    try:
        yield
        outage.worked()
    except UnknownStudent:  # revoked since the token was looked up
        raise unknown_token() from None
    except (LedgerUnavailable, LedgerCorrupt, LedgerMismatch) as error:
        outage.failed(error)
        raise Refusal(
            503,
            "ledger-unavailable",
            "the teacher cannot use its ledger; nothing was answered, try again later with the "
            "same Idempotency-Key",
            headers={"Retry-After": _RETRY_SECONDS},
        ) from None


def _too_many(rate: float, wait: float) -> Refusal:
    return Refusal(
        429,
        "too-many-requests",
        f"more than {rate:g} requests per second; try again in {wait:.3f} seconds",
        headers={"Retry-After": str(math.ceil(wait))},
    )
