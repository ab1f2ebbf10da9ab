"""Offline learning from people's logs: contributions, their bounds, the noise, and the policy."""

import itertools
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from people_logs import PEOPLE, REAL, STEPS, people, scales, settings, write_visits
from scipy import stats

from sotto.algorithms.expert_offline.algorithm import ExpertOffline
from sotto.algorithms.expert_offline.config import ExpertOfflineConfig
from sotto.algorithms.offline_people import algorithm, learning, model, moments, rounds
from sotto.algorithms.offline_people.config import OfflinePeopleConfig
from sotto.algorithms.offline_people.moments import Logged, Scales
from sotto.keys import new_key
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.release.release import Release

# --- one person's contribution -------------------------------------------------------------------


def by_hand(config: OfflinePeopleConfig, unit: Logged) -> np.ndarray:
    """The moments of one person, row by row in float64."""
    low, high = np.array(config.low), np.array(config.high)
    x = 2 * (np.asarray(unit.observations, float) - low) / (high - low) - 1
    given = scales()
    kinds = config.actions or 1
    used = [t for t in range(STEPS) if unit.present[t] and not unit.cut[t]]
    total: Any = 0.0
    for t in used:
        variables = list(np.clip((x[t] - given.centre) @ given.whitening, -2, 2))
        if not config.actions:
            variables.append((unit.actions[t, 0] - 1) / 2)
        pairs = itertools.combinations_with_replacement(variables, 2)
        psi = np.array([1, *variables, *(a * b for a, b in pairs)])
        change = np.zeros(2) if unit.ends[t] else (x[t + 1] - x[t]) / given.spread
        targets = [*np.clip(change, -4, 4), (unit.rewards[t] + 1) / 2, float(unit.ends[t])]
        row = np.outer(psi, np.concatenate([psi, targets])) / (psi @ psi)
        kind = int(unit.actions[t]) if config.actions else 0
        total = total + np.stack([row * (kind == a) for a in range(kinds)])
    return total / max(1, len(used))


@cache
def contributions(config: OfflinePeopleConfig, real: bool) -> np.ndarray:
    found = jax.vmap(lambda unit: moments.person_moments(config, scales(), unit, new_key(0)))(
        people(real)
    )
    return np.asarray(found)


@pytest.mark.parametrize("real", [False, True])
def test_moments_are_those_of_the_persons_own_rows(real: bool) -> None:
    config, everybody = settings(**(REAL if real else {})), people(real)
    found = contributions(config, real)
    assert not found[3].any()  # the empty place
    for person in range(PEOPLE):
        unit = Logged(*(leaf[person] for leaf in everybody))
        if person != 3:
            np.testing.assert_allclose(found[person], by_hand(config, unit), atol=2e-5)


def test_scales_are_means_and_shares_of_sizes() -> None:
    config, everybody = settings(), people()
    longest = np.argmax((everybody.present & ~everybody.ends & ~everybody.cut).sum(axis=1))
    unit = Logged(*(leaf[longest] for leaf in everybody))
    found = np.asarray(moments.person_scales(config, jnp.zeros(1), unit, new_key(0)))
    used = unit.present & ~unit.cut
    x = (np.asarray(unit.observations) - [5, 0]) / [5, 2]
    assert np.linalg.norm(found[:, 0]) == pytest.approx(0.25)
    np.testing.assert_allclose(found[:, 1], x[used].mean(0), atol=1e-5)
    np.testing.assert_allclose(found[:, 2:4], x[used].T @ x[used] / used.sum(), atol=1e-5)
    moves = np.flatnonzero(used & ~unit.ends)
    for i in range(2):
        sizes = np.abs(x[moves + 1, i] - x[moves, i])
        bins = np.clip(np.ceil(-np.log2(sizes)), 0, 19).astype(int)
        np.testing.assert_allclose(
            found[i, 4:], np.bincount(bins, minlength=20) / len(moves), atol=1e-6
        )


def exact_round(config: OfflinePeopleConfig, known: rounds.Known, rows: Logged) -> np.ndarray:
    """The mean contribution of the people with rows, without clipping and noise."""
    found = jax.vmap(lambda unit: rounds.person_residual(config, known, unit, new_key(0)))(rows)
    share = jax.vmap(moments.there)(rows).mean()
    return np.asarray(found, np.float64).mean(axis=0) / float(share)


# --- sensitivity and noise -----------------------------------------------------------------------


def released(
    release: Release, public: Any, units: Logged, folder: Path, persons: np.ndarray, seed: int
) -> np.ndarray:
    budget = Budget(epsilon=math.inf, delta=1e-3)
    where = folder / f"{len(list(folder.iterdir()))}.sqlite"
    ledger = Ledger.create(where, "a", unit=moments.UNIT, budget=budget)
    opened = jax.tree.map(lambda x: jnp.asarray(x)[None], public)
    stream = release.open([ledger], opened, units, noise_seed=seed)
    nested = jax.tree.map(lambda x: jnp.asarray(x)[None, None], units)
    _, log, _ = stream.run(opened, new_key(0)[None], persons[None, None], nested)
    return np.asarray(log[0, 0], np.float64)


def releases() -> dict[str, tuple[Release, Any]]:
    config = settings()
    return {
        "scales": (moments.scales_release(config), jnp.zeros(1)),
        "first": (rounds.round_release(config, 0), rounds.blank(config, scales())),
        "later": (rounds.round_release(config, 1), learned()),
    }


def learned() -> rounds.Known:
    """What is known after a first round of everybody without noise."""
    config = settings()
    blank = rounds.blank(config, scales())
    return rounds.updated(config, blank, exact_round(config, blank, people()), 0.0)


@pytest.mark.parametrize("which", ["scales", "first", "later"])
def test_one_person_moves_a_release_by_at_most_the_clip_norm(which: str, tmp_path: Path) -> None:
    """With the same noise, releases with and without a person differ by that person alone."""
    release, public = releases()[which]
    (part,) = release.parts.values()
    units = Logged(*(leaf[: release.slots].copy() for leaf in people()))
    units.observations[0] = [0, 2]  # a person at the bounds, with the largest products
    units.present[0], units.cut[0], units.ends[0] = True, False, False
    units.observations[0, ::2] = [10, -2]
    units.actions[0], units.rewards[0] = 0, 1
    persons = np.arange(release.slots)
    whole = released(release, public, units, tmp_path, persons, 7)
    without = released(release, public, units, tmp_path, np.where(persons == 0, -1, persons), 7)
    moved = np.linalg.norm((whole - without) * release.divisor)
    assert moved <= part.clip_norm * (1 + 1e-5)
    assert moved > 0.9 * part.clip_norm  # the bound is met, so a smaller one would be noticed


@pytest.mark.parametrize("which", ["scales", "first", "later"])
def test_noise_has_the_stated_scale_and_a_wrong_one_is_noticed(which: str, tmp_path: Path) -> None:
    release, public = releases()[which]
    units = Logged(*(leaf[: release.slots] for leaf in people()))
    nobody = np.full(release.slots, -1)
    noise = np.stack(
        [released(release, public, units, tmp_path, nobody, seed) for seed in range(4)]
    )
    stated = moments.sigma(release)

    def fits(scale: float) -> bool:
        chance = stats.chi2(noise.size).cdf(np.sum(noise**2) / scale**2)
        return 1e-4 < chance < 1 - 1e-4

    assert fits(stated)
    assert not fits(0.7 * stated)
    assert not fits(1.4 * stated)


def test_noise_is_the_least_that_the_target_allows() -> None:
    for which in ("scales", "first", "later"):
        release, _ = releases()[which]
        (part,) = release.parts.values()
        # Balle and Wang 2018, theorem 8, at the target (1, 1e-3).
        z = part.noise_multiplier
        delta = stats.norm.cdf(0.5 / z - z) - math.e * stats.norm.cdf(-0.5 / z - z)
        assert 0.99e-3 < delta <= 1e-3


# --- the policy ----------------------------------------------------------------------------------


def test_the_model_recovers_linear_dynamics_rewards_and_start_states() -> None:
    """Changes are (0.1 + 0.2 a) - 0.3 x and rewards are x, without noise."""
    rng, number = np.random.default_rng(1), 300
    config = settings(people=number, low=(-1.0,), high=(1.0,), actions=2)
    x = np.zeros((number, STEPS, 1), np.float32)
    x[:, 0] = rng.uniform(-0.5, 0.5, (number, 1))
    acted = rng.integers(0, 2, (number, STEPS))
    for t in range(STEPS - 1):
        x[:, t + 1] = x[:, t] + 0.1 + 0.2 * acted[:, t, None] - 0.3 * x[:, t]
    there, never = np.ones((number, STEPS), bool), np.zeros((number, STEPS), bool)
    cut = never.copy()
    cut[:, -1] = True
    rows = Logged(x, acted, x[..., 0], there, cut, cut)
    given = Scales(jnp.array([0.2]), jnp.array([[2.0]]), jnp.array([0.5]), jnp.ones(()))
    blank = rounds.blank(config, given)
    fitted = model.fit(config, blank, exact_round(config, blank, rows), 0.0, new_key(0))
    env = model.environment(config, fitted, 10)
    for start, action in itertools.product((0.1, 0.5), (0, 1)):
        state = model.ModelState(jnp.array([start]), jnp.uint32(3), jnp.int32(5))
        after, reward, ended = env.step(state, jnp.int32(action), fitted)
        assert float(after.x[0]) == pytest.approx(
            start + 0.1 + 0.2 * action - 0.3 * start, abs=2e-3
        )
        assert float(reward) == pytest.approx((start + 1) / 2, abs=2e-3)
        assert not ended
    logged = x[:, :-1]
    assert float(fitted.starts.mean()) == pytest.approx(logged.mean(), abs=0.03)
    assert float(fitted.starts.std()) == pytest.approx(logged.std(), abs=0.03)


def test_models_differ_by_the_noise_and_a_reward_beyond_it_is_the_mean() -> None:
    """Nothing but the constant explains a reward of 1, so noise does not change it by much."""
    config = settings(people=200)
    blank = rounds.blank(config, scales())
    rows = people()
    rows = rows._replace(rewards=np.where(rows.present, 1.0, 0.0).astype(np.float32))
    exact = exact_round(config, blank, rows)
    for sigma in (0.0, 1e-3):
        fitted = model.fit(config, blank, exact, sigma, new_key(0))
        weights = np.asarray(fitted.weights)
        assert weights.shape == (model.MODELS, 3, 6, 4)
        assert (np.ptp(weights, axis=0).max() > 0.01) == (sigma > 0)
        np.testing.assert_allclose(weights[:, :, 0, 2], 1, atol=0.1 if sigma else 1e-4)


# --- rounds --------------------------------------------------------------------------------------


def test_a_contribution_is_what_the_model_leaves_unexplained_and_its_length() -> None:
    config, known = settings(), learned()
    known = known._replace(units=jnp.array([0.5, 0.25]))
    unit = Logged(*(leaf[0] for leaf in people()))
    own = by_hand(config, unit)
    gram, crossed = own[..., :6], own[..., 6:]
    residual = crossed - gram @ np.asarray(known.weights)
    counts = np.zeros(rounds.LENGTHS)
    counts[int(-2 * np.log2(np.linalg.norm(residual)))] = 0.1
    expected = [((gram - known.gram) / 0.5).ravel(), (residual / 0.25).ravel(), counts]
    found = rounds.person_residual(config, known, unit, new_key(0))
    np.testing.assert_allclose(found, np.concatenate(expected), atol=2e-4)
    nobody = Logged(*(leaf[3] for leaf in people()))
    assert not np.asarray(rounds.person_residual(config, known, nobody, new_key(0))).any()


def test_a_round_corrects_wrong_weights_and_leaves_right_ones() -> None:
    """Without noise, one round from any weights is least squares."""
    config, right = settings(), learned()
    off = np.random.default_rng(0).normal(size=right.weights.shape)
    for weights in (right.weights, right.weights + jnp.asarray(off, jnp.float32)):
        known = right._replace(weights=weights)
        after = rounds.updated(config, known, exact_round(config, known, people()), 0.0)
        np.testing.assert_allclose(after.weights, right.weights, atol=5e-3)
        np.testing.assert_allclose(after.gram, right.gram, atol=1e-5)


def test_where_the_features_are_unknown_weights_return_to_the_mean() -> None:
    """Noise of an earlier round in a direction that nobody visits promises nothing."""
    config, known = settings(), learned()
    nobody = known._replace(
        gram=known.gram.at[2].set(0), weights=known.weights.at[2].set(5.0), base=known.base + 0.5
    )
    zeros = np.zeros(rounds.size(config))
    after = rounds.updated(config, nobody, zeros, 0.0)
    np.testing.assert_allclose(after.weights[2], nobody.base, atol=1e-6)


def test_ends_that_do_not_show_above_the_noise_are_left_out() -> None:
    config = settings()
    blank = rounds.blank(config, scales())
    exact = exact_round(config, blank, people())
    for sigma, there in ((1e-3, True), (10.0, False)):
        after = rounds.updated(config, blank, exact, sigma)
        assert bool(np.asarray(after.weights)[..., -1].any()) == there


@pytest.mark.parametrize("length", [0.3, 0.02])
def test_the_next_unit_follows_the_median_length(length: float) -> None:
    config, known = settings(), learned()
    released = np.zeros(rounds.size(config))
    place = int(-2 * math.log2(length)) - rounds.LENGTHS
    released[place] = 0.1
    after = rounds.updated(config, known, released, 1e-4)
    wanted = 1.5 * length / math.sqrt(0.59)
    assert wanted / 1.25 < float(after.units[1]) < wanted * 1.25
    lost = rounds.updated(config, known, released, 1.0)  # the histogram is noise
    assert float(lost.units[1]) == pytest.approx(float(known.units[1]), rel=1e-5)


def test_noise_of_the_gram_falls_as_rounds_are_averaged() -> None:
    config, known = settings(), learned()
    known = known._replace(precision=jnp.float32(100), units=jnp.array([2.0, 1.0]))
    released = np.zeros(rounds.size(config))
    released[: known.gram.size] = 1.0
    after = rounds.updated(config, known, released, 0.1)  # noise .2, so a precision of 25
    assert float(after.precision) == pytest.approx(125)
    np.testing.assert_allclose(after.gram, known.gram + 0.2 * 2.0, atol=1e-5)


def test_a_private_policy_gives_the_dose_that_helps(tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(learning, "_STEPS", 40_000)
    caplog.set_level("INFO", "sotto")
    asked = algorithm.Offline()
    config = asked.resolved(
        OfflinePeopleConfig(on=str(write_visits(tmp_path, 400)), target_epsilon=8.0, delta=1e-4)
    )
    ledger = asked.create_ledger(config, tmp_path / "ledger.sqlite", "run")
    states = asked.initial_states(config, [0])
    *_, last = asked.train(config, [0], [ledger], states, 0, [tmp_path])
    assert (last.updates, last.evaluation, last.simulated) == (5, {}, {})
    policy = jax.tree.map(lambda x: x[0], last.states).policy
    doses = np.argmax(policy(jnp.array([[2.0], [3.0], [7.0], [8.0]])).logits, axis=1)
    assert doses.tolist() == [0, 0, 1, 1]
    assert ledger.persons == 400
    assert [one.releases for one in ledger.streams] == [1, 1, 1, 1]
    # The display shows these notes: the last update takes longer than all others.
    assert "a policy learns in the model, training 4 of 4" in caplog.messages


# --- wrong input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"on": None}, "give --on"),
        ({"delta": 0.1}, "is vacuous for 40 people"),
        ({"people": 5}, "people must be"),
    ],
)
def test_wrong_settings_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        settings(**changes)


def test_a_log_of_single_steps_is_refused_by_the_name_of_its_flag(tmp_path: Path) -> None:
    log = write_visits(tmp_path, 30, horizon=1)
    with pytest.raises(ValueError, match=r"one step in .* import it with --horizon 2 or more"):
        algorithm.Offline().resolved(OfflinePeopleConfig(on=str(log)))


def test_too_many_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="12 observations and real actions have 91 products"):
        moments.products(settings(low=(0.0,) * 12, high=(1.0,) * 12))


def test_a_setting_that_contradicts_the_log_and_another_simulator_are_refused(tmp_path) -> None:
    log = write_visits(tmp_path, 30)
    config = OfflinePeopleConfig(on=str(log))
    with pytest.raises(ValueError, match="--horizon is 4 in"):
        algorithm.Offline().resolved(replace(config, horizon=9))
    with pytest.raises(ValueError, match="choose the simulator of these people"):
        algorithm.Offline().resolved(replace(config, env_id="CartPole-v1"))
    with pytest.raises(ValueError, match="no simulator"):
        algorithm.Offline().evaluate(config, None, new_key(0), 1, True)
    with pytest.raises(ValueError, match="add up"):
        algorithm.Offline().check_seeds(config, [0, 1])
    assert algorithm.Offline().resolved(config).delta == pytest.approx(0.1 / 30)


@pytest.mark.parametrize(
    ("env_id", "told"),
    [
        ("CartPole-v1", False),
        ("MountainCar-v0", False),
        ("clinics:TestClinic-v0", True),
        ("halls:Hall", True),
    ],
)
def test_policies_are_played_in_own_environments_with_a_warning(env_id: str, told: bool) -> None:
    """Returns there are shown, also where the people of the log are real."""
    for one, config in (
        (algorithm.Offline(), OfflinePeopleConfig(on="x", env_id=env_id)),
        (ExpertOffline(), ExpertOfflineConfig(dataset="x", env_id=env_id, target_epsilon=1.0)),
    ):
        notes = one.notes(config)
        assert [f"{env_id} and their returns are shown" in note for note in notes] == [True] * told
        assert not one.notes(replace(config, env_id="none"))
