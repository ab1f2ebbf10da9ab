"""Work in several processes, or on a cluster."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from sotto import cluster
from sotto.errors import RunError

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def finished(
    work: Callable[[_Task], _Result], tasks: Sequence[_Task], workers: int
) -> Iterator[tuple[_Task, _Result]]:
    """Yields each task with its result as soon as it is done.

    Args:
        work: function of one task. It must be importable if there are several workers.
        tasks: arguments of `work`.
        workers: number of processes; with 1 the work is done in this process. A cluster
            (`sotto.cluster`) has its own.

    Raises:
        RunError: a process was killed.
    """
    if cluster.connected():
        yield from cluster.finished(work, tasks)
        return
    if workers == 1 or len(tasks) < 2:
        for task in tasks:
            yield task, work(task)
        return
    # JAX does not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(tasks)), context, _begin) as pool:
        futures = {pool.submit(work, task): task for task in tasks}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise RunError(
                "a training process was killed, perhaps because memory ran out; finished work is "
                "kept, so run the same command again with --workers 1"
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def at_once(workers: int, tasks: int) -> int:
    """Returns how many of these tasks are done at once, for an estimate of the time.

    Args:
        workers: number of processes, if no cluster is connected.
        tasks: number of tasks.
    """
    return max(1, min(cluster.cores() if cluster.connected() else workers, tasks))


def _begin() -> None:
    """Lets a worker end without a traceback on Ctrl-C, and with the program that began it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends this process once its parent has ended, whose killing it would not notice at work."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # results are written by the parent, so nothing is lost that was not before
