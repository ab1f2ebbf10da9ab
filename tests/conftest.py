"""What every test stands on: its environment, and a PostgreSQL server for those that want one.

The environment is set before anything imports JAX. XLA once hung for good with threads of its own
on two cores, and the workers of pytest-xdist share the cores already: each gets the CPU backend and
one thread. Subprocesses inherit it.
"""

import os
from collections.abc import Iterator

import pytest
from postgres import MISSING, Server, binaries

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


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
