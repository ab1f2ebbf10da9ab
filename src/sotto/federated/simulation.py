"""Flower's simulation: many people's devices on this machine, some of which drop out.

Each of Flower's nodes has the devices of many people here, because a node for each person takes
Flower 16 ms for every message. The devices follow the same protocol as over a network, each with
its own keys; but all of them are on one machine, which sees everything.
"""

import logging
import os
import random
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, Queue
from typing import Any

from sotto.errors import RunError
from sotto.extras import require
from sotto.federated import messages

_STAGES = (messages.KEYS, messages.SHARES, messages.VECTORS, messages.OPEN)
_SECONDS = 600.0


@dataclass(frozen=True)
class Unreliable:
    """Simulated people, some of whom drop out of a round, each at a random stage of it.

    Attributes:
        drop_out: probability that a person drops out of a round.
        seed: seed of who does.
    """

    drop_out: float
    seed: int

    def __call__(self, round_id: bytes, person: int, stage: str) -> bool:
        """Returns whether a person answers in a stage."""
        chance = random.Random(f"{self.seed} {round_id.hex()} {person}")
        if chance.random() >= self.drop_out:
            return True
        return _STAGES.index(stage) < chance.randrange(len(_STAGES))


@contextmanager
def simulated_network(people: int, drop_out: float, seed: int) -> Iterator[Any]:
    """Yields the `Network` of simulated people's devices, in processes of this machine.

    Args:
        people: number of people, who are numbered from 0.
        drop_out: probability that a person drops out of a round.
        seed: seed of who does.

    Raises:
        ValueError: Flower is not installed.
        RunError: Flower's simulation did not start, or this process is connected to a Ray cluster.
    """
    require("flwr")
    quiet_flower()
    import ray
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from sotto.federated.client import client_app
    from sotto.federated.network import Network

    if ray.is_initialized():  # Flower would use that cluster
        raise RunError(
            "this process is connected to a Ray cluster already; simulate devices in another one"
        )
    cores = os.cpu_count() or 1
    grids: Queue[Grid] = Queue()
    finished, server = threading.Event(), ServerApp()

    def hand_over(grid: Grid, context: Any) -> None:
        del context
        grids.put(grid)
        finished.wait()

    server.main()(hand_over)
    devices = client_app(people=people, present=Unreliable(drop_out, seed))
    resources: Any = {
        "client_resources": {"num_cpus": 1},
        "init_args": {
            "address": "local",  # or Ray looks for a cluster that runs on this machine, and hangs
            "num_cpus": cores,
            "logging_level": "error",
            "log_to_driver": False,
        },
    }
    failed: list[BaseException] = []

    def simulate() -> None:
        try:
            run_simulation(server, devices, min(cores, people), "ray", resources)
        except BaseException as error:  # it is raised in the main thread
            failed.append(error)

    path = os.environ.get("PYTHONPATH")
    thread = threading.Thread(target=simulate, name="flower", daemon=True)
    thread.start()
    try:
        yield Network(_first(grids, thread, failed), _SECONDS, simulated=True)
    finally:
        finished.set()
        thread.join()
        _set("PYTHONPATH", path)  # Flower changes it


def _set(name: str, value: str | None) -> None:
    """Sets an environment variable, or removes it."""
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value


def _first(grids: "Queue[Any]", thread: threading.Thread, failed: list[BaseException]) -> Any:
    """Returns Flower's connection to its nodes, once there is one."""
    while thread.is_alive():
        try:
            return grids.get(timeout=1)
        except Empty:
            continue
    reason = f": {failed[0]}" if failed else ""
    raise RunError(f"Flower's simulation did not start{reason}")


def quiet_flower() -> None:
    """Turns off reports to the makers of Flower and Ray, and Flower's notes on the terminal."""
    for name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
        os.environ.setdefault(name, "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns of a change
    logging.getLogger("flwr").setLevel(logging.ERROR)
    # Ray starts its processes by fork and exec, which is safe.
    warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
