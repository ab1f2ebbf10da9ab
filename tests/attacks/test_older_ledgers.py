"""A backup of a ledger that is put back has forgotten charges: everything that reads it says so."""

import shutil
from pathlib import Path

import pytest
from commands import refused
from small import statement

from sotto.cli import main
from sotto.privacy.certificates.derive import derive
from sotto.privacy.errors import LedgerOlder
from sotto.privacy.ledger.persons import PersonBlock
from sotto.privacy.ledger.spending import Budget
from sotto.runs import marks
from sotto.runs.directory import open_experiment
from sotto.runs.evaluations import create_evaluation

TINY = (
    *("--users-per-update", "4", "--steps-per-user", "8", "--total-steps", "128"),
    *("--hidden", "4", "--evaluation-episodes", "1", "--target-epsilon", "1.3"),
)
COMMANDS = (
    ("certificate", "--verify"),
    ("certificate",),
    ("report",),
    ("eval", "--episodes", "1"),
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of four updates; `early.sqlite` is a backup made after two of them."""
    out = tmp_path_factory.mktemp("runs") / "one"
    (folder := out.parent).mkdir(exist_ok=True)
    from sotto.runs import training

    save = training.checkpoints.save

    def backed_up(directory: Path, updates: int, *rest: object) -> None:
        save(directory, updates, *rest)
        if updates == 2:
            shutil.copy(out / "ledger.sqlite", folder / "early.sqlite")
            shutil.copy(out / "certificate.json", folder / "early.json")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(training.checkpoints, "save", backed_up)
        assert main(["train", "dppg", "--out", str(out), "--json", *TINY]) == 0
    return out


@pytest.fixture
def rolled_back(finished: Path, tmp_path: Path) -> Path:
    """The ledger and everything derived from it are old; one update is still to be made."""
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    shutil.copy(finished.parent / "early.sqlite", run / "ledger.sqlite")
    shutil.copy(finished.parent / "early.json", run / "certificate.json")
    shutil.rmtree(run / "checkpoints" / f"{4:08d}")
    return run


def contents(run: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.mark.parametrize("words", COMMANDS)
def test_every_reader_says_that_the_ledger_is_older(capsys, rolled_back: Path, words) -> None:
    before = contents(rolled_back)
    command, *flags = words
    error = refused(capsys, command, str(rolled_back), *flags)
    assert "is older than what was made from it" in error
    assert "3 charges" in error
    assert "(it has 2)" in error
    assert contents(rolled_back) == before


def test_a_refused_resume_has_written_nothing(capsys, rolled_back: Path) -> None:
    before = contents(rolled_back)
    error = refused(capsys, "train", "dppg", "--out", str(rolled_back), "--resume")
    assert "is older than what was made from it" in error
    assert "restore the ledger from a newer backup" in error
    assert contents(rolled_back) == before


@pytest.mark.parametrize("kept", ["checkpoints", "metrics.jsonl", "certificate.json"])
def test_each_of_the_three_is_enough(capsys, finished: Path, tmp_path: Path, kept: str) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    shutil.copy(finished.parent / "early.sqlite", run / "ledger.sqlite")
    for name in {"checkpoints", "metrics.jsonl", "certificate.json"} - {kept}:
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert kept.partition(".")[0].removesuffix("s") in refused(capsys, "certificate", str(run))


def test_the_right_ledger_is_not_refused_and_an_older_version_has_no_marks(finished: Path) -> None:
    (run,) = open_experiment(finished).runs
    now = marks.mark(run.open_ledger())
    assert now.charges == 4
    assert next(made for _, made in marks._marks(finished)) == now
    # A certificate is on disk before the checkpoint that was made under it.
    assert marks.of_certificate(finished.parent / "early.json").charges == 2
    assert main(["certificate", str(finished), "--verify"]) == 0


def test_runs_of_earlier_versions_have_no_marks_and_go_on(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    shutil.rmtree(run / "checkpoints" / f"{4:08d}")
    (run / "checkpoints" / f"{3:08d}" / marks.FILE).unlink()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    old = [line.split('"charges"')[0] + line[line.index('"released"') :] for line in lines]
    (run / "metrics.jsonl").write_text("\n".join(old) + "\n")
    assert main(["train", "dppg", "--out", str(run), "--resume", "--json"]) == 0
    assert main(["certificate", str(run), "--verify"]) == 0


def test_an_evaluation_refuses_an_older_ledger(tmp_path: Path) -> None:
    run, ledger = create_evaluation(tmp_path / "out", "log", {}, Budget(epsilon=3.0, delta=1e-6))
    early = (run.path / "ledger.sqlite").read_bytes()
    ledger.open_stream(statement()).charge(0, 1, [PersonBlock(0, 4)])
    derive(ledger).write(run.certificate)
    assert run.open_ledger().persons == 4
    (run.path / "ledger.sqlite").write_bytes(early)
    with pytest.raises(LedgerOlder, match="newer backup"):
        run.open_ledger()


def test_a_damaged_mark_is_a_sentence(capsys, finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    (run / "checkpoints" / f"{4:08d}" / marks.FILE).write_text("[" * 100_000)
    assert "is damaged" in refused(capsys, "certificate", str(run))
