"""Figures 1 and 5 of the DPPG paper: arms, and what a curve says."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from matplotlib.axes import Axes

from sotto.algorithms.dppg import exploration
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.presets import preset
from sotto.algorithms.dppg.training import initial_states
from sotto.experiments import engine, plots
from sotto.experiments.engine import Arm, Result, ResultFolder
from sotto.experiments.rio2025 import regret as rio2025_regret
from sotto.experiments.rio2025.regret import arms, draw, panel, rows
from sotto.privacy.certificates.derive import verify
from sotto.privacy.ledger.ledger import Ledger
from sotto.rl.envs.registry import make
from sotto.rl.tabular import regret, softmax

EPISODES, DELTA = 8, 1e-3


def fake(arm: Arm, seeds: list[int]) -> Result:
    points = np.array([1, EPISODES])
    regrets = {"regret": np.tile(3.3 * points, (len(seeds), 1))}
    epsilon = arm.x if arm.panel == "proved" else None
    return Result(
        arm, tuple(seeds), points, regrets, status=arm.panel, epsilon=epsilon, delta=DELTA
    )


def test_arms_are_what_the_figures_show() -> None:
    every = (rio2025_regret.ENVIRONMENTS, rio2025_regret.EXCHANGED)
    for env_id in (env_id for one in every for env_id in one.values()):
        chosen = arms(env_id, (0,))
        assert {arm.settings.env_id for arm in chosen} == {env_id}
        assert len({(arm.name, arm.x) for arm in chosen}) == len(chosen) == 17
        by_panel = {p: {a.name for a in chosen if a.panel == p} for p in ("proved", "none")}
        assert by_panel["proved"] == {"dppg", "r-max", "ucb-vi", "ucb-po"}
        assert {"ucb-vi-official", "ucb-vi-without", "dppg-paper-kl"} <= by_panel["none"]
        assert all(a.settings.is_proved for a in chosen if a.name == "dppg")


def test_a_curve_is_drawn_as_certified_if_its_certificates_are_proved() -> None:
    proved = next(
        arm for arm in arms("RiverSwim-v0", (0,), EPISODES, DELTA) if arm.panel == "proved"
    )
    curve = fake(proved, [0])
    assert panel(curve) == "proved"
    assert panel(replace(curve, status="paper-claim")) == "none"


@pytest.mark.parametrize("name", ["dppg", "r-max", "ucb-vi", "ucb-po-official"])
def test_a_curve_has_the_regret_and_the_certificate_of_its_arm(name: str, tmp_path: Path) -> None:
    every = arms("RiverSwimExchanged90-v0", (0, 1), EPISODES, DELTA)
    (arm,) = (a for a in every if (a.name, a.x) == (name, 5.0))
    (curve,) = engine.run([arm], ResultFolder(tmp_path), 1, lambda _: None)
    assert curve.seeds == (0, 1)
    assert curve.points.tolist() == list(range(1, EPISODES + 1))
    found = curve.curves["regret"]
    assert found.shape == (2, EPISODES)
    assert (np.diff(found, axis=1) > -1e-9).all()
    if name == "ucb-po-official":
        assert (curve.status, curve.epsilon) == ("none", None)
    else:
        assert curve.status == "proved"
        assert 4.9 < curve.epsilon <= 5.0
        for seed in (0, 1):
            place = tmp_path / arm.file / f"seed-{seed}"
            ledger = Ledger.open(place / "ledger.sqlite")
            assert verify(place / "certificate.json", ledger).status == "verified"
    (first, *_) = table = rows(curve)
    assert len(table) == 2 * EPISODES
    assert first["regret"] == found[0, 0]
    assert first["env_id"] == "RiverSwimExchanged90-v0"


def test_curves_are_drawn(tmp_path: Path) -> None:
    curves = [fake(arm, [3, 4]) for arm in arms("RiverSwim-v0", [3, 4], EPISODES, DELTA)]
    draw(tmp_path / "fig1.png", curves, "RiverSwim", 3.35)
    assert (tmp_path / "fig1.png").stat().st_size > 10_000


@pytest.mark.parametrize("seeds", [[3], [3, 4]])
def test_one_seed_has_no_deviation(seeds: list[int], tmp_path: Path, monkeypatch) -> None:
    drawn: list[Axes] = []
    headline = plots.headline

    def kept(axes: Axes, text: str) -> None:
        drawn.extend(axes.figure.axes)
        headline(axes, text)

    monkeypatch.setattr(plots, "headline", kept)
    curves = [fake(arm, seeds) for arm in arms("RiverSwim-v0", seeds, EPISODES, DELTA)]
    draw(tmp_path / "fig1.png", curves, "RiverSwim", 3.35)
    labels = [label for axes in drawn for label in axes.get_legend_handles_labels()[1]]
    assert len(labels) == len(curves)
    several = len(seeds) > 1
    assert all(label.endswith(": 26 ± 0" if several else ": 26") for label in labels)
    said = "mean ± standard deviation" if several else "one seed"
    assert drawn[0].get_ylabel() == f"cumulative regret, {said}"


def test_expected_regret_is_over_the_perturbations_that_users_make() -> None:
    """Against the users' own code: many perturbed policies of one state of the training."""
    config = preset("sotto", "RiverSwim-v0")
    assert isinstance(config, DPPGConfig)
    env = make(config.env_id)
    mdp = env.mdp(env.default_params)
    policy = jax.tree.map(lambda x: x[0], initial_states(config, [0]).policy)
    network = policy.network
    table = np.asarray(network.weights[0] + network.biases[0]) + np.array([0.0, 4.0])
    keys = jax.random.split(jax.random.key(1), 4000)
    perturbed = jax.vmap(lambda key: exploration.perturbed(policy, 2.0, key))(keys).network
    logits = perturbed.weights[0] + perturbed.biases[0][:, None] + np.array([0.0, 4.0])
    theirs = regret(mdp, softmax(np.asarray(logits)))
    ours = rio2025_regret._expected(
        mdp, np.broadcast_to(table, (500, 6, 2)), 2.0, np.random.default_rng(2)
    )
    error = theirs.std() / len(theirs) ** 0.5 + ours.std() / len(ours) ** 0.5
    assert ours.mean() == pytest.approx(theirs.mean(), abs=5 * error)
    alone = rio2025_regret._expected(mdp, table[None], 0.0, np.random.default_rng(2))
    assert alone[0] == pytest.approx(regret(mdp, softmax(table)))
    assert abs(alone[0] - theirs.mean()) > 10 * error
