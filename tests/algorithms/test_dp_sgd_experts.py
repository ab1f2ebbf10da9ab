"""DP-SGD over experts: its charges, the influence of one expert, and resumed trainings."""

import math
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from padded_logs import of_padded, without

from sotto.algorithms.expert_offline import dp_sgd as dp
from sotto.algorithms.expert_offline.dp_sgd import DPSGDExpertsConfig, LogPool
from sotto.algorithms.offline.behaviour_cloning import BehaviourCloning
from sotto.algorithms.offline.cql import CQL
from sotto.algorithms.offline.learner import OfflineConfig
from sotto.data.trajectories import ExpertLog
from sotto.privacy.accounting.composition import Gaussian, SampledGaussian, compose
from sotto.privacy.certificates.derive import derive
from sotto.privacy.errors import HorizonExceeded, LedgerCorrupt
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.units import EXPERT

OFFLINE = OfflineConfig(2, 2, (1.0, 1.0), hidden=(8,), minibatch=16)
EPSILON = 0.5
"""Accounting of drawn experts takes a third of the time that it takes at 3."""
CONFIG = DPSGDExpertsConfig(experts=50, epsilon=EPSILON, delta=1e-3, steps=12, batch=10)
SIZE = 2 * 8 + 8 + 8 * 2 + 2


def experts_log(experts: int = 48, seed: int = 0) -> ExpertLog:
    """Returns a log of experts that choose by the sign of the first number.

    Some episodes are missing, and so is expert 7. The second number of an observation encodes its
    expert, episode and step.
    """
    rng = np.random.default_rng(seed)
    episodes, cap = 3, 6
    lengths = rng.integers(0, cap + 1, (experts, episodes)).astype(np.int32)
    lengths[7] = 0
    observations = np.zeros((experts, episodes, cap + 1, 2), np.float32)
    observations[..., 0] = rng.choice([-1.0, 1.0], observations.shape[:-1])
    expert, episode, step = np.indices(observations.shape[:-1])
    observations[..., 1] = (expert * 100 + episode * 10 + step) / 1e4
    return of_padded(
        observations,
        (observations[:, :, :-1, 0] > 0).astype(np.int32),
        np.ones((experts, episodes, cap), np.float32),
        lengths,
        rng.random((experts, episodes)) < 0.5,
    )


LOG = experts_log()


def make_ledger(path: Path, epsilon: float = EPSILON, delta: float = 1e-3) -> Ledger:
    return Ledger.create(path, unit=EXPERT, budget=Budget(epsilon=epsilon, delta=delta))


def keys(runs: int = 1) -> jax.Array:
    return jax.random.split(jax.random.key(1), runs)


def start(config=CONFIG, runs: int = 1, public=()) -> dp.DPSGDState:
    one = jax.vmap(lambda key: dp.initial_state(config, OFFLINE, key, public))
    return one(jax.random.split(jax.random.key(0), runs))


def opened(config, ledgers, states, z, learner=None, chunk=5, **more):
    pool = LogPool(LOG)
    stream, _ = dp.open_gradients(
        config,
        OFFLINE,
        learner or CQL(),
        ledgers,
        states,
        pool,
        multiplier=z,
        chunk=chunk,
        **more,
    )
    return stream, pool


# --- draws ---------------------------------------------------------------------------------------


def test_each_of_an_experts_transitions_is_drawn_equally_often() -> None:
    pool, expert, repeats = LogPool(LOG), 3, 40_000
    rows, there = pool.draw(np.full(repeats, expert), np.random.default_rng(0))
    assert there.all()
    own = LOG.of(expert).transitions
    places, counts = np.unique(rows.observations[:, 1], return_counts=True)
    np.testing.assert_array_equal(places, np.sort(own.observations[:, 1]))
    expected = repeats / len(own.actions)
    assert np.abs(counts - expected).max() < 6 * math.sqrt(expected)


def test_rows_are_of_the_experts_that_were_asked_for() -> None:
    persons = np.array([3, 48, 7, 3, 0, 49, 20])
    rows, there = LogPool(LOG).draw(persons, np.random.default_rng(0))
    np.testing.assert_array_equal(there, [True, False, False, True, True, False, True])
    whose = np.floor(rows.observations[:, 1] * 100 + 1e-4)
    np.testing.assert_array_equal(whose[there], persons[there])
    # No expert's row depends on the other experts of the draw, or on their logs.
    other, _ = LogPool(without(LOG, 1)).draw(persons, np.random.default_rng(0))
    for one, two in zip(jax.tree.leaves(rows), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(one[there], two[there])


def test_cyclic_batches_give_everybody_a_turn_in_every_period() -> None:
    config = replace(CONFIG, batches="cyclic")
    turns = dp.cyclic_batches(config, 0, 10)
    assert turns.shape == (10, 10)
    for first in (0, 5):
        drawn = turns[first : first + config.period].ravel()
        assert sorted(drawn[drawn >= 0]) == list(range(50))
    np.testing.assert_array_equal(dp.cyclic_batches(config, 3, 4), turns[3:7])
    odd = dp.cyclic_batches(replace(config, experts=47), 0, 5)
    assert sorted(odd[odd >= 0]) == list(range(47))
    assert (odd == -1).sum() == 3


# --- costs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("batches", ["poisson", "cyclic"])
def test_noise_is_the_least_that_the_budget_allows(batches: str) -> None:
    config = replace(CONFIG, batches=batches)

    def epsilon(z: float, *others) -> float:
        event = (
            SampledGaussian(noise_multiplier=z, sampling_rate=0.2, count=12)
            if batches == "poisson"
            else Gaussian(noise_multiplier=z)
        )
        return compose([event, *others]).epsilon(1e-3)

    z = dp.noise_multiplier(config, SIZE)
    assert epsilon(z) <= EPSILON < epsilon(0.98 * z)
    other = Gaussian(noise_multiplier=10.0)
    more = dp.noise_multiplier(config, SIZE, [other])
    assert more > z
    assert epsilon(more, other) <= EPSILON < epsilon(0.98 * more, other)


@pytest.mark.parametrize("batches", ["poisson", "cyclic"])
@pytest.mark.parametrize("learner", [CQL(), BehaviourCloning()], ids=["cql", "bc"])
def test_the_budget_is_spent_and_certified(tmp_path, batches: str, learner) -> None:
    config = replace(CONFIG, batches=batches, public_steps=30)
    public = jax.tree.map(lambda x: x[:20], LOG.transitions)
    ledgers = [make_ledger(tmp_path / f"{run}.sqlite") for run in range(2)]
    states = start(config, 2, public)
    before = np.asarray(states.learner.network.network.weights[0])
    z = dp.noise_multiplier(config, SIZE)
    stream, pool = opened(config, ledgers, states, z, learner)
    while stream.released < config.steps:
        states = dp.advance(config, stream, states, keys(2), pool, 5)
    # 12 noisy steps at the full rate are charged, and the 30 public steps are free.
    assert states.made.tolist() == [12, 12]
    assert states.learner.steps.tolist() == [42, 42]
    assert np.all(np.abs(states.average.network.weights[0] - before).max(axis=(1, 2)) > 0)
    for ledger in ledgers:
        certificate = derive(ledger)
        assert certificate.status == "proved"
        assert 0.9 * EPSILON < certificate.epsilon <= EPSILON
        assert certificate.unit == EXPERT
        assert certificate.streams[0].releases == 12
        event = certificate.streams[0].event
        if batches == "poisson":
            assert (type(event), event.sampling_rate, event.count) == (SampledGaussian, 0.2, 12)
            # Multiplying with the clip norm and dividing by it may change the last bit.
            assert event.noise_multiplier == pytest.approx(z, rel=1e-14)
        else:
            assert event == Gaussian(noise_multiplier=z)
        assert certificate.streams[0].statement.sum_rounding > 0
    with pytest.raises(HorizonExceeded):
        stream.run(states, keys(2)) if batches == "poisson" else stream.run(
            states, keys(2), np.full((2, 1, 10), -1), jax.tree.map(jnp.asarray, _any_units(pool))
        )


def _any_units(pool: LogPool):
    rows = pool.draw(np.zeros(20, int), np.random.default_rng(0))
    return jax.tree.map(lambda x: x.reshape(2, 1, 10, *x.shape[1:]), rows)


def test_noise_has_the_stated_scale_and_a_wrong_one_is_noticed(tmp_path) -> None:
    """The release is read before the server's step, since Adam hides its scale."""
    config = replace(CONFIG, steps=40, clip_norm=0.5, batch=10)
    offline = replace(OFFLINE, hidden=(64, 64))
    release = dp.gradient_release(config, offline, CQL(), 2.0)
    seen = replace(release, server=lambda state, released: (state, released["gradient"]))
    states = jax.vmap(lambda k: dp.initial_state(config, offline, k))(keys())
    nobody = LogPool(LOG.of(7))  # an expert without transitions: noise alone
    stream = seen.open([make_ledger(tmp_path / "a.sqlite", math.inf)], states, nobody, noise_seed=3)
    _, log, _ = stream.run(states, keys())
    noise = np.concatenate([np.ravel(x) for x in jax.tree.leaves(log)]).astype(np.float64)
    scale = 2.0 * 0.5 * (1 + stream.statement.sum_rounding) / 10
    error = 6 / math.sqrt(2 * noise.size)
    assert np.std(noise) == pytest.approx(scale, rel=error)
    for wrong in (0.97, 1.03):
        assert abs(np.std(noise) / (wrong * scale) - 1) > error


def test_one_expert_moves_a_release_by_at_most_the_clip_norm(tmp_path) -> None:
    """One expert moves a release by at most the clip norm, also with absurd rewards."""
    config = replace(CONFIG, steps=6, batch=45)
    wild = experts_log()
    wild.of(3).transitions.rewards[:] = 1e12
    logs = []
    for number, log in enumerate((wild, without(wild, 3))):
        release = dp.gradient_release(config, OFFLINE, CQL(reward_scale=1.0), 1e-6)
        seen = replace(release, server=lambda state, released: (state, released["gradient"]))
        ledger = make_ledger(tmp_path / f"{number}.sqlite", math.inf)
        stream = seen.open([ledger], start(config), LogPool(log), noise_seed=0)
        _, released, _ = stream.run(start(config), keys())
        leaves = [np.asarray(x)[0].reshape(6, -1) for x in jax.tree.leaves(released)]
        logs.append(45 * np.concatenate(leaves, axis=1))
    moved = np.linalg.norm(logs[0] - logs[1], axis=1)
    assert np.all(moved <= 1.0 + 1e-4)
    assert moved.max() > 0.99  # and an expert who was drawn does count


# --- resumed trainings ---------------------------------------------------------------------------


def test_a_stored_training_goes_on_with_what_it_was_charged_for(tmp_path) -> None:
    z = dp.noise_multiplier(CONFIG, SIZE)
    ledger, states = make_ledger(tmp_path / "a.sqlite"), start()
    stream, pool = opened(CONFIG, [ledger], states, z)
    states = dp.advance(CONFIG, stream, states, keys(), pool, 5)
    assert 0.9 * EPSILON < ledger.spent().epsilon <= EPSILON  # all steps are charged with the first
    stored = [np.asarray(leaf) for leaf in jax.tree.leaves(states)]

    resumed = Ledger.open(tmp_path / "a.sqlite")
    states = jax.tree.unflatten(jax.tree.structure(states), list(map(jnp.asarray, stored)))
    ahead = states._replace(made=states.made + 1)
    with pytest.raises(LedgerCorrupt, match="is older than what was made from it"):
        opened(CONFIG, [Ledger.open(tmp_path / "a.sqlite")], ahead, z)
    stream, pool = opened(CONFIG, [resumed], states, z)
    while stream.released < 12:
        states = dp.advance(CONFIG, stream, states, keys(), pool, 5)
    assert states.made.tolist() == [12]
    certificate = derive(resumed)
    assert certificate.status == "proved"
    assert [one.releases for one in resumed.streams] == [12]
    assert 0.9 * EPSILON < certificate.epsilon <= EPSILON


def test_public_steps_are_a_public_schedule() -> None:
    config = replace(CONFIG, public_steps=1000)
    schedule = dp.public_schedule(config)
    assert schedule.sum() == 1000
    assert len(schedule) == 12
    np.testing.assert_array_equal(schedule, dp.public_schedule(config))
    assert not np.array_equal(schedule, dp.public_schedule(replace(config, schedule_seed=1)))
    with pytest.raises(ValueError, match="public transitions"):
        start(config)


@pytest.mark.parametrize("batch", [200, 1000])
def test_it_learns(tmp_path, batch: int) -> None:
    """The sign of the first number is learned from 2,000 experts at epsilon 3."""
    log = experts_log(2000, seed=1)
    config = DPSGDExpertsConfig(
        experts=2000, epsilon=3.0, delta=1e-5, steps=150, batch=batch, average_decay=0.95
    )
    offline = replace(OFFLINE, learning_rate=1e-2)
    z = dp.noise_multiplier(config, SIZE)
    ledger = make_ledger(tmp_path / "a.sqlite", 3.0, 1e-5)
    states = jax.vmap(lambda k: dp.initial_state(config, offline, k))(keys())
    pool = LogPool(log)
    stream, states = dp.open_gradients(
        config,
        offline,
        BehaviourCloning(),
        [ledger],
        states,
        pool,
        multiplier=z,
        chunk=75,
    )
    while stream.released < config.steps:
        states = dp.advance(config, stream, states, keys(), pool, 75)
    policy = jax.tree.map(lambda x: x[0], states.average)
    seen = log.transitions
    agreed = np.mean(policy(seen.observations).mode() == seen.actions)
    assert agreed > 0.95


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 50}, "batch must be below the 50 experts"),
        ({"delta": 0.02}, "publishing one of them"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"steps": 0}, "steps must be at least 1"),
    ],
)
def test_settings_that_cannot_run_are_refused(changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **changes)
