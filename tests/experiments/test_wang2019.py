"""Figures of Wang and Hegde 2019: what is compared, and that it is trained, kept and drawn."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from sotto.cli.reproduce.wang2019 import wang
from sotto.experiments import engine
from sotto.experiments import plots as shared
from sotto.experiments.engine import Result, ResultFolder
from sotto.experiments.wang2019 import figures, plots
from sotto.experiments.wang2019.arms import FigureName, methods
from sotto.privacy.certificates.derive import verify
from sotto.privacy.ledger.ledger import Ledger

FIGURES: tuple[FigureName, ...] = ("fig1", "fig2a", "fig2b", "tradeoff", "cartpole")


@pytest.mark.parametrize("figure", FIGURES)
def test_arms_have_names_of_their_own(figure):
    made = methods(figure)
    assert len({arm.name for arm in made}) == len(made)
    assert len({arm.settings for arm in made}) == len(made)
    small = methods(figure, quick=True)
    assert 0 < len(small) <= len(made)
    assert all(arm.task.samples * 10 <= made[0].task.samples for arm in small)


@pytest.mark.parametrize(("figure", "epsilon"), [("fig2a", 0.9), ("fig2b", 0.45)])
def test_figure_2_compares_at_one_unit_and_one_epsilon(figure, epsilon):
    for arm in methods(figure):
        assert arm.task.target_epsilon == epsilon
        assert arm.task.delta == 1e-4
        assert arm.task.samples == 5000
        claims = arm.task.mode == "paper"
        assert arm.task.unit == ("reward-function" if claims else "transition")


def tiny(figure: FigureName, name: str):
    (arm,) = [arm for arm in methods(figure, quick=True) if arm.name == name]
    rounds = min(arm.task.rounds, 2)
    return replace(arm, task=replace(arm.task, samples=200, gradient_steps=20, rounds=rounds))


def trained(figure: FigureName, name: str, seeds: list[int], folder) -> Result:
    arm = figures.arm(tiny(figure, name), seeds, episodes=4)
    (result,) = engine.run([arm], ResultFolder(folder), 1, lambda _: None)
    return result


@pytest.mark.parametrize("name", ["reward-release", "input", "dp-lsl", "dp-lsw", "dp-sgd"])
def test_every_sound_method_is_certified_at_its_epsilon(name, tmp_path):
    curve = trained("fig2a", name, [3, 4], tmp_path)
    assert curve.status == "proved"
    assert curve.epsilon is not None
    assert curve.delta is not None
    assert 0.88 < curve.epsilon <= 0.9
    assert 0 < curve.delta <= 1e-4
    assert curve.points[-1] == 200
    returns = curve.curves["return"]
    assert returns.shape == (2, len(curve.points))
    assert ((returns >= 0) & (returns <= 25)).all()
    for seed in (3, 4):
        place = tmp_path / curve.arm.file / f"seed-{seed}"
        ledger = Ledger.open(place / "ledger.sqlite")
        assert verify(place / "certificate.json", ledger).status == "verified"


def test_the_papers_algorithm_and_dqn_are_certified_by_nobody(tmp_path):
    claim = trained("fig2a", "paper", [3], tmp_path)
    assert (claim.status, claim.epsilon) == ("paper-claim", None)
    dqn = trained("fig2a", "dqn", [3], tmp_path)
    assert (dqn.status, dqn.epsilon) == ("not private", None)
    assert figures._about(dqn, "fig2a")["unit"] == ""


def test_a_reward_function_is_protected_by_input_perturbation(tmp_path):
    curve = trained("tradeoff", "radius-input-0.01", [3], tmp_path)
    assert curve.status == "proved"
    said = figures._about(curve, "tradeoff")
    assert (said["unit"], said["radius"], said["x"]) == ("reward-function", 0.01, 0.01)


# --- the command ---------------------------------------------------------------------------------


def fake(arm, seeds, _folder=None, _report=None, *, episodes=64):
    rng = np.random.default_rng(len(arm.name))
    method = arm.settings
    curved = arm.x is None and arm.name not in ("output-release", "per-iteration")
    points = 5 if curved else 1
    private = method.method != "dqn"
    proved = private and method.task.mode != "paper"
    return [
        Result(
            arm,
            tuple(seeds),
            np.array([1000 * (n + 6 - points) for n in range(points)]),
            {"return": rng.uniform(10, 20, (len(seeds), points))},
            status="proved" if proved else "paper-claim" if private else "not private",
            epsilon=method.task.target_epsilon if proved else None,
            delta=method.task.delta,
            seconds=1.0,
        )
    ]


@pytest.mark.parametrize("figure", FIGURES)
def test_figures_are_drawn_and_data_kept(figure, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(figures, "train", fake)
    assert wang([figure, "--seeds", "3", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"{len(methods(figure))} trainings, about" in said.splitlines()[0]
    assert "3 seeds" in said.splitlines()[1]
    assert (tmp_path / f"{figure}.png").stat().st_size > 20_000
    table = pq.read_table(tmp_path / f"{figure}.parquet").to_pylist()
    data = json.loads((tmp_path / f"{figure}.json").read_text())
    assert len(table) == sum(len(one["samples"]) * 3 for one in data)
    assert {row["seed"] for row in table} == {100, 101, 102}


def test_other_seeds_are_other_data_and_both_are_kept(tmp_path, monkeypatch, capsys):
    trained = []
    monkeypatch.setattr(
        figures, "train", lambda a, *rest, episodes: trained.append(a.name) or fake(a, *rest)
    )
    for seeds in ("2", "1", "2"):
        assert wang(["fig2a", "--seeds", seeds, "--out", str(tmp_path), "--json"]) == 0
        summary = json.loads(capsys.readouterr().out)["curves"]
        assert [one["arm"] for one in summary] == [arm.name for arm in methods("fig2a")]
    assert trained == 2 * [arm.name for arm in methods("fig2a")]


def test_curves_of_one_status_are_not_labelled_with_it(tmp_path):
    curves = [fake(figures.arm(one, [1]), [1])[0] for one in methods("fig1")]
    plots.learning_curves(tmp_path / "one.png", curves, "title", {"J = 1": "J"}, {"best": 20.0})
    assert (tmp_path / "one.png").exists()


@pytest.mark.parametrize(("seeds", "said"), [([1], "one seed"), ([1, 2], "mean ± standard dev")])
def test_one_seed_has_no_deviation(seeds, said, tmp_path, monkeypatch):
    labels = []
    headline = shared.headline
    monkeypatch.setattr(
        shared,
        "headline",
        lambda axes, text: labels.append(axes.get_ylabel()) or headline(axes, text),
    )
    curves = [fake(figures.arm(one, seeds), seeds)[0] for one in methods("fig1")]
    plots.learning_curves(tmp_path / "one.png", curves, "title", {"J = 1": "J"}, {"best": 20.0})
    assert len(labels) == 1
    assert labels[0].startswith(f"greedy return, {said}")
