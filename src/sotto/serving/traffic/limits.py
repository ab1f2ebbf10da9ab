"""Limits on the requests of students and of strangers, who have sent no known token."""

import math
import time
from dataclasses import dataclass

_BYTES_PER_NUMBER = 32  # the longest float64 in JSON takes 25 characters with its comma
_BYTES_BESIDE = 1024
_MOST_NAMES = 10_000


@dataclass(frozen=True)
class Limits:
    """Limits of a service. They may change at every start, since they do not affect privacy.

    Attributes:
        max_rows: largest number of observations in one request.
        requests_per_second: average rate of one student that one process answers.
        burst: number of requests that one student may send at once after a pause.
        body_seconds: longest time that a student may take to send a request.
        header_seconds: longest time that anyone may take to send a request's headers.
        idle_seconds: time that a student's connection stays open between requests.
        known_connections: largest number of open connections of students and the operator.
        strangers: largest number of open connections over which no known token came.
        strangers_per_address: the same for one address.
        stranger_requests_per_second: average rate of requests without a known token from one
            address.
        stranger_burst: number of such requests at once after a pause.
        pause_seconds: shortest time during which nothing is read from a connection that sends
            more; the longest is twice as long.
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
        """Returns the largest size in bytes of a body with `max_rows` observations."""
        return _BYTES_BESIDE + self.max_rows * (observation_size + 1) * _BYTES_PER_NUMBER


class RateLimiter:
    """A token bucket for each name: `burst` tokens, refilled at `rate` a second.

    The `_MOST_NAMES` names that were used last are remembered. It is not safe for several threads.
    """

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, float(burst)
        self._buckets: dict[str, tuple[float, float]] = {}  # tokens left, and when that was

    def seconds_to_wait(self, name: str) -> float:
        """Takes a token and returns 0; if there is none, returns the seconds until there is one."""
        now = time.monotonic()
        tokens, since = self._buckets.pop(name, (self._burst, now))
        tokens = min(self._burst, tokens + self._rate * (now - since))
        wait = 0.0 if tokens >= 1 else (1 - tokens) / self._rate
        self._buckets[name] = (tokens if wait else tokens - 1, now)
        if len(self._buckets) > _MOST_NAMES:
            del self._buckets[next(iter(self._buckets))]
        return wait
