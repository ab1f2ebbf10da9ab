"""`sotto runs` and `sotto compare`: what they say about several runs, and what they refuse."""

import json
import re
import shutil
from pathlib import Path

import pytest
from commands import printed, refused, run_json
from small_runs import SMALL_PPO

from sotto.cli import main
from sotto.errors import RunError
from sotto.files import write_whole
from sotto.runs import summaries
from sotto.runs.summaries import shown_setting

# 10 updates of 4 people and 16 steps.
TINY = (
    *("--users-per-update", "4", "--steps-per-user", "16", "--total-steps", "640"),
    *("--hidden", "4", "--evaluation-episodes", "2", "--json"),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, trained_pair: Path) -> Path:
    folder = tmp_path_factory.mktemp("folder") / "runs"
    shutil.copytree(trained_pair, folder / "pair")
    words = ("--target-epsilon", "4", "--clip-norm", "0.07")
    assert main(["train", "dppg", "--out", str(folder / "below/one"), *TINY, *words]) == 0
    assert main(["train", "ppo", "--out", str(folder / "open"), *SMALL_PPO, "--json"]) == 0
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "runs"))


def test_runs_are_listed_with_results_and_guarantees(folder: Path, capsys) -> None:
    found = run_json(capsys, "runs", str(folder))
    assert found["left_out"] == []
    assert [Path(one["path"]).name for one in found["runs"]] == ["one", "open", "pair"]
    one, open_, pair = found["runs"]
    assert (one["status"], one["epsilon"]) == ("proved", pytest.approx(4, rel=1e-3))
    assert (open_["status"], open_["epsilon"]) == ("not private", None)
    assert (pair["status"], pair["epsilon"]) == ("proved", pytest.approx(1.3, rel=1e-3))
    lines = [(folder / "pair" / f"seed-{seed}" / "metrics.jsonl") for seed in (0, 1)]
    last = [json.loads(path.read_text().splitlines()[-1])["evaluation"]["ema"] for path in lines]
    assert pair["evaluation"]["ema"]["seeds"] == last
    assert pair["updates"] == pair["total_updates"] == 10


def test_the_gallery_links_reports_and_the_comparison_shows_what_differs(
    folder: Path, capsys
) -> None:
    assert main(["report", str(folder / "below/one")]) == 0
    page = folder / "pages" / "index.html"
    page.parent.mkdir()
    run_json(capsys, "runs", str(folder), "--page", str(page))
    (link,) = re.findall(r'href="([^"]+)"', page.read_text())
    assert (page.parent / link).resolve() == (folder / "below/one/report.html").resolve()
    page = folder / "compared.html"
    paths = [str(folder / name) for name in ("pair", "below/one")]
    found = run_json(capsys, "compare", *paths, "--page", str(page))
    assert found["settings"]["clip_norm"][1] == 0.07
    assert set(found["settings"]) == {"clip_norm", "target_epsilon"}
    text = page.read_text()
    assert "0.07" in text
    assert text.count("data:image/png") == 1
    assert "http" not in text


def test_settings_are_shown_in_words() -> None:
    values = [None, True, False, [], [1, "x"], 0.5]
    assert [shown_setting(one) for one in values] == ["none", "yes", "no", "none", "1 x", "0.5"]


def test_tables_name_every_run(folder: Path, capsys) -> None:
    assert main(["runs", str(folder)]) == 0
    said = printed(capsys, "compare", *(folder / name for name in ("pair", "below/one", "open")))
    for text in ("pair", "one", "open", "not private", "clip_norm", "pay for both"):
        assert text in said


def test_runs_of_the_same_name_are_told_apart(folder: Path, capsys) -> None:
    shutil.copytree(folder / "pair", folder / "below" / "pair")
    said = printed(capsys, "compare", str(folder / "pair"), str(folder / "below/pair"))
    assert "below/pair" in said
    assert "No settings differ" in said


def test_a_damaged_ledger_and_one_elsewhere_give_no_epsilon(folder: Path, capsys) -> None:
    (folder / "below/one/ledger.sqlite").write_bytes(b"no ledger")
    for name in ("pair/seed-0", "pair/seed-1", "pair"):
        file = folder / name / "config.json"
        settings = json.loads(file.read_text()) | {"ledger": "postgresql://elsewhere/ledger"}
        file.write_text(json.dumps(settings))
    one, _, pair = run_json(capsys, "runs", str(folder))["runs"]
    assert (one["status"], one["epsilon"]) == ("unknown", None)
    assert (pair["status"], pair["epsilon"]) == ("unknown", None)
    assert "its ledger is elsewhere" in pair["why"]


def test_what_cannot_be_read_is_named_and_left_out(folder: Path, capsys) -> None:
    (folder / "other").mkdir()
    (folder / "other" / "config.json").write_text("{}")
    found = run_json(capsys, "runs", str(folder))
    assert len(found["runs"]) == 3
    assert [Path(one["path"]).name for one in found["left_out"]] == ["other"]
    assert main(["runs", str(folder)]) == 0
    assert "left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("compare", "pair"), "two or more"),
        (("compare", "pair", "pair/../pair"), "named twice"),
        (("compare", "pair", "nothing"), "there is no run at"),
        (("runs", "nothing"), "there is no folder"),
    ],
)
def test_wrong_input_is_refused(folder: Path, words: tuple[str, ...], said: str, capsys) -> None:
    command, *paths = words
    assert said in refused(capsys, command, *(folder / path for path in paths))


def test_an_empty_folder_says_how_to_begin(tmp_path: Path, capsys) -> None:
    assert "sotto train dppg" in printed(capsys, "runs", str(tmp_path))
    with pytest.raises(RunError):
        list(summaries.find(tmp_path / "nothing"))


@pytest.mark.parametrize("page", ["absent/x.html", "folder"])
def test_a_page_that_cannot_be_written_is_named(tmp_path: Path, page: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=re.escape(f"{page}'")) as refused:
        write_whole(tmp_path / page, "")
    assert refused.value.filename == str(tmp_path / page)
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]
