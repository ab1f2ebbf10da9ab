"""How much one student may send: rows and bytes at once, and requests over time."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

_BYTES_PER_NUMBER = 32  # the longest float64 in JSON takes 25 characters with its comma
_BYTES_BESIDE = 1024


@dataclass(frozen=True)
class Limits:
    """Limits of a service that may change from one start to the next: they cost no privacy.

    Attributes:
        max_rows: observations in one request.
        requests_per_second: of one student, on average, answered by one process.
        burst: requests that one student may send at once after a pause.
        body_seconds: how long a student may take to send a request.
    """

    max_rows: int = 256
    requests_per_second: float = 100.0
    burst: int = 200
    body_seconds: float = 10.0

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
    """A token bucket for each student: `burst` tokens, refilled at `requests_per_second`.

    Not for several threads at once.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}  # tokens left, and when that was

    def seconds_to_wait(self, student: str) -> float:
        """Takes a token and returns 0, or takes none and returns when there will be one."""
        now = self._clock()
        rate, burst = self._limits.requests_per_second, float(self._limits.burst)
        tokens, since = self._buckets.get(student, (burst, now))
        tokens = min(burst, tokens + rate * (now - since))
        if tokens >= 1:
            self._buckets[student] = (tokens - 1, now)
            return 0.0
        self._buckets[student] = (tokens, now)
        return (1 - tokens) / rate
