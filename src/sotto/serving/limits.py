"""How much may be sent: by a student, and by strangers, who have no token that is known."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

_BYTES_PER_NUMBER = 32  # the longest float64 in JSON takes 25 characters with its comma
_BYTES_BESIDE = 1024
_MOST_NAMES = 10_000


@dataclass(frozen=True)
class Limits:
    """Limits of a service that may change from one start to the next: they cost no privacy.

    Attributes:
        max_rows: observations in one request.
        requests_per_second: of one student, on average, answered by one process.
        burst: requests that one student may send at once after a pause.
        body_seconds: how long a student may take to send a request.
        header_seconds: how long anybody may take to send a request's headers.
        idle_seconds: how long a student's connection stays open between requests.
        known_connections: of students and the operator, open at once.
        strangers: open connections over which no known token came.
        strangers_per_address: the same, of one address.
        stranger_requests_per_second: requests without a known token, of one address, on average.
        stranger_burst: such requests at once after a pause.
        pause_seconds: for so long nothing is read from a stranger who sends more.
    """

    max_rows: int = 256
    requests_per_second: float = 100.0
    burst: int = 200
    body_seconds: float = 10.0
    header_seconds: float = 5.0
    idle_seconds: int = 60
    known_connections: int = 256
    strangers: int = 256
    strangers_per_address: int = 64
    stranger_requests_per_second: float = 5.0
    stranger_burst: int = 20
    pause_seconds: float = 1.0

    def __post_init__(self) -> None:
        """Refuses limits under which nobody is answered."""
        for name in ("max_rows", "burst"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("requests_per_second", "body_seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a positive number, got {getattr(self, name)}")

    def max_body_bytes(self, observation_size: int) -> int:
        """Room for `max_rows` observations of that size, written in any way."""
        return _BYTES_BESIDE + self.max_rows * (observation_size + 1) * _BYTES_PER_NUMBER


class RateLimiter:
    """A token bucket for each name: `burst` tokens, refilled at `rate` a second.

    The names used last are remembered, `_MOST_NAMES` of them. Not for several threads at once.
    """

    def __init__(
        self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate, self._burst = rate, float(burst)
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}  # tokens left, and when that was

    def seconds_to_wait(self, name: str) -> float:
        """Takes a token and returns 0, or takes none and returns when there will be one."""
        now = self._clock()
        tokens, since = self._buckets.pop(name, (self._burst, now))
        tokens = min(self._burst, tokens + self._rate * (now - since))
        wait = 0.0 if tokens >= 1 else (1 - tokens) / self._rate
        self._buckets[name] = (tokens if wait else tokens - 1, now)
        if len(self._buckets) > _MOST_NAMES:
            del self._buckets[next(iter(self._buckets))]
        return wait
