"""`sotto reproduce rio2025`: what is kept is not trained again, and numbers are those found."""

import json
import math

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats

from sotto.cli import main
from sotto.errors import RunError
from sotto.experiments.rio2025 import cells as rio2025
from sotto.experiments.rio2025 import regret, trainings
from sotto.experiments.rio2025.cells import Cell
from sotto.experiments.rio2025.figures import Reproduction, make_figure8, make_table1, make_tradeoff
from sotto.experiments.rio2025.regret import Curve
from sotto.experiments.rio2025.regret_runs import make_regret
from sotto.experiments.rio2025.trainings import Job, Outcome, jobs
from sotto.privacy.certificates import derive
from sotto.privacy.ledger.ledger import Ledger

SOTTO = Cell("CartPole-v1", "dppg", "sotto", 1.0)


def an_outcome(cell, seed):
    """Returns tell seeds, policies and presets apart."""
    base = 400.0 if cell.preset == "sotto" else 100.0
    proved = cell.preset == "sotto"
    return Outcome(
        seed=seed,
        steps=[0.0, 500.0 + seed, 1000.0 + seed],
        curve=[20.0, base, base + seed],
        returns={
            **{"last greedy": base - 7, "last sampled": base + seed},
            **{"ema greedy": base + 50 + seed**1.5, "ema sampled": base - 8},
        },
        status="not private" if cell.preset is None else "proved" if proved else "paper-claim",
        epsilon=2.0 + seed / 1000 if proved else None,
        noise_multiplier=None if cell.preset is None else 1.0,
        seconds=3.0,
    )


@pytest.fixture
def trained(monkeypatch):
    """Trainings that take no time; the list of those that were made."""
    made = []

    def train(cell, seeds, places):
        assert all(place.is_dir() for place in places)
        made.append((cell, tuple(seeds)))
        return [an_outcome(cell, seed) for seed in seeds]

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


def test_more_seeds_train_only_what_is_missing(tmp_path, trained):
    make_tradeoff(reproduction(tmp_path, presets=("sotto",)), "fig2", (0.5,), ())
    found = make_tradeoff(reproduction(tmp_path, (0, 1, 5), ("sotto",)), "fig2", (0.5,), ())
    assert [seeds for _, seeds in trained] == [(1, 2, 3), (0, 5)]
    assert found["cells"][0]["mean"] == pytest.approx(450 + (0 + 1 + 5**1.5) / 3)


def test_a_stopped_command_goes_on(tmp_path, trained, monkeypatch):
    train = trainings.train

    def stops(cell, seeds, places):
        (places[0] / "ledger.sqlite").write_text("of an attempt that was stopped")
        if len(trained) == 2:
            raise KeyboardInterrupt
        return train(cell, seeds, places)

    monkeypatch.setattr(trainings, "train", stops)
    with pytest.raises(KeyboardInterrupt):
        make_table1(reproduction(tmp_path))

    def goes_on(cell, seeds, places):
        assert not any((place / "ledger.sqlite").exists() for place in places)
        return train(cell, seeds, places)

    monkeypatch.setattr(trainings, "train", goes_on)
    make_table1(reproduction(tmp_path))
    assert len(trained) == len(set(trained)) == 6


def test_outside_jax_every_seed_is_a_training_of_its_own(tmp_path):
    hosted = Cell("MountainCar-v0", "dppg", "sotto", 1.0)
    planned = jobs([SOTTO, hosted], (1, 2, 3), tmp_path)
    assert [job.seeds for job in planned[SOTTO]] == [(1, 2, 3)]
    assert [job.seeds for job in planned[hosted]] == [(1,), (2,), (3,)]


def test_names_hold_everything_but_the_seed(tmp_path):
    paths = {
        Job(tmp_path, cell, (1,)).path
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
    assert len(paths) == 7
    assert Job(tmp_path, SOTTO, (2, 3)).path in paths


def test_a_damaged_outcome_is_named(tmp_path, trained):
    job = Job(tmp_path, SOTTO, (1,))
    job.train()
    next(tmp_path.rglob("outcome.json")).write_text("{")
    with pytest.raises(RunError, match="delete it, and it is made again"):
        job.outcomes()


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
    assert not list(tmp_path.rglob("*.partial"))


def test_one_seed_has_no_interval(tmp_path, trained):
    found = make_table1(reproduction(tmp_path, (7,)))
    assert {cell["half_width"] for cell in found["cells"]} == {None}


# --- one training --------------------------------------------------------------------------------


def test_a_training_leaves_its_certificate(tmp_path):
    cell = Cell("CartPole-v1", "dppg", "sotto", 3.0, total_steps=16_384)
    job = Job(tmp_path, cell, (0, 1))
    job.train()
    first, second = job.outcomes()
    assert first.returns != second.returns
    assert (first.status, first.noise_multiplier) == ("proved", pytest.approx(3.0))
    assert first.epsilon == pytest.approx(cell.noise_epsilon, rel=1e-3)
    ledger = Ledger.open(job.path / "seed-0" / "ledger.sqlite")
    assert derive.verify(job.path / "seed-0" / "certificate.json", ledger).status == "verified"
    # Two releases of 64 people, each with one episode of at most 128 steps.
    assert first.steps[0] == 0
    assert 64 * 8 <= first.steps[1] < first.steps[-1] <= 16_384
    assert len(first.steps) == len(first.curve) == 3
    assert set(first.returns) == {
        f"{policy} {mode}" for policy in ("last", "ema", "tail") for mode in ("greedy", "sampled")
    }
    assert all(1 <= value <= 500 for value in first.returns.values())


# --- figures 1 and 5 -----------------------------------------------------------------------------


@pytest.fixture
def regrets(monkeypatch):
    """Curves that take no time; the names of those that were made."""
    made = []

    def train(arm, seeds, delta):
        made.append(arm.name)
        return Curve(
            env_id=arm.config.env_id,
            arm=arm.name,
            label=arm.label,
            nominal_epsilon=arm.epsilon,
            status=arm.panel,
            epsilon=arm.epsilon if arm.panel == "proved" else None,
            delta=delta,
            seeds=list(seeds),
            episodes=[1, 8],
            regret=[[0.0 for _ in seeds], [10.0 + seed for seed in seeds]],
            seconds=1.0,
            settings=arm.config.first_repr(),
        )

    monkeypatch.setattr(regret, "train", train)
    return made


def test_regret_is_kept_curve_by_curve(tmp_path, regrets, monkeypatch):
    said = []

    def say(sentence):
        said.append(sentence)
        if sentence.startswith("3/"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_regret("fig5", (1, 2), 8, 1e-3, tmp_path, say)
    count = len(regret.arms("fig5", 8, 1e-3))
    assert len(regrets) == 3
    found = make_regret("fig5", (1, 2), 8, 1e-3, tmp_path, said.append)
    assert len(regrets) == len(found["curves"]) == count
    assert f"{count - 3} curves to train (3 kept from before)" in said[4]
    assert {curve["mean"] for curve in found["curves"]} == {11.5}
    assert found["env_id"] == "RiverSwim90-v0"
    # The best policy's 5.1951, less what uniform actions earn.
    assert 8 * 4 < found["uniform_regret"] < 8 * 5.1951
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        f"fig5-8-episodes{end}" for end in (".png", ".parquet", ".json", "-curves.json")
    }
    (tmp_path / "fig5-8-episodes-curves.json").write_text("[")
    with pytest.raises(RunError, match="delete it, and they are made again"):
        make_regret("fig5", (1, 2), 8, 1e-3, tmp_path, said.append)


def test_the_command_prints_regret(tmp_path, regrets, capsys):
    words = ["reproduce", "rio2025", "fig1", "--seeds", "2", "--first-seed", "1"]
    assert main([*words, "--episodes", "8", "--delta", "1e-3", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    # 11 and 12: Student's 12.706 times a standard error of one half.
    assert "DPPG (sotto)                    5             5            11.5 ± 6.4" in shown


# --- the command ---------------------------------------------------------------------------------


def test_the_command_prints_the_table(tmp_path, trained, capsys):
    words = ["reproduce", "rio2025", "table1", "--env-id", "CartPole-v1", "--seeds", "2"]
    words += ["--first-seed", "1", "--out", str(tmp_path), "--workers", "1"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "6 trainings, about" in shown
    line = next(one for one in shown.splitlines() if "paper settings" in one and "±" in one)
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
    ],
)
def test_refusals(tmp_path, capsys, words, sentence):
    assert main(["reproduce", "rio2025", *words, "--out", str(tmp_path)]) == 2
    assert sentence in capsys.readouterr().err
