"""Answers per second of a teacher's service, and how long a batch takes.

    python benchmarks/teacher_service.py            about four minutes on two cores
    python benchmarks/teacher_service.py --quick    less than one
    python benchmarks/teacher_service.py --json results.json

One uvicorn process serves a 64x64 teacher with the observations and actions of AirRaid RAM (128
numbers, 6 actions) over HTTP; students in this process ask it in batches of 64 with the client of
`sotto train kickstart`. Every batch is charged to an SQLite ledger on disk before it is answered,
and stored under its idempotency key. Server and students share the machine's cores. Rates are
medians over interleaved repeats; latencies are of all batches of all repeats.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line sets it

import numpy as np

from sotto.privacy.answers.digests import DigestKey
from sotto.privacy.answers.distances import PolicyDistance
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms.policies import (
    Dirichlet,
    GaussianPolicy,
    PolicyMechanism,
    TruncatedDirichlet,
)
from sotto.serving.client import RemoteTeacher

ROWS, OBSERVATION_SIZE, ACTIONS = 64, 128, 6
MECHANISMS: dict[str, PolicyMechanism] = {
    "dirichlet": Dirichlet(actions=ACTIONS, concentration=5.0, floor=0.05),
    "truncated-dirichlet": TruncatedDirichlet(
        actions=ACTIONS, concentration=5.0, floor=0.05, threshold=1e-4, proposals=128
    ),
    "gaussian-policy": GaussianPolicy(actions=ACTIONS, noise_stddev=0.2, floor=0.05),
}
CASES = [("dirichlet", 1), ("dirichlet", 2), ("dirichlet", 8)]
CASES += [("truncated-dirichlet", 2), ("gaussian-policy", 2)]


def serve(ledger: str) -> None:
    """What the server's process runs: the service, as `sotto serve teacher` runs it."""
    import jax

    from sotto.algorithms.kickstarting.teachers import Ensemble
    from sotto.rl.envs.base import Discrete
    from sotto.rl.networks import Policy
    from sotto.serving.app import create_app
    from sotto.serving.server import Address
    from sotto.serving.server import serve as run
    from sotto.serving.traffic.limits import Limits

    policy = Policy(OBSERVATION_SIZE, Discrete(ACTIONS), (64, 64), jax.random.key(0), last_gain=1.0)
    teacher = Ensemble(jax.tree.map(lambda x: x[None], policy))
    limits = Limits(requests_per_second=1e6, burst=10**6)
    key = DigestKey.create(Path(f"{ledger}.key"))
    app = create_app(teacher, AnswerLedger.open(ledger), key, env_id="AirRaid", limits=limits)
    run(app, Address("127.0.0.1", 0), lambda url: print(url, flush=True))


class Service:
    """A server's process and its students."""

    def __init__(self, folder: Path, mechanism: str, students: int) -> None:
        statement = AnswerStatement(
            name=mechanism,
            mechanism=MECHANISMS[mechanism],
            distance=PolicyDistance(l2=1e-6),
            queries=10**9,
            queries_per_student=10**9,
            observation_size=OBSERVATION_SIZE,
            population="simulated",
        )
        where = folder / f"{mechanism}-{students}.sqlite"
        budget = Budget(epsilon=float("inf"), delta=1e-5)
        ledger = AnswerLedger.create(where, statement=statement, budget=budget)
        tokens = [ledger.add_student(f"student-{i}") for i in range(students)]
        ledger.close()
        command = [sys.executable, __file__, "--serve", str(where)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        url = self._process.stdout.readline().strip()
        self._teachers = [RemoteTeacher(url, token) for token in tokens]
        self.latencies: list[float] = []

    def ask(self, seconds: float) -> float:
        """All students ask for so long; answers per second."""
        end = time.perf_counter() + seconds
        counts = [0] * len(self._teachers)

        def student(index: int) -> None:
            observations = np.random.default_rng(index).integers(0, 256, (ROWS, OBSERVATION_SIZE))
            while time.perf_counter() < end:
                begin = time.perf_counter()
                answers = self._teachers[index].answer(observations.astype(np.float64))
                assert answers.released
                self.latencies.append(time.perf_counter() - begin)
                counts[index] += ROWS

        begin = time.perf_counter()
        threads = [threading.Thread(target=student, args=(i,)) for i in range(len(counts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts) / (time.perf_counter() - begin)

    def stop(self) -> None:
        for teacher in self._teachers:
            teacher.close()
        self._process.terminate()
        self._process.wait()


def measure(repeats: int, seconds: float, folder: Path) -> list[dict[str, Any]]:
    services = {case: Service(folder, *case) for case in CASES}
    try:
        rates: dict[tuple[str, int], list[float]] = {case: [] for case in CASES}
        for service in services.values():
            service.ask(0.5)
            service.latencies.clear()
        for _ in range(repeats):
            for case, service in services.items():
                rates[case].append(service.ask(seconds))
    finally:
        for service in services.values():
            service.stop()
    return [result(case, rates[case], services[case].latencies) for case in CASES]


def result(case: tuple[str, int], rates: list[float], latencies: list[float]) -> dict[str, Any]:
    median, slowest = np.percentile(latencies, [50, 99])
    return {
        "mechanism": case[0],
        "students": case[1],
        "answers_per_second": statistics.median(rates),
        "lowest": min(rates),
        "p50_ms": 1e3 * float(median),
        "p99_ms": 1e3 * float(slowest),
        "batches": len(latencies),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=Path, help="where ledgers are kept while it runs")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    os.environ["NO_PROXY"] = "127.0.0.1"
    repeats, seconds = (3, 2.0) if arguments.quick else (arguments.repeats, 8.0)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        results = measure(repeats, seconds, Path(folder))
    print(f"{'mechanism':<22}{'students':>9}{'answers/s':>12}{'lowest':>10}{'p50':>10}{'p99':>10}")
    for one in results:
        print(
            f"{one['mechanism']:<22}{one['students']:>9}{one['answers_per_second']:>12,.0f}"
            f"{one['lowest']:>10,.0f}{one['p50_ms']:>7.1f} ms{one['p99_ms']:>7.1f} ms"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
