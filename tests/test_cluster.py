"""Ray: nodes that die lose nothing, and the number of nodes changes nothing.

The cluster is a real one of several nodes (raylets), all on this machine.
"""

import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import ray
from commands import refused, run_json
from fixed_noise import fixed_noise
from ray.cluster_utils import Cluster

from sotto import cluster
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.gymnasium_users import Collector
from sotto.algorithms.dppg.training import DPPGTraining
from sotto.algorithms.experts import population as experts
from sotto.cli import main
from sotto.errors import RunError
from sotto.experiments import engine
from sotto.experiments.engine import Arm, Result, ResultFolder
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.processes import at_once, finished

CONFIG = DPPGConfig(
    env_id="Pendulum-v1",
    noise_multiplier=2.0,
    users_per_update=20,  # three blocks, the last one smaller
    steps_per_user=200,
    total_steps=20 * 200 * 4,
    evaluation_episodes=0,
)
MEMORY = 80_000_000


class Nodes:
    """A cluster whose nodes come and go. The first one has no cores, and so no tasks."""

    def __init__(self) -> None:
        head = {"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address = self._cluster.address
        self._nodes: list[Any] = []

    def have(self, count: int) -> None:
        """Makes `count` nodes with one core each."""
        while len(self._nodes) < count:
            self._nodes.append(self._cluster.add_node(num_cpus=1, object_store_memory=MEMORY))
        while len(self._nodes) > count:
            self.kill()

    def kill(self) -> None:
        """Kills a node with everything that it does."""
        self._cluster.remove_node(self._nodes.pop(), allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def nodes():
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(Path(__file__).parent))  # nodes import tasks from here
        patched.setenv("RAY_AUTH_MODE", "disabled")  # no token in the home directory
        made = Nodes()
        yield made
        made.close()


# --- trainings -----------------------------------------------------------------------------------


def trained(folder: Path, disturb: Callable[[], None] | None = None) -> tuple[Any, Ledger]:
    """The state after a training with fixed noise, and its ledger.

    `disturb` is called in the middle of the collection of the second release.
    """
    folder.mkdir()
    budget = Budget(epsilon=math.inf, delta=CONFIG.delta)  # nothing is proved with fixed noise
    ledger = Ledger.create(folder / "ledger.sqlite", "run", unit=CONFIG.privacy_unit, budget=budget)
    with fixed_noise(0):
        training = DPPGTraining(CONFIG, [0], [ledger])
    real, threads = cluster.ordered, []

    def ordered(work: Any, tasks: Any) -> Any:
        if disturb is not None and training.done == 1:
            threads.append(threading.Timer(0.3, disturb))
            threads[0].start()
        found = real(work, tasks)
        if threads:
            threads[0].join()
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cluster, "ordered", ordered)
        for _ in training:
            pass
    assert len(threads) == (disturb is not None)
    return jax.tree.map(np.asarray, training.states), ledger


def test_nodes_and_their_deaths_change_nothing(nodes: Nodes, tmp_path: Path) -> None:
    nodes.have(1)
    with cluster.on_cluster(nodes.address):
        alone, ledger = trained(tmp_path / "one")
        nodes.have(2)
        again, disturbed = trained(tmp_path / "two", nodes.kill)
    for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)
    for each in (ledger, disturbed):
        (stream,) = each.streams
        assert stream.releases == CONFIG.num_updates
        assert each.persons == CONFIG.users_per_update * CONFIG.num_updates


def test_the_command_trains_on_a_cluster(nodes: Nodes, tmp_path: Path, capsys: Any) -> None:
    nodes.have(1)
    small = ["--users-per-update", "9", "--steps-per-user", "20", "--total-steps", "360"]
    where = ["--ray", nodes.address, "--out", str(tmp_path / "run")]
    call = ["train", "dppg", "--env-id", "Pendulum-v1", "--target-epsilon", "5", *small, *where]
    assert main(call) == 0
    assert main(["certificate", str(tmp_path / "run"), "--verify"]) == 0
    capsys.readouterr()
    evaluate = ["eval", str(tmp_path / "run"), "--episodes", "10"]
    returns = [run_json(capsys, *evaluate, *more)["mean"] for more in ([], where[:2])]
    assert returns[0] == pytest.approx(returns[1], rel=1e-3)  # the mode of the policy, same seeds


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (["train", "ppo", "--ray", "auto"], "ppo with these settings has none; leave out --ray"),
        (["train", "dppg", "--ray", "local"], "simulated users of Gymnasium environments"),
        (["train", "dppg", "--env-id", "Pendulum-v1", "--ray", "127.0.0.1:9"], "no Ray cluster"),
        (["train", "dppg", "--env-id", "Pendulum-v1", "--ray", "nowhere"], "no Ray cluster"),
    ],
)
def test_what_a_cluster_cannot_do_is_refused(
    call: list[str], said: str, tmp_path: Path, capsys: Any
) -> None:
    budget = ["--target-epsilon", "5"] if "dppg" in call else []
    assert said in refused(capsys, *call, *budget, "--out", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "call",
    [
        ["experts", "train", "--experts", "2", "--out", "made"],
        ["reproduce", "wang2019", "fig2a", "--quick", "--seeds", "1", "--out", "made"],
    ],
)
def test_commands_without_their_cluster_make_nothing(
    call: list[str], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for address in ("127.0.0.1:9", "nowhere", ""):
        assert refused(capsys, *call, "--ray", address).startswith(
            f"sotto: there is no Ray cluster at '{address}'"
        )
    monkeypatch.setattr("sotto.extras.find_spec", lambda name: None if name == "ray" else True)
    assert "pip install 'sotto[ray]'" in refused(capsys, *call, "--ray", "local")
    assert not list(tmp_path.iterdir())


def test_an_evaluation_in_jax_leaves_a_cluster_alone(tmp_path: Path, capsys: Any) -> None:
    small = ["--users-per-update", "4", "--steps-per-user", "8", "--total-steps", "32"]
    run = ["--target-epsilon", "5", "--evaluation-episodes", "0", "--out", str(tmp_path / "run")]
    assert main(["train", "dppg", *small, *run]) == 0
    error = refused(capsys, "eval", str(tmp_path / "run"), "--ray", "local")
    assert "has CartPole-v1; leave out --ray" in error


# --- experts and experiments ---------------------------------------------------------------------


def test_a_cluster_makes_the_same_experts(nodes: Nodes, tmp_path: Path) -> None:
    nodes.have(1)
    settings = experts.ExpertSettings(env_id="CartPole-v1", experts=2, hidden=(4,))
    here = experts.train(tmp_path / "here", settings, 1, lambda _: None)
    with cluster.on_cluster(nodes.address):
        there = experts.train(tmp_path / "there", settings, 1, lambda _: None)
    np.testing.assert_array_equal(here.returns, there.returns)


def say(number: int) -> int:
    """Prints, as a library in a task may."""
    print("said in a task", flush=True)
    time.sleep(2)  # Ray prints what tasks say once in a second
    return number


def test_what_is_said_on_other_machines_is_not_printed(nodes: Nodes, capfd: Any) -> None:
    """It would stand among the JSON of a command."""
    nodes.have(1)
    with cluster.on_cluster(nodes.address):
        assert cluster.ordered(say, [1, 2]) == [1, 2]
    assert "said in a task" not in "".join(capfd.readouterr())


def train_kept(arm: Arm) -> Result:
    """The result of seed 0, which was trained before."""
    return Result(arm, (0,), np.zeros(1), {"return": np.full((1, 1), float(arm.settings))})


def train_arm(arm: Arm, seeds: Any, folder: Path, report: Any) -> list[Result]:
    """Reads what its needs left, and leaves a file itself."""
    left = [folder.parent / need.file / f"seed-{need.seeds[-1]}" / "left" for need in arm.needs]
    read = sum(int(path.read_text()) for path in left)
    for seed in seeds:
        (folder / f"seed-{seed}" / "left").write_text(str(arm.settings + read))
    for seed in seeds:
        (folder / f"seed-{seed}" / "ledger").write_text("kept")
    groups = [(seed,) for seed in seeds] if arm.by_seed else [tuple(seeds)]
    value = float(arm.settings + read)
    return [
        Result(arm, some, np.zeros(1), {"return": np.full((len(some), 1), value)})
        for some in groups
    ]


def test_arms_are_trained_on_nodes_that_have_no_files_of_ours(nodes: Nodes, tmp_path: Path) -> None:
    nodes.have(1)
    first = [Arm(f"a{n}", "", n, (0, 1), f"a{n}", train_arm, 1.0, by_seed=n == 10) for n in (1, 10)]
    last = Arm("sum", "", 100, (0,), "sum", train_arm, 1.0, needs=tuple(first))
    store, said = ResultFolder(tmp_path / "arms"), []
    store.keep(train_kept(first[1]))  # its seed 0 is not trained again
    with cluster.on_cluster(nodes.address):
        (result,) = engine.run([last], store, 1, said.append)
    assert result.last[1].tolist() == [111.0]
    assert (store.place("a10", 1) / "ledger").read_text() == "kept"
    assert not (store.place("a10", 0) / "ledger").exists()
    assert {path.name for path in store.folder.iterdir()} == {"a1", "a10", "sum"}
    assert len(said) == 4
    assert [store.missing(arm) for arm in (*first, last)] == [()] * 3


def test_announced_times_count_the_cores_of_the_cluster(nodes: Nodes) -> None:
    nodes.have(2)
    with cluster.on_cluster(nodes.address):
        assert (at_once(1, 100), at_once(8, 1)) == (2, 1)
    assert (at_once(3, 100), at_once(3, 2)) == (3, 2)


# --- tasks ---------------------------------------------------------------------------------------


def refuse(task: int) -> int:
    raise ValueError(f"no {task}")


def die(folder: Path, task: int) -> int:
    """Kills its process the first time, and every time if the task is 13."""
    mark = folder / str(task)
    if task == 13 or not mark.exists():
        mark.touch()
        os._exit(1)
    return task * task


class Odd(Exception):
    """An error that cannot be pickled as it is."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} and {other}")


def fail_oddly(task: int) -> int:
    raise Odd("this", "that")


def test_tasks_fail_as_they_would_here_and_are_done_again_where_a_process_dies(
    nodes: Nodes, tmp_path: Path, monkeypatch: Any
) -> None:
    """In one connection, because each new one starts processes anew."""
    monkeypatch.setattr(cluster, "_RETRIES", 1)
    nodes.have(1)
    with cluster.on_cluster(nodes.address):
        with pytest.raises(ValueError, match=r"^no 7$"):
            list(finished(refuse, [7], 1))
        with pytest.raises(RunError, match=r"^Odd: this and that$"):
            cluster.ordered(fail_oddly, [1])
        assert cluster.ordered(partial(die, tmp_path), [3, 1, 2]) == [9, 1, 4]
        with pytest.raises(RunError, match="died 2 times on the cluster"):
            cluster.ordered(partial(die, tmp_path), [13])


def test_other_versions_on_a_node_are_refused(nodes: Nodes, monkeypatch: Any) -> None:
    nodes.have(1)
    here = cluster._software() | {"jax": "0.0.1"}
    monkeypatch.setattr(cluster, "_software", lambda: here)
    with (
        cluster.on_cluster(nodes.address),
        pytest.raises(RunError, match=r"a node has jax 0.1.*, and this machine 0\.0\.1"),
    ):
        cluster.ordered(abs, [1])


def test_a_cluster_of_ones_own_stays(nodes: Nodes) -> None:
    """Whoever has called ray.init uses the same cluster afterwards."""
    nodes.have(1)
    ray.init(nodes.address, logging_level="error")
    try:
        with cluster.on_cluster("auto"):
            assert cluster.ordered(abs, [-2]) == [2]
        assert ray.is_initialized()
        with pytest.raises(ValueError, match="give auto"), cluster.on_cluster("local"):
            pass
        with (
            cluster.on_cluster("auto"),
            pytest.raises(ValueError, match="meet real people without it"),
        ):
            Collector(replace(CONFIG, population="real"))
    finally:
        ray.shutdown()
