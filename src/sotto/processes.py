"""Work in several processes, which is kept as it is done."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from sotto.errors import RunError

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def finished(
    work: Callable[[_Task], _Result], tasks: Sequence[_Task], workers: int
) -> Iterator[tuple[_Task, _Result]]:
    """Each task with its result, as it is done.

    Args:
        work: importable, where there are several workers.
        tasks: what it is called with.
        workers: processes; 1 works in this one.

    Raises:
        RunError: a process was killed.
    """
    if workers == 1 or len(tasks) < 2:
        for task in tasks:
            yield task, work(task)
        return
    # JAX does not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(tasks)), context, _die_quietly) as pool:
        futures = {pool.submit(work, task): task for task in tasks}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise RunError(
                "a training process was killed, perhaps for want of memory; what is done is kept: "
                "run the same command again, with --workers 1"
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _die_quietly() -> None:
    """On Ctrl-C, which every process of a terminal gets, without a traceback each."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
