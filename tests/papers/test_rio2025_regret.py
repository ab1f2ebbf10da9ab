"""Figures 1 and 5 of the DPPG paper: arms, what a curve says, and that nothing is repeated."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

from sotto.algorithms.dppg import release
from sotto.algorithms.dppg.config import DPPGConfig, preset
from sotto.algorithms.dppg.training import initial_states
from sotto.experiments.rio2025 import regret as rio2025_regret
from sotto.experiments.rio2025.regret import Arm, Curve, arms, as_data, figure, rows, train
from sotto.experiments.rio2025.regret_plots import cumulative_regret
from sotto.rl.envs.registry import make
from sotto.rl.tabular import regret, softmax

EPISODES, DELTA = 8, 1e-3


def fake(arm: Arm, seeds: list[int]) -> Curve:
    points = [1, EPISODES]
    return Curve(
        env_id=arm.config.env_id,
        arm=arm.name,
        label=arm.label,
        nominal_epsilon=arm.epsilon,
        status=arm.panel,
        epsilon=arm.epsilon if arm.panel == "proved" else None,
        delta=DELTA,
        seeds=seeds,
        episodes=points,
        regret=[[3.3 * n for _ in seeds] for n in points],
        seconds=0.1,
        settings=arm.config.first_repr(),
    )


def test_arms_are_what_the_figures_show() -> None:
    for name, env_id in rio2025_regret.ENVIRONMENTS.items():
        chosen = arms(name)
        assert {arm.config.env_id for arm in chosen} == {env_id}
        assert len({(arm.name, arm.epsilon) for arm in chosen}) == len(chosen) == 15
        by_panel = {p: {a.name for a in chosen if a.panel == p} for p in ("proved", "none")}
        assert by_panel["proved"] == {"dppg", "ucb-vi", "ucb-po"}
        assert {"ucb-vi-official", "ucb-vi-without", "dppg-paper-kl"} <= by_panel["none"]
        assert all(a.config.is_proved for a in chosen if a.name == "dppg")


def test_a_curve_is_drawn_as_certified_if_its_certificates_are_proved() -> None:
    proved = next(arm for arm in arms("fig1", EPISODES, DELTA) if arm.panel == "proved")
    curve = fake(proved, [0])
    assert curve.panel == "proved"
    assert replace(curve, status="paper-claim").panel == "none"


@pytest.mark.parametrize("name", ["dppg", "ucb-vi", "ucb-po-official"])
def test_a_curve_has_the_regret_and_the_certificate_of_its_arm(name: str) -> None:
    (arm,) = (a for a in arms("fig5", EPISODES, DELTA) if (a.name, a.epsilon) == (name, 5.0))
    curve = train(arm, [0, 1], DELTA)
    assert (curve.env_id, curve.seeds) == ("RiverSwim90-v0", [0, 1])
    assert curve.episodes == list(range(1, EPISODES + 1))
    found = np.asarray(curve.regret)
    assert found.shape == (EPISODES, 2)
    assert (np.diff(found, axis=0) > -1e-9).all()
    if name == "ucb-po-official":
        assert (curve.status, curve.epsilon) == ("none", None)
    else:
        assert curve.status == "proved"
        assert 4.9 < curve.epsilon <= 5.0
    (first, *_) = table = rows([curve])
    assert len(table) == 2 * EPISODES
    assert first["regret"] == found[0, 0]
    assert Curve(**json.loads(json.dumps(as_data([curve])))[0]) == curve


def test_curves_that_are_there_are_not_computed_again(tmp_path) -> None:
    seeds, told = [3, 4], []
    done = [fake(arm, seeds) for arm in arms("fig1", EPISODES, DELTA)]
    curves = figure("fig1", seeds, episodes=EPISODES, delta=DELTA, done=done, report=told.append)
    assert curves == done
    assert told == []
    cumulative_regret(tmp_path / "fig1.png", curves, "RiverSwim", 3.35)
    assert (tmp_path / "fig1.png").stat().st_size > 10_000


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
    perturbed = jax.vmap(lambda key: release._perturbed(policy, 2.0, key))(keys).network
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
