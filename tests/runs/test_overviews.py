"""`sotto runs` and `sotto compare`: what they say about several runs, and what they refuse."""

import json
import re
import shutil
from html import escape
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


def test_every_epsilon_has_its_unit_and_the_sum_is_warned_of(
    folder: Path, capsys, monkeypatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    found = run_json(capsys, "runs", folder)
    one, open_, _ = found["runs"]
    assert (one["unit"], one["adjacency"], one["distance"]) == ("trajectory", "zero-out", None)
    assert (open_["unit"], open_["adjacency"]) == (None, None)
    assert "pay for both" in found["note"]
    paths = [folder / name for name in ("pair", "below/one", "open")]
    assert "pay for both" in run_json(capsys, "compare", *paths)["note"]
    whole = "at delta 1e-05 for one person's trajectory, zero-out"
    for words in (("runs", folder), ("compare", *paths)):
        said = printed(capsys, *words)
        assert "pay for both" in said
        assert said.count(whole) == said.count(" at delta ") == 2
    for command, *words in (("runs", folder), ("compare", *paths)):
        run_json(capsys, command, *words, "--page", folder / "page.html")
        assert escape(whole) in (folder / "page.html").read_text()
    assert "open: not private" in printed(capsys, "compare", *paths)


def test_names_of_directories_are_no_formulas_and_are_all_shown(folder: Path, capsys) -> None:
    paths = [folder / name for name in ("_one", "$\\frac$", "a\x1b[2J")]
    for path in paths:
        shutil.copytree(folder / "below/one", path)
    run_json(capsys, "compare", *paths, "--page", folder / "page.html")
    run_json(capsys, "runs", folder, "--page", folder / "all.html")
    for page in ("page.html", "all.html"):
        text = (folder / page).read_text()
        assert "\x1b" not in text
        assert "a\\x1b[2J" in text


def test_a_page_of_another_kind_is_refused_before_any_work(folder: Path, capsys) -> None:
    for words in (("runs", folder), ("compare", folder / "pair", folder / "nothing")):
        said = refused(capsys, *words, "--page", folder / "page.pdf")
        assert "--page writes an .html file" in said
    assert not (folder / "page.pdf").exists()


def test_versions_presets_and_algorithms_differ_too(folder: Path, capsys) -> None:
    file = folder / "below/one/config.json"
    settings = json.loads(file.read_text())
    settings["versions"]["sotto"], settings["preset"] = "0.0.1", "paper"
    file.write_text(json.dumps(settings))
    found = run_json(capsys, "compare", folder / "below/one", folder / "open")["settings"]
    assert found["algorithm"] == ["dppg", "ppo"]
    assert found["preset"][0] == "paper"
    assert found["version of sotto"][0] == "0.0.1"
    assert "version of jax" not in found


def test_settings_are_compared_as_this_version_reads_them(folder: Path, capsys) -> None:
    """An earlier version stored one setting under another name, and did not know another one."""
    other = Path(shutil.copytree(folder / "below/one", folder / "other"))
    stored = json.loads((other / "config.json").read_text())
    stored["config"]["ratio_clip"] = stored["config"].pop("clip_ratio")
    del stored["config"]["carry_moments"]
    (other / "config.json").write_text(json.dumps(stored))
    assert run_json(capsys, "compare", folder / "below/one", other)["settings"] == {}


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
