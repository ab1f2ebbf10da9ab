"""The noisy maximum: its law, its privacy computed exactly, and the door of choices."""

import copy
import itertools
import math
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sotto.privacy.audits.audit import audit_mechanism
from sotto.privacy.certificates.derive import derive
from sotto.privacy.claims.rewards import LOGGED_FUNCTION
from sotto.privacy.errors import BudgetExceeded, HorizonExceeded, LedgerUnavailable
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms import noisy_max
from sotto.privacy.mechanisms.noisy_max import (
    NoisyMax,
    largest_error,
    moved_by_all,
    moved_by_one,
)
from sotto.privacy.mechanisms.sparse_vector import GRID, UNIT
from sotto.privacy.release.choices import ChoiceRelease
from sotto.privacy.release.functions import kept_files
from sotto.privacy.release.released import ReleasedValues
from sotto.privacy.units import EXPERT, REWARD_FUNCTION, TRANSITION, Unit

EPSILON, DELTA = 0.9, 1e-4


def law(steps: Sequence[int], rate: float) -> np.ndarray:
    """The chance of each candidate, in closed form: inclusion and exclusion over the losers."""
    found = []
    for i, mine in enumerate(steps):
        leads = [mine - one + (i < j) for j, one in enumerate(steps) if j != i]
        least = max(0, -min(leads))  # noise with which candidate i can win at all
        total = 0.0
        for count in range(len(leads) + 1):
            each = -math.expm1(-rate) / -math.expm1(-rate * (1 + count))
            for some in itertools.combinations(leads, count):
                total += (-1) ** count * each * math.exp(-rate * (sum(some) + count * least))
        found.append(total * math.exp(-rate * least))
    return np.array(found)


def enumerated(steps: Sequence[int], rate: float, most: int = 36) -> np.ndarray:
    """The same by adding up all outcomes of the noise."""
    found = np.zeros(len(steps))
    one = np.exp(-rate * np.arange(most)) * -math.expm1(-rate)
    for drawn in itertools.product(range(most), repeat=len(steps)):
        sums = [a + b for a, b in zip(steps, drawn, strict=True)]
        found[sums.index(max(sums))] += math.prod(one[x] for x in drawn)
    return found


def worst_ratio(mechanism: NoisyMax, pairs: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """The largest log ratio of the chances of a choice, over pairs of neighbouring values."""
    found = 0.0
    for one, other in pairs:
        laws = [law(mechanism.on_grid(x).tolist(), mechanism.rate * GRID) for x in (one, other)]
        found = max(found, float(np.abs(np.log(laws[0] / laws[1])).max()))
    return found


def neighbours(sensitivity: float, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Values of four candidates; in the neighbour some are larger, up to the sensitivity."""
    generator = np.random.default_rng(seed)
    pairs = []
    for number in range(300):
        values = generator.normal(size=4) * sensitivity * generator.choice([0.0, 0.3, 2.0, 8.0])
        moved = generator.random(4) if number % 2 else generator.integers(2, size=4)
        pairs.append((values, values + moved * sensitivity))
    return pairs


# --- the law -------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [(0, 0), (3, 0), (0, 0, 0), (2, 5, 4), (0, 1, -7)])
def test_the_closed_form_is_the_enumeration(steps: tuple[int, ...]) -> None:
    np.testing.assert_allclose(law(steps, 0.8), enumerated(steps, 0.8), atol=1e-11)


def test_choices_have_the_exact_law() -> None:
    mechanism = NoisyMax.calibrated(4, 0.1, EPSILON)
    values, count = np.array([0.0, 0.05, 0.21, 0.19]), 100_000
    expected = law(mechanism.on_grid(values).tolist(), mechanism.rate * GRID)
    assert expected.sum() == pytest.approx(1)
    drawn = mechanism.choose(np.tile(values, (count, 1)), np.random.default_rng(0))
    found = np.bincount(drawn, minlength=4) / count
    assert np.all(np.abs(found - expected) < 5 * np.sqrt(expected * (1 - expected) / count))
    half_noise = law(mechanism.on_grid(values).tolist(), 2 * mechanism.rate * GRID)
    assert np.abs(found - half_noise).max() > 0.05


def test_the_first_of_equal_sums_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noisy_max, "geometric", lambda *_: np.array([4, 5, 6]))
    mechanism = NoisyMax.calibrated(3, 0.1, EPSILON)
    generator = np.random.default_rng(0)
    assert mechanism.choose(mechanism.grid * np.array([2.0, 1.0, 0.0]), generator) == 0
    assert mechanism.choose(mechanism.grid * np.array([1.0, 2.0, 1.0]), generator) == 1


# --- privacy -------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.05, EPSILON, 5.0])
def test_no_choice_is_more_likely_than_e_to_the_epsilon(epsilon: float) -> None:
    mechanism = NoisyMax.calibrated(4, 0.1, epsilon)
    assert 0.999 * epsilon < mechanism.epsilon <= epsilon
    found = worst_ratio(mechanism, neighbours(0.1))
    assert 0.9 * epsilon < found <= epsilon
    half_noise = mechanism.model_copy(update={"rate": 2 * mechanism.rate})
    assert worst_ratio(half_noise, neighbours(0.1)) > epsilon


def test_rounding_and_float64_move_no_difference_by_more_than_is_paid_for() -> None:
    mechanism = NoisyMax.calibrated(2, 0.1, EPSILON)
    generator = np.random.default_rng(1)
    errors = mechanism.grid / 4 * generator.choice([-1.0, 1.0], (2, 100_000, 2))
    one = generator.normal(size=(100_000, 2))
    other = one + 0.1 * generator.integers(2, size=one.shape)
    moved = np.diff(mechanism.on_grid(other + errors[1]) - mechanism.on_grid(one + errors[0]))
    paid = round(mechanism.epsilon / mechanism.rate * UNIT)
    assert UNIT + 1 < np.abs(moved).max() <= paid == UNIT + 3


def test_a_rate_off_the_grid_and_too_little_epsilon_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 2"):
        NoisyMax(candidates=2, sensitivity=1.0, rate=0.1)
    with pytest.raises(ValueError, match="at least 1e-9, and not 1e-12"):
        NoisyMax.calibrated(2, 1.0, 1e-12)
    assert NoisyMax.calibrated(2, 1.0, 1e6).rate == 64


@pytest.mark.parametrize("seed", range(3))
def test_values_move_by_the_bounds_and_no_further(seed: int) -> None:
    generator = np.random.default_rng(seed)
    weights, radius = generator.dirichlet(np.ones(30), size=6), 0.2
    every, single = moved_by_all(weights, radius), moved_by_one(weights, radius)
    apart = [(a - b) for a, b in itertools.permutations(weights, 2)]
    reached = max(float(one @ (radius * np.sign(one))) for one in apart)
    assert reached <= every <= reached * (1 + 1e-8)
    reached = max(radius * float(np.abs(one).max()) for one in apart)
    assert reached <= single <= reached * (1 + 1e-8)
    assert single < every


def test_float64_sums_are_off_by_less_than_the_bound() -> None:
    generator = np.random.default_rng(0)
    weights, secret = generator.dirichlet(np.ones(3000), size=20), generator.uniform(-1, 1, 3000)
    exact = np.array([math.fsum(row * secret) for row in weights])
    assert np.abs(weights @ secret - exact).max() < largest_error(weights, 1.0) < 1e-12
    rough = weights.astype(np.float32) @ secret.astype(np.float32)
    assert np.abs(rough - exact).max() > largest_error(weights, 1.0)
    signed = np.array([[3.0, -3.0], [1.0, 0.0]])
    assert largest_error(signed, 2.0) == pytest.approx(4 * 2.0**-53 * 6 * 2)


def test_values_are_resolved_up_to_a_quarter_of_a_step() -> None:
    mechanism = NoisyMax.calibrated(2, 0.1, EPSILON)
    assert mechanism.resolves(mechanism.grid / 4)
    assert not mechanism.resolves(mechanism.grid / 4 * (1 + 1e-9))


def test_no_epsilon_is_exceeded_by_rounding() -> None:
    for epsilon in (15.065710018136317, *np.random.default_rng(0).uniform(0.01, 60, 2000)):
        assert NoisyMax.calibrated(2, 1.0, epsilon).epsilon <= epsilon


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_weights_of_other_types_move_as_far_as_is_paid_for(kind: type) -> None:
    rough = WEIGHTS.astype(kind)
    exact = replace(CHOICE, weights=rough.astype(np.float64))
    assert replace(CHOICE, weights=rough).mechanism == exact.mechanism


def test_weights_that_are_changed_later_change_nothing() -> None:
    weights = WEIGHTS.copy()
    made = replace(CHOICE, weights=weights)
    weights *= 100
    np.testing.assert_array_equal(made.weights, WEIGHTS)


# --- the door ------------------------------------------------------------------------------------

WEIGHTS = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.2, 0.3, 0.5]])
CHOICE = ChoiceRelease(
    "policy",
    REWARD_FUNCTION,
    np.arange(12.0).reshape(3, 2, 2),
    WEIGHTS,
    (0.0, 1.0),
    0.1,
    EPSILON,
    "simulated",
    (LOGGED_FUNCTION(radius="0.1"),),
)


def within(radius: float) -> tuple[str, ...]:
    return (LOGGED_FUNCTION(radius=f"{radius:g}"),)


BUDGET = Budget(epsilon=EPSILON, delta=DELTA)


def new_ledger(folder: Path, unit: Unit = REWARD_FUNCTION) -> Ledger:
    return Ledger.create(folder / "l", unit=unit, budget=BUDGET)


def test_a_choice_is_charged_once_written_and_certified(tmp_path: Path) -> None:
    ledger, folder = new_ledger(tmp_path), tmp_path / "kept" / "here"
    stream = CHOICE.open(ledger, folder)
    assert ledger.spent().epsilon == 0
    released = stream.release(np.array([0.9, math.nan, 7.0]))
    assert any(np.array_equal(released.values, one) for one in CHOICE.candidates)
    (file,) = kept_files(ledger, folder)
    assert file is not None
    assert np.array_equal(ReleasedValues.open(file).values, released.values)
    with pytest.raises(HorizonExceeded):
        stream.release(np.zeros(3))
    with pytest.raises(BudgetExceeded):
        CHOICE.open(ledger)
    certificate = derive(Ledger.open(tmp_path / "l"))
    assert certificate.status == "proved"
    assert 0.999 * EPSILON < certificate.epsilon <= EPSILON
    assert certificate.method.startswith("exact composition")
    assert stream.statement.event == CHOICE.mechanism.event(1)
    said = " ".join(one.statement for one in certificate.assumptions)
    assert "only the one whose value plus noise is largest is released" in said
    assert stream.statement.choice == CHOICE.mechanism
    assert CHOICE.mechanism.sensitivity == pytest.approx(0.1)


def test_nothing_is_chosen_that_could_not_be_charged(tmp_path: Path, monkeypatch) -> None:
    stream = CHOICE.open(new_ledger(tmp_path), tmp_path)

    def unavailable(*_: object) -> None:
        raise LedgerUnavailable("gone")

    monkeypatch.setattr(stream._stream, "charge", unavailable)
    monkeypatch.setattr(NoisyMax, "choose", None)
    with pytest.raises(LedgerUnavailable):
        stream.release(np.zeros(3))
    assert not list(tmp_path.glob("*.values"))


def test_one_transition_is_a_unit_of_its_own(tmp_path: Path) -> None:
    one = replace(CHOICE, unit=TRANSITION, radius=1.0)
    assert one.mechanism.sensitivity == pytest.approx(0.5)
    ledger = new_ledger(tmp_path, TRANSITION)
    one.open(ledger).release(np.zeros(3))
    assert ledger.persons == 3


@pytest.mark.unchecked_types
def test_what_a_choice_was_checked_for_does_not_change() -> None:
    bounds, weights = [0.0, 1.0], WEIGHTS.copy()
    plan = replace(CHOICE, bounds=bounds, weights=weights)  # type: ignore[arg-type]
    bounds[1], weights[:] = 100.0, 100.0
    assert plan.bounds == (0.0, 1.0)
    assert np.array_equal(plan.weights, WEIGHTS)


def test_secrets_are_clipped_and_what_is_no_number_is_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[np.ndarray] = []
    monkeypatch.setattr(NoisyMax, "choose", lambda _self, values, _noise: seen.append(values) or 0)
    stream = replace(CHOICE, weights=np.eye(3), bounds=(-3.0, -1.0)).open(new_ledger(tmp_path))
    stream.release(np.array([7.0, math.nan, -math.inf]))
    np.testing.assert_array_equal(seen[0], [-1.0, -2.0, -2.0])


def test_noise_differs_from_opening_to_opening(tmp_path: Path) -> None:
    many = replace(CHOICE, candidates=np.eye(50), weights=np.eye(50), epsilon=1e-3)
    winners = set()
    for number in range(8):
        ledger = Ledger.create(tmp_path / f"{number}", unit=REWARD_FUNCTION, budget=BUDGET)
        winners.add(many.open(ledger).release(np.zeros(50)).values.argmax())
    assert len(winners) > 1  # all eight are equal once in 50^7 times


def test_a_fixed_seed_guarantees_nothing(tmp_path: Path) -> None:
    budget = Budget(epsilon=math.inf, delta=DELTA)
    ledger = Ledger.create(tmp_path / "l", unit=REWARD_FUNCTION, budget=budget)
    CHOICE.open(ledger, noise_seed=1).release(np.zeros(3))
    assert derive(ledger).status == "none"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"weights": WEIGHTS[:2]}, "one row of finite weights"),
        ({"weights": WEIGHTS * math.nan}, "one row of finite weights"),
        ({"weights": WEIGHTS[[0, 0, 0]]}, "nothing to choose"),
        ({"radius": 1e-13, "protects": within(1e-13)}, "take a larger radius"),
        ({"radius": math.inf}, "needs a sensitivity from"),
        (
            {"radius": 1e-320, "protects": within(1e-320), "bounds": (0.0, 1e-318)},
            "needs a sensitivity from",
        ),
        ({"epsilon": 1e-12}, "take more"),
        ({"epsilon": math.inf}, "take more"),
        ({"epsilon": math.nan}, "take more"),
        ({"bounds": (0.0, math.nan)}, "the lower one first"),
        ({"bounds": (1.0, 0.0)}, "the lower one first"),
        ({"bounds": (-1e9, 0.0), "radius": 1e-4, "protects": within(1e-4)}, "take a larger radius"),
        ({"unit": TRANSITION, "radius": 0.99}, "the radius must be 1 or more, got 0.99"),
        (
            {"unit": Unit(kind="transition", adjacency="zero-out")},
            "under zero-out adjacency .* the radius must be 1",
        ),
        ({"unit": EXPERT}, "the unit of a choice is"),
        ({"unit": Unit(kind="reward-function", adjacency="replace-one")}, "the unit of a choice"),
        ({"protects": ()}, "within which radius epsilon holds"),
        ({"protects": (LOGGED_FUNCTION(radius="0.2"),)}, "promises a radius of 0.2"),
    ],
)
def test_nonsense_is_refused(tmp_path: Path, changes: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        replace(CHOICE, **changes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2 secret numbers were given for 3 weights"):
        CHOICE.open(new_ledger(tmp_path)).release(np.zeros(2))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_an_open_choice_does_not_change(tmp_path: Path, copied: Any) -> None:
    """Candidates in an array that was used again were the secret itself."""
    candidates = np.array(CHOICE.candidates)
    plan = copied(replace(CHOICE, candidates=candidates))
    stream = plan.open(new_ledger(tmp_path))
    candidates *= 1000
    for array in (plan.candidates, plan.weights):
        with pytest.raises(ValueError, match="read-only"):
            array *= 1000
    released = stream.release(np.zeros(3)).values
    assert any(np.array_equal(released, one) for one in CHOICE.candidates)
    assert stream.statement.choice == CHOICE.mechanism == stream._release.mechanism
    np.testing.assert_array_equal(stream._release.weights, CHOICE.weights)


# --- audits --------------------------------------------------------------------------------------


def chosen(mechanism: NoisyMax, present: bool, seed: int, samples: int) -> np.ndarray:
    """Choices for a reward that favours one candidate by the radius, or another one by as much."""
    secret = 0.5 + CHOICE.radius / 2 * np.array([1, 0, -1]) * (1 if present else -1)
    values = np.tile(WEIGHTS @ secret, (samples, 1))
    return np.eye(3)[mechanism.choose(values, np.random.default_rng([seed, present]))]


def test_choices_stay_below_their_certificate(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    CHOICE.open(ledger).release(np.zeros(3))
    certified = ledger.spent().epsilon_at(DELTA)
    found = audit_mechanism(
        lambda *run: chosen(CHOICE.mechanism, *run), 20_000, 1, DELTA, certified_epsilon=certified
    )
    assert not found.refuted


def test_a_radius_that_is_too_small_is_caught() -> None:
    less = CHOICE.radius / 5
    small = replace(CHOICE, radius=less, protects=within(less)).mechanism
    found = audit_mechanism(
        lambda *run: chosen(small, *run), 20_000, 1, DELTA, certified_epsilon=EPSILON
    )
    assert found.refuted
