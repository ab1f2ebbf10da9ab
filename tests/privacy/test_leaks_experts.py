"""The leaks of experts are what really happens: their closed forms against literal simulations."""

import functools
import math

import numpy as np
import pytest
from scipy import stats

from sotto.privacy.accounting.composition import gaussian_epsilon
from sotto.privacy.audits.leaks import experts
from sotto.privacy.audits.leaks.leak import DELTA

RUNS = 400_000


def tail_error(simulated: np.ndarray, thresholds: np.ndarray, expected: np.ndarray) -> float:
    """Largest deviation of simulated tails from the expected, in standard errors."""
    found = (simulated[:, None] >= thresholds).mean(axis=0)
    return float(np.max(np.abs(found - expected) / np.sqrt(expected / len(simulated))))


THRESHOLDS = np.array([0.0, 1.0, 2.0, 3.0])


@pytest.mark.parametrize("update", [0.0, 1.0])
def test_a_batch_of_one_drawn_without_replacement(update: float) -> None:
    rng = np.random.default_rng(0)
    updates = np.append(-np.ones(9), update)
    batch = updates[rng.integers(0, 10, RUNS)]
    noisy = batch + rng.standard_normal(RUNS)
    expected = experts._fixed_batch(THRESHOLDS + 1, update)
    assert tail_error(noisy, THRESHOLDS, expected) < 6
    # What Poisson sampling would have given: the others are there whether the expert is or not.
    poisson = np.where(rng.random(RUNS) < 0.1, update, 0.0) - 1 + rng.standard_normal(RUNS)
    if update:
        assert tail_error(poisson, THRESHOLDS, expected) > 20


@pytest.mark.parametrize("present", [False, True])
def test_steps_with_and_without_noise(present: bool) -> None:
    rng = np.random.default_rng(1)
    private = rng.random(RUNS) < 0.1
    drawn = rng.random(RUNS) < 0.5
    noisy = np.where(private, 1.0 * (drawn & present) + rng.standard_normal(RUNS), -np.inf)
    expected = experts._noisy_step(THRESHOLDS, 1.0 if present else 0.0)
    assert tail_error(noisy, THRESHOLDS, expected) < 6


def test_exact_bounds_are_tight_and_do_not_refute_what_is_true() -> None:
    claimed = gaussian_epsilon(1.0, DELTA)
    tail = functools.partial(experts._normal_tail, deviation=1.0)
    audit = experts._exactly(
        claimed,
        functools.partial(tail, mean=1.0),
        functools.partial(tail, mean=0.0),
        np.linspace(0, 8, 4001),
    )
    found = audit(0, 0, 0.999)
    assert found.epsilon_lower == pytest.approx(claimed, rel=1e-4)
    assert not found.epsilon_lower > claimed * (1 + 1e-9)
    nothing = experts._exactly(
        claimed,
        functools.partial(tail, mean=0.0),
        functools.partial(tail, mean=0.0),
        THRESHOLDS,
    )
    assert nothing(0, 0, 0.999).epsilon_lower == 0
    assert not nothing(0, 0, 0.999).refuted


def test_what_is_left_in_one_pool_moves_by_three() -> None:
    """The pools written out: two trajectories each, the drawn expert's first one used up."""

    def sum_of_rest(members: list[str], drawn: str) -> float:
        total = 0.0
        for member in members:
            pool = [1.0, -1.0] if member != "x" else [1.0, 1.0]
            if member == drawn:
                pool = pool[1:]
            total += pool[0]
        return total

    others = ["a", "b", "c"]
    origin = {sum_of_rest(others, drawn) for drawn in others}
    assert len(origin) == 1
    (start,) = origin
    members = [*others, "x"]
    assert {sum_of_rest(members, drawn) - start for drawn in others} == {1.0}
    assert sum_of_rest(members, "x") - start == 3.0
    # Of the closed form: the share of either, and the noise.
    far = experts._tails_reused(np.array([-50.0, 2.0]))
    assert far[0] == pytest.approx(experts._released_at_least())
    mixture = stats.norm.sf(2, 3, 0.5) / 3000 + stats.norm.sf(2, 1, 0.5) * 2999 / 3000
    assert far[1] / far[0] == pytest.approx(mixture)


def test_prefixes_are_those_of_theorem_1() -> None:
    least, margin = 100 / (1 - math.exp(-0.5)), 8 * math.log(2 / 3e-6)
    assert least + margin == pytest.approx(experts._THRESHOLD, rel=1e-12)
    seen = experts._prefixes(True, 3, RUNS)
    released, common = seen.mean(axis=0)
    assert common == pytest.approx(0.99, abs=2e-3)
    # A floor action has mass 30 of 3000, and is not released; nor is one lost that has 2970.
    assert released == pytest.approx(common, abs=1e-4)
    assert 0.98 < experts._released_at_least() <= 0.99
    assert released >= experts._released_at_least() - 2e-3


def test_the_owner_of_a_fixed_log_is_released_more_often_than_delta() -> None:
    assert experts._owner_released(np.zeros(1))[0] > 30 * DELTA
    assert experts.FIXED_LOG.leaky(0, 0, 0.999).epsilon_lower == math.inf


@pytest.mark.parametrize(
    ("leak", "at_least"),
    [(experts.FIXED_BATCHES, 3.5), (experts.VISIBLE_COIN, 2.9), (experts.REUSED_POOL, 20.0)],
)
def test_computed_leaks_do_not_depend_on_samples(leak, at_least) -> None:
    one, two = leak.leaky(10, 0, 0.999), leak.leaky(10_000, 1, 0.99)
    assert one == two
    assert one.confidence == 1.0
    assert one.epsilon_lower > at_least > leak.claimed_epsilon
