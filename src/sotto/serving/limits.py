"""How much one student may send: rows and bytes at once, and requests over time."""

import time
from collections.abc import Callable

from pydantic import BaseModel, ConfigDict, Field

_BYTES_PER_NUMBER = 32  # the longest float64 in JSON takes 25 characters with its comma
_BYTES_BESIDE = 1024


class Limits(BaseModel):
    """Limits of a service that may change from one start to the next: they cost no privacy.

    Attributes:
        max_rows: observations in one request.
        requests_per_second: of one student, on average, answered by one process.
        burst: requests that one student may send at once after a pause.
        body_seconds: how long a student may take to send a request.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    max_rows: int = Field(default=256, ge=1)
    requests_per_second: float = Field(default=100.0, gt=0, allow_inf_nan=False)
    burst: int = Field(default=200, ge=1)
    body_seconds: float = Field(default=10.0, gt=0, allow_inf_nan=False)

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
