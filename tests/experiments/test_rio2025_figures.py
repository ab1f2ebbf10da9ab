"""`sotto reproduce rio2025`: figures share their trainings, and numbers are those found."""

import json
import math

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats

from sotto.cli import main
from sotto.experiments import engine
from sotto.experiments.engine import Result, ResultFolder
from sotto.experiments.rio2025 import cells as rio2025
from sotto.experiments.rio2025 import regret, trainings
from sotto.experiments.rio2025.cells import Cell
from sotto.experiments.rio2025.figures import Reproduction, make_figure8, make_table1, make_tradeoff
from sotto.experiments.rio2025.regret import make_regret
from sotto.experiments.rio2025.trainings import arms
from sotto.privacy.certificates import derive
from sotto.privacy.ledger.ledger import Ledger

SOTTO = Cell("CartPole-v1", "dppg", "sotto", 1.0)


def a_result(arm, seed):
    """Returns tell seeds, policies and presets apart."""
    cell = arm.settings
    base = 400.0 if cell.preset == "sotto" else 100.0
    proved = cell.preset == "sotto"
    returns = {
        **{"last greedy": base - 7, "last sampled": base + seed},
        **{"ema greedy": base + 50 + seed**1.5, "ema sampled": base - 8},
    }
    return Result(
        arm,
        (seed,),
        np.array([[0.0, 500.0 + seed, 1000.0 + seed]]),
        {"return": np.array([[20.0, base, base + seed]])},
        {kind: np.array([value]) for kind, value in returns.items()},
        status="not private" if cell.preset is None else "proved" if proved else "paper-claim",
        epsilon=2.0 + seed / 1000 if proved else None,
        seconds=3.0,
        more={"noise_multiplier": None if cell.preset is None else 1.0},
    )


@pytest.fixture
def trained(monkeypatch):
    """Trainings that take no time; the list of those that were made."""
    made = []

    def train(arm, seeds, folder, report):
        assert all((folder / f"seed-{seed}").is_dir() for seed in seeds)
        made.append((arm.settings, tuple(seeds)))
        return [a_result(arm, seed) for seed in seeds]

    monkeypatch.setattr(trainings, "train", train)
    return made


def reproduction(out, seeds=(1, 2, 3), presets=("sotto", "paper"), **changes):
    settings = {"env_ids": ("CartPole-v1",), "delta": 1e-5, "total_steps": None} | changes
    return Reproduction(
        presets=presets, seeds=seeds, out=out, workers=1, say=lambda sentence: None, **settings
    )


# --- what is kept --------------------------------------------------------------------------------


def test_table_and_figure_share_their_trainings(tmp_path, trained):
    make_table1(reproduction(tmp_path))
    assert len(trained) == 6
    make_figure8(reproduction(tmp_path))
    make_tradeoff(reproduction(tmp_path), "fig6", (), (1.0, 3.0))
    assert len(trained) == 6
    make_table1(reproduction(tmp_path, total_steps=8192))
    assert len(trained) == 12
    names = {path.name for path in tmp_path.glob("*.png")}
    assert names == {
        *("table1.png", "table1-8192-steps.png", "fig6.png"),
        *("fig8-sotto.png", "fig8-paper.png"),
    }


def test_outside_jax_every_seed_is_a_training_of_its_own(tmp_path):
    hosted = Cell("MountainCar-v0", "dppg", "sotto", 1.0)
    assert [arm.seeds for arm in arms(SOTTO, (1, 2, 3))] == [(1, 2, 3)]
    assert [arm.seeds for arm in arms(hosted, (1, 2, 3))] == [(1,), (2,), (3,)]


def test_seeds_of_a_cell_outside_jax_are_one_result(tmp_path, trained):
    hosted = Cell("MountainCar-v0", "dppg", "sotto", 1.0)
    (result,) = engine.run(arms(hosted, (1, 2, 3)), ResultFolder(tmp_path), 1, lambda _: None)
    assert [seeds for _, seeds in trained] == [(1,), (2,), (3,)]
    assert result.seeds == (1, 2, 3)
    assert result.points.tolist() == [0, 502, 1002]
    assert (result.status, result.epsilon) == ("proved", 2.003)


def test_names_hold_everything_but_the_seed():
    files = {
        arms(cell, (1,))[0].file
        for cell in (
            SOTTO,
            Cell("CartPole-v1", "dppg", "sotto", 2.0),
            Cell("CartPole-v1", "dppg", "sotto", 1.0, delta=1e-6),
            Cell("CartPole-v1", "dppg", "sotto", 1.0, total_steps=500_000),
            Cell("CartPole-v1", "dppg", "paper", 1.0),
            Cell("Acrobot-v1", "dppg", "sotto", 1.0),
            Cell("CartPole-v1", "ppo"),
        )
    }
    assert len(files) == 7
    assert arms(SOTTO, (2, 3))[0].file in files


# --- what is said --------------------------------------------------------------------------------


def test_returns_stand_beside_the_papers(tmp_path, trained):
    found = make_table1(reproduction(tmp_path))
    assert found == json.loads((tmp_path / "table1.json").read_text())
    cells = {cell["label"]: cell for cell in found["cells"]}
    ours, papers = cells["DPPG z = 1, sotto"], cells["DPPG z = 1, paper settings"]
    returns = 450 + np.array([1, 2, 3]) ** 1.5
    low, high = stats.t.interval(0.95, 2, returns.mean(), stats.sem(returns))
    assert (ours["judged"], papers["judged"]) == ("ema greedy", "last sampled")
    assert ours["mean"] == pytest.approx(returns.mean())
    assert ours["half_width"] == pytest.approx((high - low) / 2)
    assert papers["mean"] == pytest.approx(102)
    assert ours["paper_mean"] == papers["paper_mean"] == 496.4
    # The worst seed's certificate counts, and a paper-claim is worth nothing.
    assert (ours["status"], ours["certified_epsilon"]) == ("proved", 2.003)
    assert (papers["status"], papers["certified_epsilon"]) == ("paper-claim", None)
    assert papers["noise_epsilon"] == pytest.approx(4.377, abs=1e-3)
    assert cells["PPO"]["paper_mean"] == 493.2
    assert cells["PPO"]["noise_epsilon"] is None


def test_figure_2_has_a_point_for_each_epsilon(tmp_path, trained):
    found = make_tradeoff(reproduction(tmp_path, presets=("sotto",)), "fig2", (0.5, 2), ())
    assert [cell.target_epsilon for cell, _ in trained] == [0.5, 2]
    mean = 450 + (1 + 2**1.5 + 3**1.5) / 3
    assert [cell["mean"] for cell in found["cells"]] == pytest.approx([mean, mean])


def test_tables_hold_every_seed(tmp_path, trained):
    make_table1(reproduction(tmp_path))
    table = pq.read_table(tmp_path / "table1.parquet").to_pylist()
    assert len(table) == 6 * 3 * 4
    judged = [row for row in table if row["label"] == "DPPG z = 3, sotto" and row["judged"]]
    assert [row["return"] for row in judged] == pytest.approx([451, 450 + 2**1.5, 450 + 3**1.5])
    make_figure8(reproduction(tmp_path))
    points = pq.read_table(tmp_path / "fig8.parquet").to_pylist()
    assert len(points) == 6 * 3 * 3
    assert [row["env_steps"] for row in points[:3]] == [0, 501, 1001]
    assert [row["return"] for row in points[:3]] == [20, 100, 101]
    assert not [*tmp_path.rglob("*.partial"), *tmp_path.rglob(".*")]


def test_one_seed_has_no_interval(tmp_path, trained):
    found = make_table1(reproduction(tmp_path, (7,)))
    assert {cell["half_width"] for cell in found["cells"]} == {None}


# --- one training --------------------------------------------------------------------------------


def test_a_training_leaves_its_certificate(tmp_path):
    cell = Cell("CartPole-v1", "dppg", "sotto", 3.0, total_steps=16_384)
    (arm,) = arms(cell, (0, 1))
    (result,) = engine.run([arm], ResultFolder(tmp_path), 1, lambda _: None)
    assert any(np.ptp(values) > 0 for values in result.returns.values())
    assert (result.status, result.more["noise_multiplier"]) == ("proved", pytest.approx(3.0))
    assert result.epsilon == pytest.approx(cell.noise_epsilon, rel=1e-3)
    for seed in (0, 1):
        place = tmp_path / arm.file / f"seed-{seed}"
        ledger = Ledger.open(place / "ledger.sqlite")
        assert derive.verify(place / "certificate.json", ledger).status == "verified"
    # Two releases of 64 people, each with one episode of at most 128 steps.
    first = result.steps[0]
    assert first[0] == 0
    assert 64 * 8 <= first[1] < first[-1] <= 16_384
    assert result.steps.shape == result.curves["return"].shape == (2, 3)
    assert set(result.returns) == {
        f"{policy} {mode}" for policy in ("last", "ema", "tail") for mode in ("greedy", "sampled")
    }
    assert all(((values >= 1) & (values <= 500)).all() for values in result.returns.values())


# --- figures 1 and 5 -----------------------------------------------------------------------------


@pytest.fixture
def regrets(monkeypatch):
    """Curves that take no time; the names of those that were made."""
    made = []

    def train(arm, seeds, folder, report, *, delta):
        made.append(arm.name)
        regrets = {"regret": np.array([[0.0, 10.0 + seed] for seed in seeds])}
        epsilon = arm.x if arm.panel == "proved" else None
        said = {"status": arm.panel, "epsilon": epsilon, "delta": delta, "seconds": 1.0}
        return [Result(arm, tuple(seeds), np.array([1, 8]), regrets, **said)]

    monkeypatch.setattr(regret, "train", train)
    return made


def test_regret_is_drawn_and_told_of_all_arms(tmp_path, regrets):
    found = make_regret("fig5", "RiverSwim90-v0", (1, 2), 8, 1e-3, tmp_path, lambda _: None)
    count = len(regret.arms("RiverSwim90-v0", (1, 2), 8, 1e-3))
    assert len(regrets) == len(found["curves"]) == count
    assert {curve["mean"] for curve in found["curves"]} == {11.5}
    assert found["env_id"] == "RiverSwim90-v0"
    # The best policy's 5.1951, less what uniform actions earn.
    assert 8 * 4 < found["uniform_regret"] < 8 * 5.1951
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"trainings"} | {
        f"fig5-8-episodes{end}" for end in (".png", ".parquet", ".json")
    }


def test_the_command_prints_regret(tmp_path, regrets, capsys):
    words = ["reproduce", "rio2025", "fig1", "--seeds", "2", "--first-seed", "1"]
    assert main([*words, "--episodes", "8", "--delta", "1e-3", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    # 11 and 12: Student's 12.706 times a standard error of one half.
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines()]
    assert ["DPPG (sotto)", "5", "5", "11.5 ± 6.4"] in rows
    assert main([*words, "--env-id", "CartPole-v1"]) == 2
    assert "takes one --env-id, RiverSwim-v0 or RiverSwimExchanged-v0" in capsys.readouterr().err


def test_regret_with_exchanged_actions_has_files_of_its_own(tmp_path, regrets):
    place = "RiverSwimExchanged-v0"
    found = make_regret("fig1", place, (1, 2), 8, 1e-3, tmp_path, lambda _: None)
    assert found["env_id"] == place
    assert (tmp_path / "fig1-exchanged-8-episodes.png").is_file()


# --- the command ---------------------------------------------------------------------------------


def test_the_command_prints_the_table(tmp_path, trained, capsys):
    words = ["reproduce", "rio2025", "table1", "--env-id", "CartPole-v1", "--seeds", "2"]
    words += ["--first-seed", "1", "--out", str(tmp_path), "--workers", "1"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "6 trainings, about" in shown
    rows = [one for one in shown.splitlines() if one.startswith("CartPole-v1  ")]
    line = next(one for one in rows if "paper settings" in one)
    assert line.startswith("CartPole-v1     DPPG z = 1, paper settings")
    # 101 and 102: Student's 12.706 times a standard error of one half.
    words_of_line = line.split("settings")[1].split()
    assert words_of_line[:7] == ["5", "4.38", "none", "(claim)", "496.4", "±", "6.6"]
    assert words_of_line[7:] == ["93.0", "±", "0.0", "101.5", "±", "6.4"]
    assert main([*words, "--json"]) == 0
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)["cells"]) == 6
    assert "nothing to train (6 kept from before)" in captured.err


def test_figure_3_needs_no_training(tmp_path, capsys):
    assert main(["reproduce", "rio2025", "fig3", "--out", str(tmp_path), "--delta", "1e-6"]) == 0
    assert "fig3.png" in capsys.readouterr().out
    rows = pq.read_table(tmp_path / "fig3.parquet").to_pylist()
    assert {row["delta"] for row in rows} == {1e-6}
    assert rows[0]["classical"] == pytest.approx(
        math.sqrt(2 * math.log(1.25e6)) / rows[0]["noise_multiplier"]
    )
    assert rows[0]["classical"] < rows[0]["tight"] < rows[0]["zhao"]
    assert len(rows) == len(rio2025.figure3())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["table1", "--seeds", "0"], "--seeds must be at least 1"),
        (["fig8", "--workers", "0"], "--workers must be at least 1"),
        (["table1", "--env-id", "Pong-v5"], "table1 has no Pong-v5"),
        (["fig2", "--env-id", "Nowhere-v0", "--preset", "sotto"], "Nowhere"),
        (["fig6", "--total-steps", "10", "--preset", "sotto"], "total_steps 10 is less than one"),
        (["fig9"], "fig9"),
        (["fig1", "--epsilons", "1"], "fig1 does not use --epsilons, which is for fig2, fig7"),
        (["fig2", "--episodes", "9"], "fig2 does not use --episodes"),
        (["fig5", "--total-steps", "9"], "fig5 does not use --total-steps"),
        (["fig1", "--episodes", "0"], "--episodes must be at least 1"),
    ],
)
def test_refusals(tmp_path, capsys, words, sentence):
    assert main(["reproduce", "rio2025", *words, "--out", str(tmp_path)]) == 2
    assert sentence in capsys.readouterr().err
