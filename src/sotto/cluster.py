"""Work on a Ray cluster.

```
with on_cluster("auto"):                 # the cluster that this machine belongs to
    results = ordered(work, tasks)
```

A task runs on any node. If the node or its process dies, another one does the task again. The
process that sent the tasks receives one result for each, so a result must depend on its task alone.
Ledgers, noise and policies stay in that process.
"""

import logging
import os
import pickle
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from platform import python_version
from typing import Any, TypeVar
from urllib.parse import urlsplit

from sotto.errors import RunError
from sotto.extras import require

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

_ONE_CORE = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
_SOFTWARE = ("sotto", "jax", "jaxlib", "numpy", "gymnasium", "mujoco", "ale-py", "box2d")
_RETRIES = 10
"""Number of times that a task is done again after a death. A task that kills every process that
does it, such as one that needs too much memory, must end."""

_CONNECT_SECONDS = 10.0
_TOKEN_BY_DEFAULT = (2, 60)
_log = logging.getLogger(__name__)

_connected: ContextVar[bool] = ContextVar("cluster", default=False)
_in_task = False


@contextmanager
def on_cluster(address: str | None) -> Iterator[None]:
    """Does the work of this context on a Ray cluster.

    Args:
        address: HOST:PORT of the cluster; "auto", for the one that RAY_ADDRESS names or that this
            machine belongs to; "local", for a new one on this machine; or None, for no cluster.

    Raises:
        ValueError: Ray is not installed, or this process has a cluster already and another address
            is given than auto.
        RunError: there is no such cluster.
    """
    if address is None:
        yield
        return
    require("ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray sends statistics to its makers
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns of a change
    import ray

    _warn_of_an_open_cluster(address, ray.__version__)
    mine = not ray.is_initialized()
    if not mine and address != "auto":
        raise ValueError(f"this process has a Ray cluster already; give auto, not {address}")
    if mine:
        try:
            _require_listening(address)
            # Ray would print what its processes say.
            ray.init(address, logging_level="warning", log_to_driver=False)
        except (OSError, ValueError) as error:  # also ConnectionError
            raise RunError(
                f"there is no Ray cluster at {address!r}; start one with: ray start --head"
            ) from error
    token = _connected.set(True)
    try:
        yield
    finally:
        _connected.reset(token)
        if mine:
            ray.shutdown()


def _variables() -> dict[str, str]:
    """Returns environment variables with which a task has one core, and otherwise computes as here.

    XLA reads no flag after those of `_ONE_CORE`.
    """
    flags = f"{os.environ.get('XLA_FLAGS', '')} {_ONE_CORE}"
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags.strip(), "OPENBLAS_NUM_THREADS": "1"}


def _require_listening(address: str) -> None:
    """Raises OSError or ValueError if nobody listens at HOST:PORT. Ray itself waits very long."""
    named = os.environ.get("RAY_ADDRESS", "auto") if address == "auto" else address
    if named in ("auto", "local"):
        return
    place = urlsplit(named if "://" in named else f"ray://{named}")
    if place.hostname is None or place.port is None:
        raise ValueError(f"{named} is not HOST:PORT")
    socket.create_connection((place.hostname, place.port), timeout=_CONNECT_SECONDS).close()


def connected() -> bool:
    """Returns whether work is done on a cluster in the present context."""
    return _connected.get()


def cores() -> int:
    """Returns the number of cores of the connected cluster, and so of tasks that it does at once.

    Nodes that join or leave later are not in it.
    """
    import ray

    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def in_task() -> bool:
    """Returns whether this process does tasks of a cluster, and so has one core."""
    return _in_task


def finished(
    work: Callable[[_Task], _Result], tasks: Sequence[_Task]
) -> Iterator[tuple[_Task, _Result]]:
    """Yields each task with its result as soon as it is done.

    Args:
        work: function of one task. Nodes must be able to import it.
        tasks: arguments of `work`, which can be pickled.

    Raises:
        RunError: a node has other versions of the software, or a task killed every process that
            did it. An exception of `work` itself is raised as it is.
    """
    return ((tasks[index], result) for index, result in _results(work, tasks))


def _warn_of_an_open_cluster(address: str, ray_version: str) -> None:
    """Warns where this version of Ray asks nobody for a token unless it is told to."""
    parts = [int(part) for part in re.findall(r"\d+", ray_version)[:2]]
    default = "token" if tuple(parts) >= _TOKEN_BY_DEFAULT else "disabled"
    if address != "local" and os.environ.get("RAY_AUTH_MODE", default) != "token":
        _log.warning(
            "Ray %s lets whoever reaches its ports run programs; set RAY_AUTH_MODE=token here and "
            "for ray start",
            ray_version,
        )


def ordered(work: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> list[_Result]:
    """Returns the results in the order of the tasks; otherwise like `finished`."""
    found = dict(_results(work, tasks))
    return [found[index] for index in range(len(tasks))]


def _results(
    work: Callable[[_Task], _Result], tasks: Sequence[_Task]
) -> Iterator[tuple[int, _Result]]:
    import ray

    variables = {"env_vars": _variables()}
    remote = ray.remote(num_cpus=1, max_retries=_RETRIES, runtime_env=variables)(_do)
    sent = ray.put((_software(), work))
    waiting = {remote.remote(sent, task): index for index, task in enumerate(tasks)}
    try:
        while waiting:
            (done, *_), _ = ray.wait(list(waiting), num_returns=1)
            index = waiting.pop(done)
            try:
                result = ray.get(done)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, ray.exceptions.RaySystemError):
                    said = str(error.cause).partition("\n")[0]
                    raise RunError(f"a node cannot read a task: {said}") from error
                raise error.cause from None  # what `work` raised
            except ray.exceptions.RayError as error:
                said = str(error).partition("\n")[0]
                raise RunError(
                    f"a task died {_RETRIES + 1} times on the cluster, perhaps because memory ran "
                    f"out; finished work is kept ({said})"
                ) from error
            yield index, result
    finally:
        for one in waiting:
            ray.cancel(one)  # by force, Ray 2.60 ends this process if the task ends meanwhile


def _do(sent: tuple[dict[str, str], Callable[[Any], Any]], task: Any) -> Any:
    """Does one task on a node."""
    global _in_task
    expected, work = sent
    if (found := _software()) != expected:
        other = next(name for name in expected if found.get(name) != expected[name])
        raise RunError(
            f"a node has {other} {found.get(other)}, and this machine {expected[other]}; install "
            "the same versions on all nodes"
        )
    _in_task = True
    try:
        return work(task)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise RunError(f"{type(error).__name__}: {error}") from None
        raise


@cache  # looking them up takes a millisecond, and every task compares them
def _software() -> dict[str, str]:
    """Returns versions of everything that a result depends on."""

    def found(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return "(not installed)"

    return {name: found(name) for name in _SOFTWARE} | {"python": python_version()}
