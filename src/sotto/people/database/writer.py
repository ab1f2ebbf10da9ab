"""A thread that does the writing operations of a store in groups, with one commit for each group.

A commit waits for the disk, and takes longer than everything else. So all operations that arrive
during one commit share the next one.

Guarantee:
    An operation has a result only after the commit of its group, so its change is on disk then. A
    refused operation changes nothing, and the others of its group stay. If a group cannot be
    committed, each of its operations raises `StoreUnavailable`.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from sotto.people.database.store import CampaignDatabase

MOST_TOGETHER = 64
"""Most operations in a group; other processes that write wait for a whole group."""

_PAUSE = 0.2
"""Pause after a group, as a share of its time. SQLite has no queue of processes that want to write:
the updater would hardly ever find the database free."""

_T = TypeVar("_T")


@dataclass
class _Job:
    """One operation and its result."""

    work: Callable[[], Any]
    result: Future[Any] = field(default_factory=Future)
    value: Any = None
    error: Exception | None = None

    def do(self) -> None:
        """Does the work, and keeps what it returned or raised."""
        try:
            self.value = self.work()
        except Exception as error:
            self.error = error

    def tell(self) -> None:
        """Gives the result out."""
        if self.error is None:
            self.result.set_result(self.value)
        else:
            self.result.set_exception(self.error)


class Writer:
    """The one thread of a process that writes to a store.

    Args:
        store: the store. The operations use no other one.
    """

    def __init__(self, store: CampaignDatabase) -> None:
        self._store = store
        self._waiting = deque[_Job]()
        self._thread = ThreadPoolExecutor(1, "store")

    def submit(self, work: Callable[..., _T], *arguments: Any) -> Future[_T]:
        """Lets the thread do the work, in order of arrival, and returns its future result."""
        job = _Job(partial(work, *arguments))
        self._waiting.append(job)
        self._thread.submit(self._next_group)  # one group at least for each operation
        return job.result

    def close(self) -> None:
        """Finishes the work that was submitted."""
        self._thread.shutdown()

    def _next_group(self) -> None:
        taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_TOGETHER))]
        group = [job for job in taken if job.result.set_running_or_notify_cancel()]
        if not group:  # an earlier group took them
            return
        began = time.perf_counter()
        try:
            with self._store.together():
                for job in group:
                    job.do()
        except Exception as error:
            for job in group:
                job.error = error
        for job in group:
            job.tell()
        time.sleep(_PAUSE * (time.perf_counter() - began))
