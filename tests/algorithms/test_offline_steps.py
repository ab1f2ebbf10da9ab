"""Imitation of people in noisy steps: losses by hand, sensitivity, noise, cost, and learning."""

import math
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from people_logs import PEOPLE, REAL, STEPS, people, settings, write_visits
from scipy import stats

from sotto.algorithms.offline_people import algorithm, moments, steps
from sotto.algorithms.offline_people.config import OfflinePeopleConfig
from sotto.algorithms.offline_people.moments import Logged
from sotto.keys import new_key
from sotto.privacy.errors import LedgerOlder
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget


def config(**changes: Any) -> OfflinePeopleConfig:
    return settings(**({"method": "advantage", "steps": 3, "target_epsilon": 8.0} | changes))


def one(number: int, real: bool = False) -> Logged:
    return Logged(*(leaf[number] for leaf in people(real)))


@cache
def first(asked: OfflinePeopleConfig) -> steps.StepsState:
    return steps.initial_state(asked, new_key(0))


# --- one person's contribution -------------------------------------------------------------------


def goals_by_hand(unit: Logged, low: float, high: float) -> np.ndarray:
    """For each row the discounted mean of later rewards, summed forwards in float64."""
    found = np.zeros(STEPS)
    for t in np.flatnonzero(unit.present):
        total = weight = 0.0
        for i, later in enumerate(range(t, STEPS)):
            if not unit.present[later]:
                break
            total += steps.DISCOUNT**i * float(unit.rewards[later]) / (high - low)
            weight += steps.DISCOUNT**i
            if unit.cut[later]:
                break
            if unit.ends[later]:  # rewards of zero for ever
                weight = 1 / (1 - steps.DISCOUNT)
                break
        found[t] = total / weight
    return found


def test_goals_are_discounted_means_of_later_rewards() -> None:
    for number in range(PEOPLE):
        found = np.asarray(steps.later_rewards(config(), one(number)))
        wanted = goals_by_hand(one(number), -1, 1)
        present = one(number).present
        np.testing.assert_allclose(found[present], wanted[present], atol=1e-5)


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("method", ["advantage", "cloning"])
def test_a_contribution_is_the_gradient_of_the_persons_own_mean_loss(
    method: str, real: bool
) -> None:
    asked = config(method=method, **(REAL if real else {}))
    state, unit = first(asked), one(5, real)
    rows = np.flatnonzero(unit.present)
    goals = goals_by_hand(unit, -1, 1)
    x = jnp.asarray((unit.observations - np.array([5, 0])) / np.array([5, 2]), jnp.float32)
    before = np.asarray(state.networks[1].network(x))[:, 0]
    gains = np.exp((goals - before) / float(state.spread))
    weights = np.minimum(gains, 10) if method == "advantage" else np.ones(STEPS)

    def loss(networks: Any) -> Any:
        total: Any = 0.0
        for t in rows:
            out = networks[0].network(x[t])
            if real:
                miss = jnp.sum((out - (unit.actions[t] - 1) / 2) ** 2) / 2
            else:
                miss = -jax.nn.log_softmax(out)[int(unit.actions[t])]
            off = (networks[1].network(x[t])[0] - goals[t]) ** 2 / 2
            total = total + weights[t] * miss + off
        return total / len(rows)

    found = steps.person_gradient(asked, state, unit)
    for got, wanted in zip(
        jax.tree.leaves(found.networks),
        jax.tree.leaves(jax.grad(loss)(state.networks)),
        strict=True,
    ):
        np.testing.assert_allclose(got, wanted, atol=3e-5)
    spread = np.abs(goals - before)[rows].mean()
    assert float(found.spread) == pytest.approx(0.2 * spread, abs=1e-6)
    nobody = steps.person_gradient(asked, state, one(3, real))
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(nobody))


def q_losses_by_hand(policy: Any, target: Any, unit: Logged) -> list[float]:
    """The loss of every row whose next observation is known, in float64; rewards are in [-1, 1]."""
    x = jnp.asarray((unit.observations - np.array([5, 0])) / np.array([5, 2]), jnp.float32)
    values, later = np.asarray(policy.network(x), float), np.asarray(target.network(x), float)
    losses = []
    for t in np.flatnonzero(unit.present):
        taken, ends = values[t, int(unit.actions[t])], bool(unit.ends[t])
        if unit.cut[t] or not (ends or (t + 1 < STEPS and unit.present[t + 1])):
            continue
        goal = 0.01 * float(unit.rewards[t]) / 2
        if not ends:
            goal += 0.99 * later[t + 1, np.argmax(values[t + 1])]
        error = abs(taken - goal)
        huber = error**2 / 2 if error <= 1 else error - 0.5
        losses.append(huber + np.log(np.exp(values[t]).sum()) - taken)
    return losses


def test_the_loss_of_q_learning_is_that_of_the_rows_with_a_next_observation() -> None:
    asked = config(method="cql")
    policy = first(asked).policy
    other = steps.initial_state(asked, new_key(1)).policy
    counts = set()
    for number in range(12):
        unit = one(number)
        losses = q_losses_by_hand(policy, other, unit)
        counts.add(len(losses))
        found = float(steps.conservative(asked, policy, other, unit))
        assert found == pytest.approx(np.mean(losses or [0.0]), rel=1e-4)
    assert {0, 1, 2, 3} <= counts


def test_rows_after_a_cut_teach_nothing_about_it() -> None:
    """The observation after a cut is of another episode."""
    asked = config(method="cql")
    unit = one(5)
    cut = unit._replace(
        present=np.array([True, True] + [False] * (STEPS - 2)),
        ends=np.zeros(STEPS, bool),
        cut=np.array([True] + [False] * (STEPS - 1)),
    )
    gradient = steps.person_gradient(asked, first(asked), cut).networks
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient))


def test_q_learning_needs_categories() -> None:
    with pytest.raises(ValueError, match="cql needs categories of actions"):
        config(method="cql", **REAL)


def test_a_pool_gives_each_person_their_own_rows() -> None:
    drawn = steps.PeoplePool(people()).draw(np.array([4, -1, 9]), np.random.default_rng(0))
    for place, number in ((0, 4), (2, 9)):
        for leaf, wanted in zip(drawn, one(number), strict=True):
            np.testing.assert_array_equal(leaf[place], wanted)
    assert not drawn.present[1].any()


# --- sensitivity, noise and cost -----------------------------------------------------------------


class Everybody(steps.PeoplePool):
    """A pool whose people are drawn at a rate of nearly 1, one of them perhaps empty."""

    def __init__(self, rows: Logged, without: int | None = None) -> None:
        super().__init__(rows)
        self._without = without

    def draw(self, persons: np.ndarray, generator: np.random.Generator) -> Logged:
        found = super().draw(persons, generator)
        if self._without is not None:
            found = found._replace(present=found.present & (persons != self._without)[:, None])
        return found


def released(asked: OfflinePeopleConfig, pool: Any, folder: Path, seed: int) -> np.ndarray:
    """The noisy sum of one step, as one vector, with noise multiplier 2."""
    where = folder / f"{len(list(folder.iterdir()))}.sqlite"
    budget = Budget(epsilon=math.inf, delta=1e-3)
    ledger = Ledger.create(where, "a", unit=moments.UNIT, budget=budget)
    release = steps.steps_release(asked, 2.0)
    object.__setattr__(release, "server", lambda state, out: (state, out["gradient"]))
    states = jax.tree.map(lambda x: jnp.asarray(x)[None], first(asked))
    stream = release.open([ledger], states, pool, noise_seed=seed)
    log = stream.run(states, new_key(0)[None])[1]
    flat = [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(log)]
    return np.concatenate(flat) * release.divisor


def test_one_person_moves_a_step_by_at_most_the_clip_norm(tmp_path: Path) -> None:
    asked = config(steps=1, sampling_rate=0.999999)
    rows = people()
    rows.rewards[0] = 1
    whole = released(asked, Everybody(rows), tmp_path, 7)
    without = released(asked, Everybody(rows, without=0), tmp_path, 7)
    moved = np.linalg.norm(whole - without)
    assert 0.5 * steps.CLIP_NORM < moved <= steps.CLIP_NORM * (1 + 1e-5)


def test_noise_has_the_stated_scale_and_a_wrong_one_is_noticed(tmp_path: Path) -> None:
    asked = config(steps=1)
    rows = people()
    nobody = rows._replace(present=np.zeros_like(rows.present))
    numbers = released(asked, Everybody(nobody), tmp_path, 3) / (2.0 * steps.CLIP_NORM)

    def chance(values: np.ndarray) -> float:
        square = float(values @ values)
        below = stats.chi2.cdf(square, len(values))
        return 2 * min(below, 1 - below)

    assert chance(numbers) > 1e-4
    assert chance(numbers * 0.95) < 1e-4
    assert chance(numbers * 1.05) < 1e-4


def test_all_of_the_budget_is_spent_and_a_killed_training_goes_on(tmp_path: Path) -> None:
    log = write_visits(tmp_path, 300)
    asked = algorithm.Offline()
    settings = asked.resolved(
        OfflinePeopleConfig(
            on=str(log), method="advantage", target_epsilon=8.0, delta=1e-4, steps=60
        )
    )
    where = tmp_path / "ledger.sqlite"
    ledger = asked.create_ledger(settings, where, "run")
    states = asked.initial_states(settings, [0])
    training = asked.train(settings, [0], [ledger], states, 0, [tmp_path])
    kept = [next(training) for _ in range(10)]
    training.close()
    assert kept[-1].updates == 30
    # The checkpoint is that of step 27: three steps were charged, and are not made again.
    ledger = Ledger.open(where)
    *_, last = asked.train(settings, [0], [ledger], kept[8].states, kept[8].updates, [tmp_path])
    assert last.updates == 60
    assert int(last.states.made[0]) == 60
    assert [one.releases for one in ledger.streams] == [60]
    assert 7.5 < ledger.spent().epsilon <= 8.0
    policy = jax.tree.map(lambda x: x[0], last.states).policy
    doses = np.asarray(policy(jnp.array([[1.0], [9.0]])).logits)
    assert doses[1, 1] - doses[1, 0] > doses[0, 1] - doses[0, 0] + 0.1  # a dose helps at 9 only
    fresh = asked.create_ledger(settings, tmp_path / "other.sqlite", "other")
    with pytest.raises(LedgerOlder):
        next(asked.train(settings, [0], [fresh], last.states, 60, [tmp_path]))


def test_many_columns_can_be_learned_from_in_steps() -> None:
    wide = config(low=(0.0,) * 17, high=(1.0,) * 17)
    assert first(wide).policy.network.weights[0].shape == (17, 64)
