"""The bandit for people who rate items: rounds, contributions, their bounds, noise, learning."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rated_logs import people, settings, write_ratings
from scipy import stats

from sotto.algorithms.bandit import algorithm, person, release
from sotto.algorithms.bandit.config import BanditConfig
from sotto.algorithms.bandit.person import Prior, Rated, RoundMoments
from sotto.experiments.recommenders.replay import replay
from sotto.keys import keys_of, new_key
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms import correlated
from sotto.privacy.statements import Once
from sotto.runs import start
from sotto.runs.agents.agent import Agent


def prior(scale: float = 0.01) -> Prior:
    return Prior(jnp.asarray([0.1, 0.0, -0.1, 0.2]), jnp.full(4, scale))


def unit_of(everybody: Rated, place: int) -> Rated:
    return Rated(*(jnp.asarray(leaf[place]) for leaf in everybody))


# --- one person ----------------------------------------------------------------------------------


def test_rounds_offer_own_rows_at_most_once_and_choose_by_the_posterior() -> None:
    """Against Bayesian linear regression from all earlier rounds, solved anew in float64."""
    config, everybody = settings(), people()
    for place in range(5):
        unit, key = unit_of(everybody, place), new_key(place)
        items, ratings, played = map(np.asarray, person.offers(config, unit, key))
        count = int(unit.present.sum())
        assert played.sum() == count // 4
        own = {tuple(row) for row in np.asarray(unit.items)[:count].tolist()}
        offered = [tuple(row) for row in items[played].reshape(-1, 4).tolist()]
        assert set(offered) <= own
        assert len(set(offered)) == len(offered)
        rounds = person.play(config, prior(), unit, key)
        covariance = np.diag([0.01 + person.SPREAD] * 4 + [person.LEVEL_VARIANCE])
        mean = np.array([*np.asarray(prior().mean, float), person.LEVEL])
        xs: Any = np.zeros((0, 5))
        ys: Any = np.zeros(0)
        for t in np.flatnonzero(played):
            precision = np.linalg.inv(covariance) + xs.T @ xs / person.NOISE
            want = np.linalg.inv(covariance) @ mean + xs.T @ ys / person.NOISE
            scores = items[t] @ np.linalg.solve(precision, want)[:4]
            best = int(scores.argmax())
            assert np.allclose(rounds.items[t], items[t, best])
            assert float(rounds.ratings[t]) == pytest.approx(ratings[t, best])
            assert float(rounds.offered[t]) == pytest.approx(ratings[t].mean(), abs=1e-6)
            xs = np.vstack([xs, [*items[t, best], 1]])
            ys = np.append(ys, ratings[t, best])


def test_an_item_that_was_rated_twice_may_be_offered_twice_and_no_row_is() -> None:
    """Rows do not name their item. The ratings tell the rows apart here."""
    config = settings()
    present = np.arange(20) < 10
    items = np.repeat(np.eye(4, dtype=np.float32)[:2], 10, axis=0)[::-1] * present[:, None]
    ratings = np.where(present, np.linspace(0.1, 0.9, 20), 0).astype(np.float32)
    unit = Rated(*map(jnp.asarray, (items, ratings, present)))
    for seed in range(5):
        offered, rated, played = map(np.asarray, person.offers(config, unit, new_key(seed)))
        assert played.sum() == 2
        assert len(np.unique(rated[played])) == 8
        assert len(np.unique(offered[played].reshape(-1, 4), axis=0)) == 1  # of one item


def test_moments_are_those_of_the_persons_own_rounds_and_nobody_is_zero() -> None:
    config, everybody = settings(), people()
    unit = unit_of(everybody, int(np.argmax(everybody.present.sum(axis=1))))
    rounds = person.play(config, prior(), unit, new_key(0))
    mean = np.asarray(prior().mean)
    found = person.moments(rounds, prior().mean)
    x, y = (np.asarray(leaf, float)[np.asarray(rounds.played)] for leaf in rounds[:2])
    assert len(x) >= 4
    np.testing.assert_allclose(found.squares, person.SQUARES_WEIGHT * x.var(axis=0), atol=1e-6)
    left = y - x @ mean
    np.testing.assert_allclose(
        found.products, ((x - x.mean(0)).T @ (left - left.mean())) / len(x), atol=1e-6
    )
    empty = Rated(jnp.zeros((20, 4)), jnp.zeros(20), jnp.zeros(20, bool))
    nothing = person.moments(person.play(config, prior(), empty, new_key(0)), prior().mean)
    assert not any(np.any(leaf) for leaf in nothing)


# --- the release ---------------------------------------------------------------------------------


def released(
    config: BanditConfig, units: Rated, persons: np.ndarray, folder: Path, runs: int = 1
) -> release.BanditState:
    """The states of runs after the first block, without anything that is made of them."""
    budget = Budget(epsilon=math.inf, delta=1e-3)
    first = len(list(folder.iterdir()))
    ledgers = [
        Ledger.create(folder / f"{first + n}.sqlite", "a", unit=release.UNIT, budget=budget)
        for n in range(runs)
    ]
    state = jax.tree.map(lambda x: jnp.stack([x] * runs), release.first_state(config))
    stream = release.block_release(config, config.num_updates).open(
        ledgers, state, units, chunk=1, noise_seed=7
    )
    nested = jax.tree.map(lambda x: jnp.stack([x] * runs)[:, None], units)
    people_of = np.stack([persons] * runs)[:, None]
    after, _, shown = stream.run(state, keys_of([0] * runs, 0), people_of, nested)
    assert shown is None  # nothing about single real people comes back
    found: release.BanditState = jax.tree.map(lambda x: np.asarray(x, np.float64), after)
    return found


def flat(state: release.BanditState) -> np.ndarray:
    return np.concatenate([state.sums.squares.ravel(), state.sums.products.ravel()])


def test_one_person_moves_a_block_by_at_most_the_clip_norms(tmp_path: Path) -> None:
    """With the same noise, a block with and without a person differs by that person alone."""
    config = settings()
    persons, drawn = algorithm.block_of(config, people(), 0)
    items, ratings = np.array(drawn.items), np.array(drawn.ratings)
    items[0], ratings[0] = 0, 0
    items[0, ::2, 0], ratings[0, ::2] = 1, 1  # the largest products
    present = np.array(drawn.present)
    present[0] = True
    units = Rated(*map(jnp.asarray, (items, ratings, present)))
    whole = released(config, units, persons, tmp_path)
    without = released(config, units, np.where(persons == 0, -1, persons), tmp_path)
    moved = np.linalg.norm(flat(whole) - flat(without))
    assert 0.9 * config.clip_norm < moved <= config.clip_norm * (1 + 1e-5)
    assert 0 < abs(whole.gain[0] - without.gain[0]) <= 0.25 * (1 + 1e-5)


@pytest.mark.parametrize("noise", ["prefix-sum", "binary-tree", "independent"])
def test_noise_has_the_stated_scale_and_a_wrong_one_is_noticed(noise: Any, tmp_path: Path) -> None:
    config = settings(noise=noise)
    units = algorithm.block_of(config, people(), 0)[1]
    nobody = np.full(config.slots, -1)
    drawn = flat(released(config, units, nobody, tmp_path, runs=40))
    stated = math.sqrt(
        release.sum_variances(release.block_release(config, config.num_updates), "moments")[0]
    )
    sensitivity = correlated.sensitivity(config.correlation, Once(), config.num_updates)
    by_hand = config.noise_multiplier * math.sqrt(17 / 16) * config.clip_norm * sensitivity
    assert stated == pytest.approx(by_hand)

    def fits(scale: float) -> bool:
        chance = stats.chi2(drawn.size).cdf(np.sum(drawn**2) / scale**2)
        return bool(1e-4 < chance < 1 - 1e-4)

    assert fits(stated)
    assert not fits(0.8 * stated)
    assert not fits(1.25 * stated)


def test_both_parts_together_spend_the_target_and_no_more(tmp_path: Path) -> None:
    config = settings(target_epsilon=1.0, delta=1e-3)
    parts = release.block_release(config, 5).parts.values()
    z = 1 / math.sqrt(sum(part.noise_multiplier**-2 for part in parts))
    # Balle and Wang 2018, theorem 8.
    delta = stats.norm.cdf(0.5 / z - z) - math.e * stats.norm.cdf(-0.5 / z - z)
    assert 0.99e-3 < delta <= 1e-3


def test_the_prior_is_the_posterior_of_a_noisy_equation_in_each_feature() -> None:
    """Against Bayesian regression with the covariance of the error, solved in float64."""
    squares, weights = np.array([50.0, 20.0, 80.0, 40.0]), np.array([0.1, -0.05, 0.02, 0.0])
    explained = np.array([0.04, 0.0, 0.1, -0.1])
    sums = RoundMoments(
        jnp.asarray(person.SQUARES_WEIGHT * squares), jnp.asarray(squares * (weights - explained))
    )
    found = release.prior_of(sums, explained, variance=2.0, energy=3.0)
    error = np.diag(2.0 + 3.0 * squares / squares.sum())
    gram = np.diag(squares)
    covariance = np.linalg.inv(
        gram @ np.linalg.inv(error) @ gram + np.eye(4) / release.PRIOR_VARIANCE
    )
    want = covariance @ gram @ np.linalg.inv(error) @ gram @ weights
    np.testing.assert_allclose(found.mean, want, atol=1e-6)
    np.testing.assert_allclose(found.variance, np.diag(covariance), rtol=1e-5)
    exact = release.prior_of(sums, explained, 0.0, 0.0)
    np.testing.assert_allclose(exact.mean, weights, atol=1e-6)
    vague = release.prior_of(sums, explained, 1e9, 3.0)
    assert np.abs(np.asarray(vague.mean)).max() < 1e-3
    np.testing.assert_allclose(vague.variance, release.PRIOR_VARIANCE, rtol=0.05)


def test_products_of_noise_alone_move_no_prior_far() -> None:
    """Sums of squares that are below zero, or far below the others, count as small ones."""
    sums = RoundMoments(jnp.asarray([-1.0, -2.0, 0.5, -1.0]), jnp.asarray([5.0, -3.0, 1.0, 2.0]))
    found = release.prior_of(sums, np.zeros(4), variance=9.0, energy=1.0)
    assert np.abs(np.asarray(found.mean)).max() < 0.01
    assert np.all(np.asarray(found.variance) <= release.PRIOR_VARIANCE)


# --- learning ------------------------------------------------------------------------------------


def test_with_enough_people_epsilon_1_has_95_per_cent_of_the_gain_without_privacy() -> None:
    config = settings(people=4000, blocks=8, delta=1e-5)
    everybody = Rated(*map(jnp.asarray, people(4000)))
    private = [replay(config, everybody, "private", seed) for seed in range(2)]
    exact = [replay(config, everybody, "without privacy", seed) for seed in range(2)]
    gains = [sum(one.value - one.random for one in arm) / 2 for arm in (private, exact)]
    assert gains[1] > 0.3
    assert gains[0] > 0.95 * gains[1]
    strict = replay(replace(config, target_epsilon=0.01), everybody, "private", 0)
    assert strict.value - strict.random < 0.8 * gains[1]  # noise does cost something


def test_the_command_trains_resumes_and_ranks(tmp_path: Path) -> None:
    bandit = algorithm.Bandit()
    config = bandit.resolved(
        BanditConfig(on=str(write_ratings(tmp_path, 60)), candidates=2, blocks=3, delta=1e-3)
    )
    assert (config.rounds, config.features, config.slots) == (6, 5, 20)
    ledger = bandit.create_ledger(config, tmp_path / "ledger.sqlite", "run")
    states = bandit.initial_states(config, [0])
    training = bandit.train(config, [0], [ledger], states, 0, [tmp_path])
    first = next(training)
    next(training)  # charged, and then killed before its checkpoint
    again = Ledger.open(tmp_path / "ledger.sqlite", "run")
    (last,) = bandit.train(config, [0], [again], first.states, 1, [tmp_path])
    assert (last.updates, again.persons) == (3, 60)  # the lost block is not asked again
    assert again.spent().epsilon <= 1
    sums = jax.tree.map(lambda x: x[0], last.states)
    assert int(sums.blocks) == 2  # of the two blocks whose sums are there
    assert last.evaluation["gain"][0] == pytest.approx(5 * float(sums.gain) / 40, rel=1e-5)
    one, last_one = (
        sum(release.sum_variances(release.block_release(config, n), "moments")[0] for n in blocks)
        for blocks in ((3,), (3, 1))
    )
    assert float(first.states.variance[0]) == pytest.approx(one)
    assert float(last.states.variance[0]) == pytest.approx(last_one)
    ranking = jax.tree.map(lambda x: x[0], bandit.policies(last.states)["last"])
    offered = np.array([[0, 1, 0, 0, 1], [1, 0, 1, 0, 0]], np.float32).ravel()
    units = jnp.asarray(offered.reshape(2, 5))
    best = np.argmax(np.asarray(person.in_ball(units, ranking.bounds) @ ranking.weights))
    assert int(ranking(jnp.asarray(offered)).mode()) == best


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"on": None}, "give --on"),
        ({"candidates": 21}, "at most 20 rated items"),
        ({"blocks": 51}, "50 people make 50 blocks of 1, not 51"),
        ({"blocks": 4, "people": 6}, "6 people make 3 blocks of 2, not 4.*give --blocks 3"),
        ({"delta": 0.02}, "vacuous for 50 places"),
        ({"candidates": 1}, "candidates must be"),
        ({"clip_norm": 0.0}, "clip_norm must be"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(**changes)


def test_how_many_rows_people_have_decides_about_no_refusal(tmp_path: Path) -> None:
    """Only the declared horizon does: whether anybody reaches a whole round is private."""
    bandit, log = algorithm.Bandit(), str(write_ratings(tmp_path, 20))  # 4 to 11 rows, horizon 12
    ledger = tmp_path / "run"
    with pytest.raises(ValueError, match=r"at most 12 rated items.*needs 13.*--candidates"):
        start.begin(bandit, BanditConfig(on=log, candidates=13), ledger, command="test")
    assert not ledger.exists()  # so nothing can be charged
    config = bandit.resolved(BanditConfig(on=log, candidates=12, blocks=1))
    units = algorithm.block_of(config, person.rated(config, bandit._records(config)), 0)[1]
    assert not units.present.all(axis=1).any()  # nobody has a whole round


def test_all_blocks_have_people_and_are_as_many_as_asked_for() -> None:
    for places in range(2, 40):
        for blocks in range(1, places + 1):
            try:
                config = settings(people=places, blocks=blocks)
            except ValueError as error:
                config = settings(people=places, blocks=int(str(error).split()[-1]))
            found = [algorithm.block_of(config, people(places), n)[0] for n in range(config.blocks)]
            assert all((persons >= 0).any() for persons in found)
            everybody = np.concatenate(found)
            assert everybody[everybody >= 0].tolist() == list(range(places))


def test_what_it_cannot_do_is_refused(tmp_path: Path) -> None:
    bandit, log = algorithm.Bandit(), write_ratings(tmp_path, 20)
    with pytest.raises(ValueError, match="--people is 20"):
        bandit.resolved(BanditConfig(on=str(log), people=30))
    with pytest.raises(ValueError, match="another import"):
        bandit.resolved(BanditConfig(on=str(log), identity="other"))
    with pytest.raises(ValueError, match="leave out --seeds"):
        bandit.check_seeds(settings(), [0, 1])
    with pytest.raises(ValueError, match="no simulator"):
        bandit.evaluate(settings(), None, new_key(0), 1, True)
    with pytest.raises(ValueError, match="shared budget cannot know"):
        bandit.check_numbered(BanditConfig(on=str(log)))


@pytest.mark.parametrize("length", [0, 3, 5, 6])
def test_items_have_all_their_features(length: int) -> None:
    bounds = jnp.asarray([[0.0] * 4, [1.0] * 4])
    ranking = algorithm.Ranking(prior().mean, bounds)
    assert int(ranking(jnp.asarray([0.0] * 4 + [0.3, 0.0, 0.0, 0.3])).mode()) == 1
    says = rf"^an observation must have 4 numbers for each item, .*, got {length}$"
    for seen in (jnp.ones(length), jnp.ones((2, length))):
        with pytest.raises(ValueError, match=says):
            ranking(seen)
        with pytest.raises(ValueError, match="must have 4 numbers for each item"):
            Agent(ranking, "last", 1).act(seen)
