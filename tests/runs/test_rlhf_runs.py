"""Private RLHF through the command line: run directories, resuming, evaluating, reports."""

import contextlib
import io
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import printed, refused, run_json
from killed import Killed
from small_runs import SMALL_PPO
from tiny_language import (
    MODEL,
    PEOPLE,
    SECRET,
    TINY,
    install_films,
    killed_at_checkpoint,
    write_feedback,
)

from sotto.algorithms.rlhf import people
from sotto.cli import main
from sotto.errors import visible
from sotto.privacy.certificates.derive import verify
from sotto.privacy.certificates.lone import verify_file
from sotto.rl.language import batches
from sotto.runs import checkpoints, metrics, training
from sotto.runs.directory import open_experiment
from sotto.runs.training import load_states

TRAIN = ("train", "rlhf", *TINY)
NAMED = ("--model", str(MODEL))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the films of simulated people, and with the files of real people."""
    folder = tmp_path_factory.mktemp("language")
    install_films(folder / "data")
    return folder


@pytest.fixture(autouse=True)
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOTTO_DATA", str(folder / "data"))


@pytest.fixture(scope="module")
def real(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """A finished run about real people, and the flags that name their files."""
    flags = write_feedback(folder)
    assert main([*TRAIN, *flags, "--json", "--out", str(folder / "real")]) == 0
    return folder / "real", flags


@pytest.fixture(scope="module")
def simulated(folder: Path) -> tuple[Path, str]:
    """A finished run about simulated people, and what the training printed."""
    said, out = io.StringIO(), folder / "simulated"
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setenv("SOTTO_DATA", str(folder / "data"))
        patch.setattr(batches, "_SECONDS_BETWEEN_NOTES", 0.0)
        patch.setattr(people, "BATCH", 8)
        assert main([*TRAIN, "--no-judge", "--out", str(out)]) == 0
    return out, said.getvalue()


def resume(out: Path, *more: str) -> list[str]:
    return ["train", "rlhf", "--out", str(out), "--resume", "--json", *NAMED, *more]


def test_what_is_measured_has_its_own_words(simulated):
    out, said = simulated
    assert said.startswith(f"rlhf: 2 updates, at most {PEOPLE * 3 * 6} rated tokens, into")
    assert "Measured: rating 0." in said
    assert "return" not in said
    assert "environment" not in said
    progress = [line for line in said.splitlines() if " updates   " in line]
    assert [line.split()[0] for line in progress] == ["1/2", "2/2"]
    assert all("   rating 0." in line and "   KL " in line for line in progress)
    (run,) = open_experiment(out).runs
    lines = metrics.read(run.metrics)
    assert {line.env_steps for line in lines} == {PEOPLE * 3 * 6}
    assert lines[0].evaluation["kl"] == 0  # the base model
    assert lines[-1].evaluation["kl"] != 0


def test_a_long_update_says_how_far_it_is(simulated):
    _, said = simulated
    before, after = said.split("\n     1/2 updates", 1)
    assert f"\n    8 of {PEOPLE * 3} completions, about " in before
    assert before.endswith("\n    computing release 1 of 1, which is charged first")
    assert " s left\n" in after
    samples = "    a sample: "  # which may hold any sign
    assert not any("%" in line for line in said.splitlines() if not line.startswith(samples))


def test_samples_of_simulated_people_are_shown_now_and_then(simulated):
    out, said = simulated
    shown = [line for line in said.splitlines() if line.startswith("    a sample: ")]
    assert len(shown) == 2
    (run,) = open_experiment(out).runs
    prompt, completion = metrics.read(run.metrics)[0].samples[0]
    assert f'"{visible(prompt)}" is continued' in shown[0]
    assert visible(completion) in shown[0]


def test_nothing_of_real_people_is_shown_or_evaluated(capsys, real, tmp_path):
    out, _ = real
    (run,) = open_experiment(out).runs
    for line in metrics.read(run.metrics):
        assert (line.evaluation, line.simulated, line.samples) == ({}, {}, ())
        assert (line.before, line.samples_before) == ({}, ())
    assert main(["report", str(out)]) == 0
    page = (out / "report.html").read_text()
    assert "Nothing is evaluated, because the people are real" in page
    assert "Samples" not in page
    written = (path for path in out.rglob("*") if path.is_file())
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == []
    error = refused(capsys, "eval", str(out), *NAMED)
    assert "nothing is evaluated, because the people are real" in error


def test_ratings_of_samples_are_the_evaluation(capsys, simulated):
    out, _ = simulated
    assert "give --model" in refused(capsys, "eval", str(out))
    said = printed(capsys, "eval", str(out), *NAMED, "--episodes", "20")
    assert said.startswith("last policy, sampled, 20 completions per seed: mean 0.")
    found = run_json(capsys, "eval", str(out), *NAMED, "--episodes", "20")
    assert not found["greedy"]
    assert 0 < found["min"] <= found["mean"] + 1e-9 <= found["max"] + 2e-9 < 1
    assert f"mean {found['mean']:.3f}" in said


def test_the_tuned_adapter_is_handed_out_with_the_certificate(simulated):
    out, _ = simulated
    handed_out = out / "released" / "adapter" / "certificate.json"
    assert handed_out.read_text() == (out / "certificate.json").read_text()
    assert verify_file(handed_out).status == "true"
    assert sorted(path.name for path in handed_out.parent.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "certificate.json",
    ]


def test_the_report_has_a_figure_of_each_quantity_and_samples(simulated):
    out, _ = simulated
    assert main(["report", str(out)]) == 0
    assert {path.name for path in (out / "figures").iterdir()} == {
        *("learning.png", "budget.png", "guarantee.png")
    }
    page = (out / "report.html").read_text()
    assert "rated tokens, at most" in page
    assert "<th>base model</th><th>after update 2</th>" in page
    (run,) = open_experiment(out).runs
    first = metrics.read(run.metrics)[0]
    assert first.before["kl"] == 0
    assert first.before == first.evaluation  # the release alone does not change the model
    assert first.samples_before == first.samples
    for value in metrics.read(run.metrics)[-1].evaluation.values():
        assert f"<b>{value:.3f}</b>" in page
    for line in (metrics.read(run.metrics)[0], metrics.read(run.metrics)[-1]):
        for one in dict(line.samples):
            assert f"<td>{visible(one)}</td>" in page


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--model",), "give --model"),
        (("--feedback",), "give --feedback"),
        (("--public-prompts",), "give --public-prompts"),
    ],
)
def test_resuming_needs_every_file_again(capsys, real, given, says):
    out, flags = real
    every = [*NAMED, *flags]
    at = every.index(given[0])
    del every[at : at + 2]
    assert says in refused(capsys, "train", "rlhf", "--out", str(out), "--resume", *every)


def test_another_model_of_the_same_size_is_refused(capsys, real, tmp_path, monkeypatch):
    """A release weighs features of one model; with another one it would mean nothing."""
    _, flags = real
    model = Path(shutil.copytree(MODEL, tmp_path / "model"))
    out, named = tmp_path / "run", ("--model", str(model))
    interrupt(monkeypatch, 1, *flags, *named, "--json", "--out", str(out))
    weights = model / "model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    says = "is not the model of this run, whose files had another SHA-256"
    flags = ("--out", str(out), "--resume", *named, *flags)
    assert says in refused(capsys, "train", "rlhf", *flags)
    assert says in refused(capsys, "generate", str(out), *named, "--prompt", "the")


def test_other_public_prompts_are_refused(capsys, tmp_path, monkeypatch):
    """The features, which are of the first prompts, would not fit the rest of the training."""
    out, flags = tmp_path / "run", write_feedback(tmp_path)
    interrupt(monkeypatch, 1, *flags, "--json", "--out", str(out))
    prompts = Path(flags[3])
    prompts.write_text(prompts.read_text() + "\nthe film")
    says = f"{prompts} does not have the public prompts of this run, whose file had another SHA-256"
    assert says in refused(capsys, *resume(out, *flags))
    new = (*TRAIN, *flags, "--prompts-identity", "0" * 64, "--out", str(tmp_path / "new"))
    assert says in refused(capsys, *new)


def test_files_that_have_moved_are_known_by_what_they_hold(real, tmp_path, monkeypatch, capsys):
    """A run whose release is charged could not go on from another folder."""
    monkeypatch.chdir(tmp_path)
    (first := tmp_path / "first").mkdir()
    flags, out = write_feedback(first), tmp_path / "run"
    model = Path(shutil.copytree(MODEL, first / "model"))
    near = [f"./{Path(one).relative_to(tmp_path)}" if "/" in one else one for one in flags]
    interrupt(monkeypatch, 1, *near, "--model", "first/model", "--json", "--out", str(out))
    moved = Path(shutil.copytree(first, tmp_path / "second"))
    other = [one.replace(str(first), str(moved)) for one in flags]
    again = ["train", "rlhf", "--out", str(out), "--resume", "--json"]
    says = f"was started with --feedback {flags[1]}; give the same, or start a new run"
    assert says in refused(capsys, *again, "--model", str(moved / "model"), *other)
    shutil.rmtree(model)
    (first / "prompts.txt").unlink(missing_ok=True)
    assert main([*again, "--model", str(moved / "model"), *other[2:], *flags[:2]]) == 0
    stored = open_experiment(out).settings.config
    assert (stored["model"], stored["feedback"]) == (str(moved / "model"), flags[1])
    assert stored["public_prompts"] == other[other.index("--public-prompts") + 1]


@pytest.mark.parametrize("ledger", [(), ("--ledger", "elsewhere.sqlite")])
def test_the_command_that_goes_on_names_every_file(capsys, tmp_path, monkeypatch, ledger):
    monkeypatch.chdir(tmp_path)
    out, flags = tmp_path / "run", write_feedback(tmp_path)
    with monkeypatch.context() as patch:  # Ctrl-C after the first update
        patch.setattr(training, "_interruptible", lambda: contextlib.nullcontext(lambda: True))
        assert main([*TRAIN, *flags, *ledger, "--json", "--out", str(out)]) == 130
    told = shlex.split(capsys.readouterr().err.rpartition("continue with: ")[2])
    assert told[:2] == ["sotto", "train"]
    assert ("--ledger" in told) == bool(ledger)
    assert main([*told[1:], "--json"]) == 0


def test_the_base_model_does_not_choose_among_answers(tmp_path):
    out = tmp_path / "run"
    more = ("--reranked", "2", "--kl-target", "2", "--no-judge", "--json")
    assert main([*TRAIN, *more, "--out", str(out)]) == 0
    (run,) = open_experiment(out).runs
    first = metrics.read(run.metrics)[0]
    assert first.before["kl"] == 0
    assert first.evaluation["kl"] > 0  # the released reward model chooses


def interrupt(monkeypatch: pytest.MonkeyPatch, number: int, *given: str) -> None:
    """Trains, and ends where checkpoint `number` would be written."""
    left, save = [number], checkpoints.save

    def killed(*state):
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        save(*state)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save", killed)
        with pytest.raises(Killed):
            main([*TRAIN, *given])


def test_after_the_release_it_goes_on_without_another(real, tmp_path, monkeypatch):
    """Killed while the language model is tuned.

    The ratings have changed then, which changes nothing: they were read for the release only.
    """
    out, flags = tmp_path / "run", write_feedback(tmp_path)
    interrupt(monkeypatch, 1, *flags, "--json", "--out", str(out))
    (run,) = open_experiment(out).runs
    assert checkpoints.steps(run.checkpoints) == [1]
    before, ratings = reward_model(out), Path(flags[1])
    ratings.write_text(ratings.read_text().replace('"rating": 0.', '"rating": 0.5'))
    assert main(resume(out, *flags)) == 0
    np.testing.assert_array_equal(reward_model(out), before)
    assert checkpoints.steps(run.checkpoints)[-1] == 2
    ledger = run.open_ledger()
    assert [(one.releases, one.statement.horizon) for one in ledger.streams] == [(1, 1)]
    assert ledger.persons == PEOPLE
    assert ledger.spent().epsilon <= 1
    assert verify(run.certificate, ledger).status == "verified"


def reward_model(out: Path) -> np.ndarray:
    """The released weights in the last checkpoint."""
    experiment = open_experiment(out)
    states = load_states(experiment, checkpoints.last_checkpoint(experiment))
    assert np.any(np.asarray(states.weights))
    return np.asarray(states.weights)


@pytest.mark.timeout(200)
def test_a_release_that_was_lost_is_not_made_again(capsys, folder, tmp_path):
    out = tmp_path / "run"
    killed_at_checkpoint(0, *TRAIN, "--no-judge", "--out", str(out))
    (run,) = open_experiment(out).runs
    assert run.open_ledger().persons == PEOPLE
    assert "every release of this run was charged and then lost" in refused(capsys, *resume(out))
    ledger = run.open_ledger()
    assert [one.releases for one in ledger.streams] == [1]
    assert ledger.persons == PEOPLE


def test_interrupted_policy_gradients_go_on_without_the_release_that_was_lost(
    tmp_path, monkeypatch
):
    """Killed after the last of three releases was charged, and before it was saved."""
    out = tmp_path / "run"
    method = ("--method", "policy-gradient", "--releases", "3", "--directions", "4")
    interrupt(monkeypatch, 2, *method, "--no-judge", "--json", "--out", str(out))
    (run,) = open_experiment(out).runs
    assert checkpoints.steps(run.checkpoints) == [1, 2]
    assert main(resume(out)) == 0
    ledger = run.open_ledger()
    assert [one.releases for one in ledger.streams] == [3]
    assert ledger.persons == PEOPLE
    assert ledger.spent().epsilon <= 1
    assert verify(run.certificate, ledger).status == "verified"
    lines = metrics.read(run.metrics)
    assert [line.updates for line in lines] == [1, 2, 4]
    assert lines[-1].env_steps == PEOPLE * 3 * 6
    assert main(["report", str(out)]) == 0
    assert (out / "figures" / "updates.png").is_file()
    page = (out / "report.html").read_text()
    assert "<th>base model</th><th>after update 4</th>" in page
    assert lines[0].before["kl"] == 0 != lines[0].evaluation["kl"]
    assert [line.before for line in lines[1:]] == [{}, {}]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((*TRAIN, "--seeds", "2"), "do not train side by side"),
        ((*TRAIN, "--kl-coefficient", "0.1"), "no effect with reward-model; leave it at 0"),
        ((*TRAIN, "--directions", "4"), "no effect with reward-model; leave it at 16"),
        ((*TRAIN, "--total-steps", "9"), "unrecognized options: --total-steps"),
        (("tune", "rlhf"), "there is no command 'tune rlhf'"),
        (("eval", "RUN", *NAMED, "--video", "x.gif"), "has no environment that could be drawn"),
        (("eval", "RUN", *NAMED, "--env-id", "X-v0"), "trained on no environment"),
        (("train", "kickstart", "--teacher", "RUN", "--out", "OUT"), "which cannot teach"),
    ],
)
def test_what_other_runs_can_do_is_refused_in_one_sentence(
    capsys, simulated, tmp_path, given, says
):
    out, _ = simulated
    names = {"RUN": str(out), "OUT": str(tmp_path / "out")}
    assert says in refused(capsys, *(names.get(word, word) for word in given))


def test_a_run_without_a_language_model_is_not_given_one(capsys, tmp_path):
    out = tmp_path / "ppo"
    assert main(["train", "ppo", "--out", str(out), "--json", *SMALL_PPO]) == 0
    assert "has no language model" in refused(capsys, "eval", str(out), *NAMED)
    assert "give a run of rlhf" in refused(capsys, "generate", str(out), "--prompt", "x")
