"""Learning from private experts through the command line: directories, resuming, what is said."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import printed, refused, run_json
from minari.dataset.minari_storage import MinariStorage
from padded_logs import of_padded, without
from people_logs import write_visits

from sotto.algorithms.expert_offline import states as expert_offline_states
from sotto.algorithms.expert_offline import votes
from sotto.algorithms.expert_offline.algorithm import ExpertOffline
from sotto.algorithms.expert_offline.clones import CloneConfig, Clones
from sotto.algorithms.expert_offline.config import ExpertOfflineConfig
from sotto.algorithms.expert_offline.distillation import DistillationConfig
from sotto.algorithms.expert_offline.sources import read_sources
from sotto.algorithms.experts import population as experts
from sotto.algorithms.experts.population import ExpertSettings, Population
from sotto.cli import main
from sotto.cli.train import _conclude
from sotto.data import minari_files
from sotto.privacy.accounting.composition import gaussian_epsilon
from sotto.privacy.bounds import at_most
from sotto.privacy.certificates.derive import derive, verify
from sotto.rl.envs.base import Discrete
from sotto.rl.networks import Policy
from sotto.runs import checkpoints, metrics
from sotto.runs.directory import open_experiment
from sotto.runs.start import config_of
from sotto.runs.training import Update, load_states

COUNT = 30
EPISODES, CAP = 2, 15
TINY = (
    *("--queries", "8", "--rounds", "3", "--lanes", "2", "--rollout-cap", "20"),
    *("--gradient-steps", "20", "--hidden", "8", "--student-hidden", "8", "--minibatch", "16"),
    *("--evaluation-cap", "50", "--evaluation-episodes", "4"),
)
TARGET = ("--target-epsilon", "5")
LOG_OF = {"env_id": "CartPole-v1", "actions": 2, "floor": 0.05, "policies": "a rule"}
# Accounting of drawn experts takes a fifth of the time at a small epsilon.
DP_SGD = ("--method", "dp-sgd", "--batch", "6", "--noisy-steps", "25", "--target-epsilon", "0.5")


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Short distillations and clones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            votes,
            "DistillationConfig",
            lambda hidden: DistillationConfig(hidden, steps=100, minibatch=32),
        )
        patch.setattr(expert_offline_states, "_CLONES", CloneConfig(hidden=(8,), steps=50))
        yield


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cart and pole, as far as it matters: experts push where the pole falls, and slip at times."""
    rng = np.random.default_rng(0)
    shape = (COUNT, EPISODES)
    observations = rng.normal(0, 0.1, (*shape, CAP + 1, 4)).astype(np.float32)
    slips = rng.random((*shape, CAP)) < 0.05
    log = of_padded(
        observations=observations,
        actions=((observations[:, :, :CAP, 2] > 0) ^ slips).astype(np.int32),
        rewards=np.ones((*shape, CAP), np.float32),
        lengths=np.full(shape, CAP, np.int32),
        terminated=np.zeros(shape, bool),
    )
    path = tmp_path_factory.mktemp("data") / "cartpole-v0"
    minari_files.save(log, path, **LOG_OF)
    return path


def words(out: Path, dataset: Path, *more: str) -> list[str]:
    given = ["train", "expert-offline", "--dataset", str(dataset), "--out", str(out), "--json"]
    return [*given, *TINY, *more]


def test_a_run_directory_holds_everything(capsys, dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    answer = json.loads(printed(capsys, *words(out, dataset, *TARGET, "--seeds", "2")))
    assert answer["status"] == "proved"
    assert 4.9 < answer["epsilon"] <= 5
    assert answer["delta"] == pytest.approx(1 / (10 * COUNT))
    assert answer["persons"] == COUNT
    for run in open_experiment(out).runs:
        names = {path.name for path in run.path.iterdir()}
        assert {"config.json", "ledger.sqlite", "certificate.json", "released"} <= names
        assert run.settings.config["voters"] == "clones"  # only a dataset was given
        assert run.settings.config["env_id"] == "CartPole-v1"  # as the dataset says
    assert main(["certificate", str(out), "--verify"]) == 0
    said = " ".join(printed(capsys, "certificate", str(out)).split())
    assert "The noisy votes of clones" in said
    assert "Each expert's whole log" in said
    assert "the log of its own expert" in said
    # Two seeds with noise of multiplier z are one with z / sqrt(2).
    (run, _) = open_experiment(out).runs
    (event,) = derive(run.open_ledger()).worst_person.events
    both = gaussian_epsilon(event.noise_multiplier / math.sqrt(2), answer["delta"])
    assert 7 < both < 9
    assert answer["epsilon_of_all_seeds"] == pytest.approx(both, rel=1e-4)
    assert "asked or learned from the same experts" in said
    assert f"the costs add up, to epsilon {at_most(both)} at delta" in said
    shown = run_json(capsys, "certificate", str(out))
    assert shown["epsilon_of_all_seeds"] == answer["epsilon_of_all_seeds"]
    assert [one["epsilon"] for one in shown["certificates"]] == [answer["epsilon"]] * 2
    algorithm, experiment = ExpertOffline(), open_experiment(out)
    update = Update(1, 1, tuple(metrics.read(run.metrics)))
    _conclude(algorithm, experiment, config_of(experiment), update, 1.0)
    assert (
        f"for each of 2 seeds, and {at_most(both)} for all of them together"
        in capsys.readouterr().out
    )
    assert run_json(capsys, "eval", str(out), "--episodes", "5")["policy"] == "ema"
    assert main(["report", str(out)]) == 0
    page = (out / "report.html").read_text()
    assert "EXPERT-OFFLINE on CartPole-v1" in page
    assert f"{at_most(both)} <small>" in page
    assert "for all 2 seeds together" in page
    assert "the same experts" in page
    assert "separate runs" not in page
    assert "separate ledgers" not in page
    assert "experts per seed" not in page
    error = refused(capsys, "train", "expert-offline", "--out", str(out), "--resume")
    assert "has made all of its" in error


@pytest.fixture
def leaning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts on disk, whose number is that of the log's."""
    policies = [Policy(4, Discrete(2), (4,), jax.random.key(seed)) for seed in range(COUNT)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *policies)
    settings = ExpertSettings(env_id="CartPole-v1", experts=COUNT, hidden=(4,))
    found = Population(settings, stacked, np.zeros((COUNT, 1)))
    monkeypatch.setattr(experts, "load", lambda _: found)


@pytest.mark.usefixtures("leaning")
def test_experts_vote_by_what_their_own_log_returned(capsys, dataset: Path, tmp_path: Path) -> None:
    more = ("--experts", str(tmp_path / "experts"), "--least-return", "1")
    answer = json.loads(printed(capsys, *words(tmp_path / "run", dataset, *TARGET, *more)))
    assert answer["status"] == "proved"
    strangers = tmp_path / "strangers-v0"
    log = minari_files.load(dataset)
    twice = jax.tree.map(lambda array: np.concatenate([array, array]), log)
    minari_files.save(twice, strangers, **LOG_OF | {"policies": "twice as many"})
    error = refused(capsys, *words(tmp_path / "other", strangers, *TARGET, *more))
    assert f"a number from 0 to {COUNT - 1}" in error


def of_real_people(dataset: Path, copy: Path) -> Path:
    """The dataset as somebody else would have made it: it does not say that we simulated it."""
    shutil.copytree(dataset, copy)
    metadata = copy / "data" / "metadata.json"
    contents = json.loads(metadata.read_text())
    del contents["sotto"]
    metadata.write_text(json.dumps(contents))
    return copy


def test_experts_that_we_simulated_are_not_real(capsys, dataset: Path, tmp_path: Path) -> None:
    error = refused(capsys, *words(tmp_path / "run", dataset, *TARGET, "--population", "real"))
    assert "are simulated, by sotto experts train; leave out --population real" in error
    assert not (tmp_path / "run").exists()


def test_what_is_wrong_with_real_experts_is_not_said(capfd, dataset: Path, tmp_path: Path) -> None:
    theirs = of_real_people(dataset, tmp_path / "real-v0")
    real = (*TARGET, "--population", "real", "--env-id", "CartPole-v1", "--expert-count", "3")
    assert main(words(tmp_path / "run", theirs, *real)) == 2
    shown = capfd.readouterr()
    assert "what went wrong is not shown" in shown.err
    assert "must be a number from 0 to 2" not in shown.err
    assert main(words(tmp_path / "run", theirs, *TARGET, *real[2:])) == 2  # real, if nobody says
    assert "must be a number from 0 to 2" not in capfd.readouterr().err
    assert main(words(tmp_path / "run", theirs, *TARGET, *real, "--population", "simulated")) == 2
    assert "must be a number from 0 to 2" in capfd.readouterr().err


def test_an_expert_who_takes_their_episodes_away_changes_nobody_else(
    dataset: Path, tmp_path: Path
) -> None:
    log = without(minari_files.load(dataset), 3)
    minari_files.save(log, tmp_path / "without-v0", **LOG_OF)
    config = ExpertOfflineConfig(
        dataset=str(dataset),
        population="real",
        env_id="CartPole-v1",
        expert_count=COUNT,
        target_epsilon=5.0,
        queries=2,
        rounds=2,
    )
    found = []
    for path in (dataset, tmp_path / "without-v0"):
        theirs = of_real_people(path, tmp_path / f"real-{path.name}")
        algorithm = ExpertOffline()
        resolved = algorithm.resolved(replace(config, dataset=str(theirs)))
        voters = read_sources(None, str(theirs), count=COUNT).voters(resolved)
        assert isinstance(voters, Clones)
        whose = jax.tree.leaves((voters.policies, voters.weights))
        leaves = [np.delete(np.asarray(leaf), 3, 0) for leaf in whose]
        found.append((replace(resolved, dataset="log"), leaves))
    (settings, before), (other_settings, after) = found
    assert settings == other_settings
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


def test_real_experts_are_not_counted_by_their_data(capsys, dataset: Path, tmp_path: Path) -> None:
    copied = of_real_people(dataset, tmp_path / "copied-v0")
    real = (*TARGET, "--population", "real", "--env-id", "CartPole-v1")
    assert "give --expert-count" in refused(capsys, *words(tmp_path / "run", copied, *real))
    assert main(words(tmp_path / "run", copied, *real, "--expert-count", "40")) == 0
    assert json.loads(capsys.readouterr().out)["persons"] == 40


def test_seeds_of_real_experts_are_run_one_by_one(capsys, dataset: Path, tmp_path: Path) -> None:
    real = (*TARGET, "--population", "real", "--seeds", "2")
    error = refused(capsys, *words(tmp_path / "run", dataset, *real))
    assert "run seeds one by one if you accept the sum" in error
    assert not (tmp_path / "run").exists()


def test_without_an_environment_nothing_is_played(capsys, dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    box = ("--box-low", *["-1"] * 4, "--box-high", *["1"] * 4)
    answer = json.loads(printed(capsys, *words(out, dataset, *TARGET, "--env-id", "none", *box)))
    assert answer["return"] == {}
    assert answer["env_steps"] == 0
    assert "no environment" in refused(capsys, "eval", str(out))
    assert main(["report", str(out)]) == 0
    assert "no simulator" in (out / "report.html").read_text()


@pytest.mark.parametrize(
    "method",
    [("--queries", "8", "--box-low", "0", "--box-high", "10"), (*DP_SGD, "--delta", "1e-3")],
)
def test_the_certificate_says_where_an_imported_log_comes_from(
    method: tuple[str, ...], capsys, tmp_path: Path
) -> None:
    said = {"source": "a trial", "licence": "CC0", "already_public": True}
    log, out = write_visits(tmp_path, COUNT, **said), tmp_path / "run"
    assert main(words(out, log, *TARGET, "--env-id", "none", *method)) == 0
    (run,) = open_experiment(out).runs
    sentences = {one.claim: one.sentence for one in derive(run.open_ledger()).claims}
    assert {"evaluation.published", "logs.one-person"} <= set(sentences)
    assert sentences["evaluation.source"] == "The log has this origin: a trial"
    assert sentences["evaluation.licence"] == "The log may be used under these terms: CC0"
    capsys.readouterr()
    assert main(["certificate", str(out), "--verify"]) == 0


def test_references_have_no_certificate(capsys, dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert "epsilon" not in json.loads(printed(capsys, *words(out, dataset, "--method", "cql")))
    assert "is a CQL run, which protects nobody" in refused(capsys, "certificate", str(out))
    before = jax.tree.leaves(load_states(open_experiment(out), 10))
    shutil.rmtree(open_experiment(out).runs[0].checkpoints / f"{10:08d}")
    assert main(["train", "expert-offline", "--out", str(out), "--resume", "--json"]) == 0
    after = jax.tree.leaves(load_states(open_experiment(out), 10))
    for one, other in zip(before, after, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5, atol=1e-6)


def test_a_run_that_lost_its_checkpoint_asks_nobody_again(dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(words(out, dataset, *TARGET)) == 0
    (run,) = open_experiment(out).runs
    before = jax.tree.leaves(load_states(open_experiment(out), 1))
    shutil.rmtree(run.checkpoints)
    head = run.open_ledger().head_hash
    assert main(["train", "expert-offline", "--out", str(out), "--resume", "--json"]) == 0
    assert run.open_ledger().head_hash == head
    for one, other in zip(
        before, jax.tree.leaves(load_states(open_experiment(out), 1)), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.timeout(300)
def test_killed_it_goes_on_without_paying_twice(dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code = "import sys; from sotto.cli import main; sys.exit(main(sys.argv[1:]))"
    given = words(out, dataset, *DP_SGD)
    process = subprocess.Popen([sys.executable, "-c", code, *given], env=dict(os.environ))
    deadline = time.monotonic() + 200
    while not (out / "metrics.jsonl").exists() or not (out / "metrics.jsonl").read_bytes():
        assert process.poll() is None
        assert time.monotonic() < deadline, "the training hangs"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (run,) = open_experiment(out).runs
    saved = checkpoints.steps(run.checkpoints)[-1]
    charged = run.open_ledger().streams[0].releases
    assert main(["train", "expert-offline", "--out", str(out), "--resume", "--json"]) == 0
    ledger = run.open_ledger()
    assert [stream.releases for stream in ledger.streams] == [25]
    assert 0.45 < ledger.spent().epsilon <= 0.5
    assert verify(run.certificate, ledger).status == "verified"
    states = load_states(open_experiment(out), 10)
    assert int(states.learner.steps[0]) == 25 - (charged - 3 * saved)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--expert-count", "30", "--id-column", "doctor"), "in its metadata 'doctor', a number"),
        ((), "does not state the number of experts"),
        (("--expert-count", "60", "--id-column", "id"), "names no expert"),
    ],
)
def test_experts_of_somebody_elses_dataset(
    capsys, dataset: Path, tmp_path: Path, more: tuple[str, ...], message: str
) -> None:
    foreign = tmp_path / "foreign-v0"
    shutil.copytree(dataset, foreign)
    MinariStorage.read(foreign / "data").update_metadata({"sotto": {}})
    out = tmp_path / "run"
    assert message in refused(capsys, *words(out, foreign, *TARGET, *more))
    assert not out.exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((), "needs --target-epsilon"),
        ((*TARGET, "--method", "stable-prefix"), "a fixed log cannot take their place"),
        ((*TARGET, "--delta", "0.04"), "vacuous for 30 experts"),
        ((*TARGET, "--id-column", "doctor"), "'expert_id' names the experts of this dataset"),
        (
            (*TARGET, "--id-column", "doctor", "--expert-count", "30"),
            "'expert_id' names the experts of this dataset",
        ),
        (
            (*TARGET, "--id-column", "id", "--expert-count", "60"),
            "'id' is what Minari notes of an episode, and names no expert",
        ),
        (("--method", "bc", *TARGET), "protects nobody"),
        ((*TARGET, "--ledger", "x", "--states", "box", "--box-low", "0"), "has 1 numbers"),
    ],
)
def test_settings_that_cannot_run_leave_nothing(
    capsys, dataset: Path, tmp_path: Path, more: tuple[str, ...], message: str
) -> None:
    out = tmp_path / "run"
    assert message in refused(capsys, *words(out, dataset, *more))
    assert not out.exists()
