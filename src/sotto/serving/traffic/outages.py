"""The log of a database that cannot be used: one line when that begins, and one when it ends."""

import time
from collections.abc import Callable

from sotto.serving.traffic.refusals import log

_QUIET_SECONDS = 10.0
"""Seconds without a failure after which a success ends an outage: reads may work as writes fail."""


class Outage:
    """Counts failures of a service's database, which would otherwise fill the log. One thread's.

    Args:
        clock: returns seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kind: type[Exception] | None = None
        self._failures = 0
        self._last = 0.0

    def failed(self, error: Exception) -> None:
        """Notes a failed request; the first one of a kind is in the log."""
        self._failures += 1
        self._last = self._clock()
        if type(error) is not self._kind:
            self._kind = type(error)
            log.error(
                "%s: %s; until the database works again, failed requests are counted and not shown",
                type(error).__name__,
                error,
            )

    def worked(self) -> None:
        """Notes a request that could use the database; the first one after an outage is shown."""
        if self._kind is not None and self._clock() - self._last >= _QUIET_SECONDS:
            log.warning("the database works again; %d requests failed", self._failures)
            self._kind, self._failures = None, 0
