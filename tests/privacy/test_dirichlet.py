"""The Dirichlet mechanisms: their answers, and that a wrong concentration is detected."""

import math

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError
from scipy import integrate, stats

from sotto.privacy.accounting.composition import ApproximateDP, Renyi, compose
from sotto.privacy.answers.distances import TrainingShards
from sotto.privacy.audits.audit import audit
from sotto.privacy.mechanisms.dirichlet.cost import ORDERS
from sotto.privacy.mechanisms.dirichlet.mechanism import LARGEST_FAILURE
from sotto.privacy.mechanisms.dirichlet.simplex import GRID
from sotto.privacy.mechanisms.policies import (
    Dirichlet,
    GaussianPolicy,
    PolicyMechanism,
    TruncatedDirichlet,
)

ROW = np.array([0.6, 0.25, 0.1, 0.05])


def rng(seed=0):
    return np.random.default_rng(seed)


def mechanisms():
    return [
        Dirichlet(actions=4, concentration=5, floor=0.05),
        Dirichlet(actions=4, concentration=1e-9, floor=0.05),
        TruncatedDirichlet.sized(actions=4, concentration=5, floor=0.2, threshold=0.01),
        TruncatedDirichlet.sized(actions=4, concentration=1e-6, floor=0.2, threshold=0.1),
        GaussianPolicy(actions=4, noise_stddev=0.3),
    ]


@pytest.mark.parametrize("mechanism", mechanisms(), ids=lambda m: m.kind)
def test_every_answer_is_an_exact_row_on_the_grid(mechanism) -> None:
    answers = mechanism.answer(np.tile(ROW, (500, 1)), rng())
    assert answers.shape == (500, 4)
    assert (answers >= 0).all()
    assert (answers.sum(axis=1) == 1.0).all()
    assert (answers * GRID == np.round(answers * GRID)).all()


@pytest.mark.parametrize("mechanism", mechanisms(), ids=lambda m: m.kind)
def test_a_mechanism_is_its_json(mechanism) -> None:
    adapter: TypeAdapter = TypeAdapter(PolicyMechanism)
    assert adapter.validate_json(mechanism.model_dump_json()) == mechanism


@pytest.mark.parametrize("mechanism", mechanisms(), ids=lambda m: m.kind)
def test_what_a_teacher_computed_raises_nothing(mechanism) -> None:
    bad = np.array([[np.nan, 1, 0, 0], [np.inf, 0, 0, 0], [-1, 2, 0, 0], [0, 0, 0, 0], [1e300] * 4])
    answers = mechanism.answer(bad, rng(3))
    near = np.full((5, 4), 0.25)
    near[1], near[2] = np.eye(4)[:2]
    np.testing.assert_array_equal(answers, mechanism.answer(near, rng(3)))
    with pytest.raises(ValueError, match=r"\[rows, 4\]"):
        mechanism.answer(np.ones((2, 3)), rng())
    assert mechanism.answer(np.ones((0, 4)), rng()).shape == (0, 4)


def test_answers_have_the_mean_and_the_variance_of_the_restricted_row() -> None:
    mechanism = Dirichlet(actions=4, concentration=5, floor=0.05)
    answers = mechanism.answer(np.tile(ROW, (200_000, 1)), rng())
    mean = (1 - 4 * 0.05) * ROW + 0.05
    np.testing.assert_allclose(mechanism.restrict(ROW[None])[0], mean)
    np.testing.assert_allclose(answers.mean(axis=0), mean, atol=0.003)
    np.testing.assert_allclose(answers.var(axis=0), mean * (1 - mean) / 6, rtol=0.02)
    for i, p in enumerate(mean):
        ks = stats.kstest(answers[:5000, i], stats.beta(5 * p, 5 * (1 - p)).cdf)
        assert ks.pvalue > 1e-4


@pytest.mark.parametrize("concentration", [1e-6, 1e-9, 1e-12])
def test_at_tiny_concentrations_an_answer_is_a_corner_drawn_from_the_row(concentration) -> None:
    mechanism = Dirichlet(actions=4, concentration=concentration, floor=0.05)
    answers = mechanism.answer(np.tile(ROW, (20_000, 1)), rng())
    assert np.isfinite(answers).all()
    assert (answers.max(axis=1) > 1 - 1e-6).mean() > 0.999
    np.testing.assert_allclose(answers.mean(axis=0), 0.8 * ROW + 0.05, atol=0.012)


def test_answers_do_not_depend_on_which_thread_drew_them() -> None:
    mechanism = Dirichlet(actions=4, concentration=5, floor=0.05)
    rows = rng(1).dirichlet(np.ones(4), 50_000)
    np.testing.assert_array_equal(mechanism.answer(rows, rng(2)), mechanism.answer(rows, rng(2)))
    halves = mechanism.answer(rows, rng(2))
    assert len(np.unique(halves[:, 0])) > 49_000  # no block repeats the draws of another


def scores(mechanism, row, direction, answers_per_run, runs, seed):
    """Returns the log likelihood ratio of many answers, for the neighbour along `direction`."""
    rows = np.broadcast_to(row, (answers_per_run * runs, len(row)))
    logs = np.log(np.maximum(mechanism.answer(rows, rng(seed)), 2.0**-33))
    return (logs @ direction).reshape(runs, answers_per_run).sum(axis=1)


@pytest.mark.parametrize(("factor", "found_out"), [(1, False), (4, True)])
def test_a_concentration_too_high_is_caught_and_the_right_one_is_not(factor, found_out) -> None:
    """There are ten answers. The certificate is for concentration 20, the answers for 20 or 80."""
    floor, distance, count, delta = 0.1, 0.02, 10, 0.1
    promised = Dirichlet(actions=3, concentration=20, floor=floor)
    d = np.array([-1.0, 1.0, 0.0]) * distance / math.sqrt(2)
    a = np.array([floor, floor + d[1], 0.0])
    a[2] = 1 - a.sum()
    unmixed = [(row - floor) / (1 - 3 * floor) for row in (a, a - d)]
    drawn = [
        scores(promised.at(20 * factor), row, d, count, runs=8000, seed=seed)
        for seed, row in enumerate(unmixed)
    ]
    certified = compose(promised.events(distance, count)).epsilon(delta)
    result = audit(drawn[0], drawn[1], delta, certified_epsilon=certified)
    assert result.refuted == found_out
    assert result.epsilon_lower > 0.4  # the attack finds something


def test_truncated_answers_stay_above_the_threshold() -> None:
    for k in (1e-6, 0.2, 5.0, 100.0):
        mechanism = TruncatedDirichlet.sized(actions=4, concentration=k, floor=0.2, threshold=0.05)
        answers = mechanism.answer(np.tile(ROW, (2000, 1)), rng())
        assert answers.min() >= 0.05 - 1 / GRID
        assert len(np.unique(answers[:, 0])) > 1900


def test_a_truncated_answer_costs_at_most_what_is_charged() -> None:
    """It compares two densities everywhere, by integration for two actions."""
    mechanism = TruncatedDirichlet.sized(actions=2, concentration=4, floor=0.1, threshold=0.05)
    distance = 0.1
    shift = distance / math.sqrt(2)
    epsilon = mechanism.pure_epsilon(distance)
    renyi, failed = mechanism.events(distance, 1)
    assert isinstance(renyi, Renyi)
    assert renyi.orders == ORDERS
    worst = 0.0
    for p in np.linspace(0.1, 0.9 - shift, 9):
        ones, twos = (
            [_truncated_density(4 * q, 4 * (1 - q), 0.05) for q in pair]
            for pair in ((p, p + shift), (p + shift, p))
        )
        for density, other in (ones, twos):
            z = np.linspace(0.05, 0.95, 2001)
            worst = max(worst, np.log(density(z) / other(z)).max())
            for i in range(0, len(ORDERS), 25):
                order = ORDERS[i]
                if order > 50:
                    continue
                moment, _ = integrate.quad(
                    lambda x, f=density, g=other, o=order: f(x) ** o * g(x) ** (1 - o), 0.05, 0.95
                )
                assert math.log(moment) / (order - 1) <= renyi.divergences[i] + 1e-9
    assert 0.5 * epsilon < worst <= epsilon
    assert failed == ApproximateDP(epsilon=0.0, delta=mechanism.failure, count=1)


@pytest.mark.parametrize("actions", [4, 6])
def test_truncated_answers_of_shards_are_charged_for_their_l1_distance(actions: int) -> None:
    """A search over answers finds exactly the range of their log density ratio that is charged."""
    tau, teachers = 0.01, 50
    mechanism = TruncatedDirichlet.sized(
        actions=actions, concentration=4, floor=0.05, threshold=tau
    )
    shards = TrainingShards(teachers=teachers)
    between, l1 = shards.between(actions, 0.05), shards.l1_between(actions, 0.05)
    charged = mechanism.pure_epsilon(between, l1)
    renyi, _ = mechanism.events(between, 3, l1)
    assert isinstance(renyi, Renyi)
    assert renyi.divergences[0] == pytest.approx(ORDERS[0] * charged**2 / 8)
    corners = tau + (1 - actions * tau) * np.eye(actions)
    inside = tau + (1 - actions * tau) * rng().dirichlet(np.full(actions, 0.3), 2000)
    answers = np.log(np.concatenate([corners, inside]))
    shift = 4 * (1 - actions * 0.05) / teachers
    ranges = []
    for _ in range(100):
        one, other = rng().dirichlet(np.full(actions, 0.1), 2)
        ranges.append(np.ptp(answers @ (shift * (one - other))))
    worst = np.ptp(answers @ (shift * (np.eye(actions)[0] - np.eye(actions)[1])))
    assert max(ranges) <= worst <= charged
    assert worst == pytest.approx(charged, rel=1e-6)  # so a smaller charge would be too little
    assert mechanism.pure_epsilon(between) == pytest.approx(math.sqrt(actions / 2) * charged)


def _truncated_density(a, b, tau):
    normaliser, _ = integrate.quad(lambda x: x ** (a - 1) * (1 - x) ** (b - 1), tau, 1 - tau)
    return lambda x: x ** (a - 1) * (1 - x) ** (b - 1) / normaliser


def test_truncation_at_vanishing_concentration_costs_nothing_in_the_end() -> None:
    mechanism = TruncatedDirichlet.sized(actions=6, concentration=5, floor=0.1, threshold=0.01)
    costs = [
        compose(mechanism.at(5 * 0.1**t).events(0.05, 100)).epsilon(1e-5) for t in (0, 1, 2, 4)
    ]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < 0.01


def test_a_truncated_answer_that_often_fails_is_refused() -> None:
    settings = {"actions": 6, "concentration": 1.0, "floor": 0.1, "threshold": 0.01}
    sized = TruncatedDirichlet.sized(**settings)
    assert sized.failure <= LARGEST_FAILURE
    with pytest.raises(ValidationError, match=f"at least {sized.proposals} proposals"):
        TruncatedDirichlet(**settings, proposals=sized.proposals - 1)
    with pytest.raises(ValueError, match="raise the floor"):
        TruncatedDirichlet.sized(actions=6, concentration=9, floor=0.05, threshold=0.0499)
    with pytest.raises(ValidationError, match="below the floor"):
        TruncatedDirichlet(**{**settings, "threshold": 0.1}, proposals=10)


def test_another_concentration_takes_as_many_proposals_as_it_needs() -> None:
    mechanism = TruncatedDirichlet.sized(actions=6, concentration=20, floor=0.1, threshold=0.01)
    assert mechanism.at(1.0).proposals > mechanism.proposals
    assert mechanism.at(1.0).at(20).proposals == mechanism.at(1.0).proposals
    assert mechanism.at(1.0).failure <= LARGEST_FAILURE
    plain = Dirichlet(actions=6, concentration=5, floor=0.1)
    assert plain.at(0.5) == Dirichlet(actions=6, concentration=0.5, floor=0.1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"concentration": 0.0},
        {"concentration": math.inf},
        {"floor": 0.0},
        {"floor": 0.26},
        {"floor": math.nan},
        {"actions": 1},
        {"extra": 1},
    ],
)
def test_parameters_that_make_no_sense_are_refused(wrong) -> None:
    with pytest.raises(ValidationError):
        Dirichlet(**{"actions": 4, "concentration": 5, "floor": 0.05, **wrong})


@pytest.mark.parametrize("mechanism", mechanisms(), ids=lambda m: m.kind)
def test_without_a_distance_there_is_no_cost_and_nonsense_is_refused(mechanism) -> None:
    assert mechanism.events(0.0, 5) == ()
    for distance, count in ((math.nan, 1), (-0.1, 1), (0.1, 0)):
        with pytest.raises(ValueError, match=r"distance|count"):
            mechanism.events(distance, count)
