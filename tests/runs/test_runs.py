"""Whole trainings through the command line: what they leave behind, and what breaks them."""

import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import printed, refused, run_json
from pydantic_core import to_json
from small_runs import SMALL_DPPG, SMALL_PPO
from sqlalchemy import exc

from sotto.algorithms.dppg.algorithm import DPPG
from sotto.cli import main
from sotto.errors import RunError
from sotto.privacy.certificates.derive import verify
from sotto.privacy.ledger import entries
from sotto.runs import checkpoints, metrics
from sotto.runs.directory import open_experiment
from sotto.runs.marks import Mark


def train(out: Path, *words: str) -> list[str]:
    return ["train", "dppg", "--out", str(out), "--json", *SMALL_DPPG, *words]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "one"
    assert main(train(out, "--seed", "3")) == 0
    return out


@pytest.fixture
def finished_pair(trained_pair: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_pair, tmp_path / "two"))


def test_a_run_directory_holds_everything(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert {"config.json", "ledger.sqlite", "certificate.json", "metrics.jsonl"} <= names
    assert list((finished / "tensorboard").glob("events.*"))
    assert checkpoints.steps(finished / "checkpoints") == [9, 10]
    experiment = open_experiment(finished)
    assert experiment.settings.seeds == (3,)
    assert experiment.settings.config["target_epsilon"] == 1.3
    assert "sotto train dppg" in experiment.settings.command


def test_metrics_say_why_each_quantity_may_be_written(finished: Path) -> None:
    lines = metrics.read(finished / "metrics.jsonl")
    assert [line.updates for line in lines] == list(range(1, 11))
    assert lines[-1].env_steps == 640
    assert lines[-1].epsilon == pytest.approx(1.3, rel=1e-3)
    assert lines[-1].epsilon == json.loads((finished / "certificate.json").read_text())["epsilon"]
    assert set(lines[0].evaluation) == {"last", "ema"}
    assert len(lines[0].released["update_norm"]) == 1
    (steps,) = lines[0].simulated["steps_per_user"]
    assert 0 < steps <= 16.0  # fewer where a first episode ended early


def test_real_people_leave_no_diagnostics(tmp_path: Path) -> None:
    out = tmp_path / "real"
    words = ("--population", "real", "--env-id", "clinics:TestClinic-v0")
    assert main(train(out, *words)) == 0
    assert all(line.simulated == {} for line in metrics.read(out / "metrics.jsonl"))


def test_certificate_is_verified_and_an_edited_one_is_not(capsys, copied: Path) -> None:
    assert main(["certificate", str(copied), "--verify"]) == 0
    assert "Proved" in printed(capsys, "certificate", str(copied))
    file = copied / "certificate.json"
    contents = json.loads(file.read_text())
    file.write_bytes(to_json(contents | {"epsilon": 0.1}, indent=2) + b"\n")
    error = refused(capsys, "certificate", str(copied), "--verify")
    assert "epsilon is not what the ledger gives" in error
    file.write_text("{")
    assert "cannot be read" in refused(capsys, "certificate", str(copied), "--verify")


def test_the_ledger_of_another_run(capsys, copied: Path, finished_pair: Path) -> None:
    shutil.copy(finished_pair / "seed-0" / "ledger.sqlite", copied / "ledger.sqlite")
    for command in (("certificate", str(copied)), ("report", str(copied))):
        assert "belongs to run" in refused(capsys, *command)
    assert "belongs to run" in refused(capsys, *train(copied, "--resume", "--seed", "3"))


def test_a_damaged_certificate_is_not_gone_on_from(capsys, copied: Path) -> None:
    shutil.rmtree(copied / "checkpoints" / f"{10:08d}")
    (copied / "certificate.json").write_text("{")
    assert "is damaged" in refused(capsys, "train", "dppg", "--out", str(copied), "--resume")


def test_eval_of_each_policy(capsys, finished: Path) -> None:
    capsys.readouterr()
    for words in (("--policy", "last"), ("--policy", "tail", "--sampled"), ()):
        answer = run_json(capsys, "eval", str(finished), "--episodes", "5", *words)
        assert 1 <= answer["min"] <= answer["mean"] <= answer["max"] <= 500
        assert answer["updates"] == answer["total_updates"] == 10
    assert answer["policy"] == "ema"
    assert "has last, ema, tail" in refused(capsys, "eval", str(finished), "--policy", "best")
    assert "leave out --env-id" in refused(capsys, "eval", str(finished), "--env-id", "Line-v0")


def test_a_corrupt_checkpoint(capsys, copied: Path) -> None:
    newest = copied / "checkpoints" / f"{10:08d}"
    for file in newest.rglob("*"):
        if file.is_file():
            file.write_bytes(b"\0" * file.stat().st_size)
    error = refused(capsys, "eval", str(copied))
    assert "damaged" in error
    assert str(newest) in error
    shutil.rmtree(newest)  # what the sentence advises
    assert main(["eval", str(copied), "--episodes", "2"]) == 0


def test_resuming_a_finished_run(capsys, copied: Path) -> None:
    assert "finished" in refused(capsys, *train(copied, "--resume", "--seed", "3"))


def test_a_finished_run_is_not_said_to_begin(capsys, copied: Path) -> None:
    capsys.readouterr()
    assert main(["train", "dppg", "--out", str(copied), "--resume"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.strip() == (
        f"sotto: {copied} has made all of its 10 updates; see the results with: "
        f"sotto report {copied}"
    )


def test_resuming_with_other_settings(capsys, copied: Path) -> None:
    words = ("train", "dppg", "--out", str(copied), "--resume", "--clip-norm", "1")
    assert "--clip-norm" in refused(capsys, *words)
    assert "run of dppg" in refused(capsys, "train", "ppo", "--out", str(copied), "--resume")


def test_a_lost_update_is_made_again_with_new_people(copied: Path) -> None:
    """As if killed between the last charge and its checkpoint."""
    shutil.rmtree(copied / "checkpoints" / f"{10:08d}")
    assert main(["train", "dppg", "--out", str(copied), "--resume", "--json"]) == 0
    (run,) = open_experiment(copied).runs
    ledger = run.open_ledger()
    assert [stream.releases for stream in ledger.streams] == [10, 1]
    assert ledger.persons == 44
    assert ledger.spent().epsilon <= 1.3
    assert verify(run.certificate, ledger).status == "verified"
    assert [line.updates for line in metrics.read(run.metrics)] == list(range(1, 11))


def test_seeds_side_by_side_go_back_to_a_common_checkpoint(finished_pair: Path) -> None:
    """As if killed between the two saves of the last chunk."""
    shutil.rmtree(finished_pair / "seed-1" / "checkpoints" / f"{10:08d}")
    assert main(["train", "dppg", "--out", str(finished_pair), "--resume", "--json"]) == 0
    for run in open_experiment(finished_pair).runs:
        assert checkpoints.steps(run.checkpoints)[-1] == 10
        assert verify(run.certificate, run.open_ledger()).status == "verified"
        assert run.open_ledger().streams[1].releases == 1


def test_seeds_have_each_their_own_run(finished_pair: Path) -> None:
    one, two = open_experiment(finished_pair).runs
    assert one.settings.run_id != two.settings.run_id
    assert open_experiment(finished_pair / "seed-1").runs == (two,)
    ours, theirs = (metrics.read(run.metrics)[0].released for run in (one, two))
    assert ours != theirs


def test_report_is_one_page_without_other_files(capsys, finished_pair: Path) -> None:
    pages = run_json(capsys, "report", str(finished_pair))["reports"]
    assert len(pages) == 3
    for page in map(Path, pages):
        text = page.read_text()
        assert "Proved" in text
        assert "Choosing a seed" in text or page.parent.name.startswith("seed")
        assert not re.search(r'(src|href)="(?!data:)', text)
        pictures = sorted(path.name for path in (page.parent / "figures").glob("*.png"))
        assert pictures == ["budget.png", "guarantee.png", "learning.png", "updates.png"]


def test_a_full_disk_while_charging_loses_nothing(capsys, monkeypatch, tmp_path: Path) -> None:
    out, written = tmp_path / "full", entries.insert

    def insert(connection, entry) -> None:
        if entry.kind == "charge" and entry.sequence == 5:
            raise exc.OperationalError("INSERT", {}, Exception("database or disk is full"))
        written(connection, entry)

    with monkeypatch.context() as patched:
        patched.setattr(entries, "insert", insert)
        assert "disk is full" in refused(capsys, *train(out))
    (run,) = open_experiment(out).runs
    assert checkpoints.steps(run.checkpoints)[-1] == 3
    assert run.open_ledger().streams[0].releases == 3
    assert main(["train", "dppg", "--out", str(out), "--resume", "--json"]) == 0
    assert [stream.releases for stream in run.open_ledger().streams] == [3, 7]
    assert main(["certificate", str(out), "--verify"]) == 0


@pytest.mark.parametrize("failure", [AssertionError, KeyboardInterrupt])
@pytest.mark.parametrize("chunks", [0, 1])
def test_whatever_stops_it_a_run_that_made_nothing_leaves_nothing(
    monkeypatch, tmp_path: Path, failure: type[BaseException], chunks: int
) -> None:
    algorithm, out = DPPG, tmp_path / "run"
    begin = algorithm.train

    def stopped(*given):
        if chunks:
            yield next(begin(*given))
        raise failure

    monkeypatch.setattr(algorithm, "train", stopped)
    if failure is KeyboardInterrupt:
        assert main(train(out)) == 130
    else:
        with pytest.raises(failure):
            main(train(out))
    assert out.exists() == (chunks == 1)  # what was charged and saved is kept


def test_a_ledger_that_cannot_be_made_leaves_nothing(capsys, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert "in memory" in refused(capsys, *train(out, "--ledger", "sqlite://", "--seeds", "2"))
    assert not out.exists()


def test_ppo_runs_and_has_no_certificate(capsys, tmp_path: Path) -> None:
    out = tmp_path / "ppo"
    assert main(["train", "ppo", "--out", str(out), "--json", *SMALL_PPO]) == 0
    assert main(["eval", str(out), "--episodes", "2"]) == 0
    assert main(["report", str(out)]) == 0
    assert "Not private" in (out / "report.html").read_text()
    assert "protects nobody" in refused(capsys, "certificate", str(out))
    for seed in ("-1", str(2**31), str(2**32)):
        assert "seeds go from 0" in refused(capsys, "eval", str(out), "--seed", seed)
    assert "no policy" in refused(capsys, "eval", str(out), "--policy", "ema")


# --- killed and interrupted ----------------------------------------------------------------------


def start(*words: str) -> subprocess.Popen[bytes]:
    code = "import sys; from sotto.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.Popen([sys.executable, "-c", code, *words])


def wait_for_lines(process: subprocess.Popen[bytes], file: Path, count: int) -> None:
    deadline = time.monotonic() + 90
    while process.poll() is None and time.monotonic() < deadline:
        if file.exists() and file.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.01)
    assert process.poll() is not None, "the training hangs"


@pytest.mark.timeout(200)
def test_killed_at_random_moments_nothing_is_lost_or_spent_twice(tmp_path: Path) -> None:
    out = tmp_path / "run"
    rng = random.Random(0)
    words = train(out, "--total-steps", "3200")  # 50 updates, chunks of 3
    for _ in range(2):
        lines = (out / "metrics.jsonl").read_text().count("\n") if out.exists() else 0
        process = start(*words)
        wait_for_lines(process, out / "metrics.jsonl", lines + rng.randint(1, 4))
        time.sleep(rng.random() * 0.3)
        process.send_signal(signal.SIGKILL)
        process.wait()
        (run,) = open_experiment(out).runs
        saved = checkpoints.steps(run.checkpoints)[-1]
        # Never less in the ledger than what came of it.
        assert sum(stream.releases for stream in run.open_ledger().streams) >= saved
        words = ["train", "dppg", "--out", str(out), "--resume", "--json"]
    process = start(*words)
    assert process.wait(timeout=120) == 0
    ledger = run.open_ledger()
    assert checkpoints.steps(run.checkpoints)[-1] == 50
    charged = sum(stream.releases for stream in ledger.streams)
    assert 50 <= charged <= 50 + 2 * 3
    assert ledger.persons == 4 * charged  # everybody took part once
    assert ledger.spent().epsilon <= 1.3
    assert verify(run.certificate, ledger).status == "verified"
    numbers = [line.updates for line in metrics.read(run.metrics)]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == 50


def test_interrupted_it_finishes_the_chunk_and_can_be_resumed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(*train(out, "--total-steps", "3200"))
    wait_for_lines(process, out / "metrics.jsonl", 1)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    (run,) = open_experiment(out).runs
    saved = checkpoints.steps(run.checkpoints)[-1]
    assert metrics.read(run.metrics)[-1].updates == saved
    assert run.open_ledger().streams[0].releases == saved
    assert main(["certificate", str(out), "--verify"]) == 0


# --- the pieces ----------------------------------------------------------------------------------


def test_checkpoints_find_a_changed_number(monkeypatch, tmp_path: Path) -> None:
    state = {"a": jnp.arange(3.0), "n": jnp.int32(7)}
    checkpoints.save(tmp_path, 1, state)
    loaded = checkpoints.load(tmp_path, 1, jax.eval_shape(lambda: state))
    np.testing.assert_array_equal(loaded["a"], state["a"])
    assert loaded["n"] == 7
    with pytest.raises(RunError, match=r"damaged|does not fit"):
        checkpoints.load(tmp_path, 1, {"a": jnp.zeros(4), "n": jnp.int32(0)})
    with pytest.raises(RunError, match=r"another version.*the version that wrote it"):
        checkpoints.load(tmp_path, 1, {"a": jnp.zeros(3), "m": jnp.int32(0)})
    with pytest.raises(RunError, match=r"does not hold .*the previous checkpoint"):
        checkpoints.load(tmp_path, 1, state | {"b": jnp.zeros(3)})
    digest = checkpoints._digest
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "_digest", lambda arrays: digest(arrays) ^ 1)
        checkpoints.save(tmp_path, 2, state)
    with pytest.raises(RunError, match="changed after it was written"):
        checkpoints.load(tmp_path, 2, state)


def test_a_checkpoint_of_an_earlier_version_is_loaded(tmp_path: Path) -> None:
    """In orbax' other format, with times in it and without a mark."""
    import orbax.checkpoint as ocp

    state = {"a": jnp.arange(3.0)}
    arrays = checkpoints._named(state)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / f"{1:08d}", arrays | {"sha256": checkpoints._digest(arrays)})
    np.testing.assert_array_equal(checkpoints.load(tmp_path, 1, state)["a"], state["a"])
    checkpoints.save(tmp_path, 2, state)
    assert checkpoints.steps(tmp_path) == [1, 2]
    assert not list(tmp_path.rglob("_CHECKPOINT_METADATA"))[1:]


def test_a_checkpoint_is_there_with_its_mark_or_not_at_all(monkeypatch, tmp_path: Path) -> None:
    """Without it, nothing would tell that the ledger is older."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, "write_whole", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(tmp_path, 1, {"a": jnp.zeros(3)}, Mark(head_hash="0" * 64, charges=1))
    assert checkpoints.steps(tmp_path) == []


def test_checkpoints_refuse_random_keys(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="random keys"):
        checkpoints.save(tmp_path, 1, {"key": jax.random.key(0)})


def test_metrics_survive_a_torn_line_and_a_step_back(tmp_path: Path) -> None:
    def line(first: int, updates: int, seconds: float) -> metrics.Line:
        numbers = {"released": {"x": [np.nan, -np.inf]}, "evaluation": {"y": np.nan}}
        return metrics.Line(updates, first, updates, seconds, None, **numbers)

    log = metrics.MetricsWriter(tmp_path, 1)
    for number in range(3):
        log.append(line(number, number + 1, 0.0))
    log.close()
    file = tmp_path / "metrics.jsonl"
    file.write_text(file.read_text() + '{"updates": 4, "fir')
    assert [one.updates for one in metrics.read(file)] == [1, 2, 3]
    log = metrics.MetricsWriter(tmp_path, 1)
    log.append(line(2, 3, 9.0))
    log.close()
    assert [(one.updates, one.seconds) for one in metrics.read(file)] == [(1, 0), (2, 0), (3, 9)]
    last = metrics.read(file)[-1]
    np.testing.assert_equal(last.released["x"], [np.nan, -np.inf])
    assert np.isnan(last.evaluation["y"])
