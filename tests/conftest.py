"""The environment of every test, its memory, and the databases of the tests that use one.

The environment is set before anything imports JAX. XLA once hung for good with threads of its own
on two cores, and the workers of pytest-xdist share the cores already: each gets the CPU backend and
one thread. Subprocesses inherit it. `SOTTO_TEST_PLATFORM=cuda` runs the tests on a GPU instead.

Most of the suite's time is compilation. Machine code that is not optimised compiles twice as fast,
XLA's older writer of it (without fusion emitters) twice as fast again, and in one part a third
faster, so tests run that; `test_optimised.py` runs the door's tests once more with what users run.
Programs carry no tracebacks, whose collection takes a tenth of the time, and share the context that
JAX writes them in, which takes 15 milliseconds to make. Workers and subprocesses share one
persistent compilation cache: that of JAX_COMPILATION_CACHE_DIR, or .jax_cache in the checkout,
which a later session finds warm. Small programs are compiled sooner than read, so they are not kept
there. An entry that another process is still writing cannot be decompressed; JAX then compiles by
itself.
"""

import contextlib
import ctypes
import gc
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import psutil
import pytest
import shapes
import tolerances
from postgres import MISSING, Server, binaries

os.environ["JAX_PLATFORMS"] = os.environ.get("SOTTO_TEST_PLATFORM", "cpu")
_QUICK = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1 "
)
_LEVEL = "" if "SOTTO_OPTIMISED_TESTS" in os.environ else _QUICK
_THREADS = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["XLA_FLAGS"] = _LEVEL + _THREADS  # XLA reads nothing after intra_op_parallelism_threads
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"
os.environ["JAX_INCLUDE_FULL_TRACEBACKS_IN_LOCATIONS"] = "false"
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.05"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

LARGEST_WORKER = 2 * 2**30
"""Bytes in memory above which a worker drops its compiled programs after a test."""
_ROOM = 2**29
"""Bytes that a worker may grow again before it drops them the next time, which takes a second."""

LARGEST_CACHE = 2**30
"""Bytes above which the compilation cache of the checkout starts again from nothing."""

if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # workers inherit it from the process above them
    _cache = Path(__file__).parents[1] / ".jax_cache"
    if _cache.exists() and sum(entry.stat().st_size for entry in _cache.iterdir()) > LARGEST_CACHE:
        shutil.rmtree(_cache, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(_cache)


shapes.install()
tolerances.install()


def _share_contexts() -> None:
    """Has every hundred programs of a thread written in one MLIR context, in place of one each."""
    from jax._src.interpreters import mlir

    made, kept = mlir.make_ir_context, threading.local()

    def context() -> object:
        kept.uses = getattr(kept, "uses", -1) + 1
        if kept.uses % 100 == 0:  # what programs leave in their context is dropped with it
            kept.context = made()
        return kept.context

    mlir.make_ir_context = context


_share_contexts()

SLOW = frozenset((Path(__file__).parent / "slow.txt").read_text().split())
"""Test files and functions that `make quick` leaves out, as measured."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what `slow.txt` names."""
    tests = Path(__file__).parent
    for item in items:
        file = item.path.relative_to(tests).as_posix()
        if not SLOW.isdisjoint((file, f"{file}::{item.name.partition('[')[0]}")):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Has the garbage collector leave out what was collected, and look for garbage less often.

    The 7,000 tests are 700,000 objects, which every full collection would walk through again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.fixture(autouse=True)
def checked_shapes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leaves shapes and types unchecked where a test is marked so."""
    jaxtyping.config.update("jaxtyping_disable", "unchecked_types" in request.keywords)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


_largest = LARGEST_WORKER


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """Drops compiled programs after a test that leaves the worker too large."""
    global _largest
    yield
    if _in_memory() > _largest:
        import equinox
        import jax

        equinox.clear_caches()
        jax.clear_caches()
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):  # only glibc has it
            ctypes.CDLL(None).malloc_trim(0)
        _largest = max(LARGEST_WORKER, _in_memory() + _ROOM)


def _in_memory() -> int:
    found: int = psutil.Process().memory_info().rss
    return found


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[Server]:
    """A PostgreSQL server of this worker's own; without the programs for it, the test fails."""
    if binaries() is None:
        pytest.fail(MISSING, pytrace=False)
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def postgresql_url(postgresql_server: Server) -> str:
    """SQLAlchemy URL of an empty PostgreSQL database."""
    return postgresql_server.new_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Path or URL of an empty database of each kind."""
    if request.param == "sqlite":
        return str(tmp_path / "database.sqlite")
    url: str = request.getfixturevalue("postgresql_url")
    return url
