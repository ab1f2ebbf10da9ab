"""Privacy accounting against oracles that share no code: mpmath, closed forms, Monte Carlo."""

import json
import math
import time

import mpmath
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from scipy import integrate, stats

from sotto.privacy.accounting.composition import (
    ApproximateDP,
    Event,
    Gaussian,
    NoGuarantee,
    Renyi,
    SampledGaussian,
    calibrate_noise_multiplier,
    compose,
    gaussian_epsilon,
)
from sotto.privacy.accounting.curves import PrivacyCurve
from sotto.privacy.accounting.gaussian import delta_of_shift

DELTA = 1e-5


def gaussian(z: float) -> Gaussian:
    return Gaussian(noise_multiplier=z)


def sampled(z: float, rate: float, count: int = 1) -> SampledGaussian:
    return SampledGaussian(noise_multiplier=z, sampling_rate=rate, count=count)


def approximate(epsilon: float, delta: float, count: int = 1) -> ApproximateDP:
    return ApproximateDP(epsilon=epsilon, delta=delta, count=count)


def renyi_of_gaussian(z: float, orders: tuple[float, ...], count: int = 1) -> Renyi:
    divergences = tuple(order / (2 * z * z) for order in orders)
    return Renyi(orders=orders, divergences=divergences, count=count)


def exact_gaussian_delta(z: float, epsilon: float) -> mpmath.mpf:
    """Returns delta by the formula of Balle and Wang in 80 digits."""
    with mpmath.workdps(80):
        mu, eps = 1 / mpmath.mpf(z), mpmath.mpf(epsilon)
        upper = mpmath.erfc(-(mu / 2 - eps / mu) / mpmath.sqrt(2)) / 2
        lower = mpmath.erfc((mu / 2 + eps / mu) / mpmath.sqrt(2)) / 2
        return upper - mpmath.exp(eps) * lower


# --- pure releases -------------------------------------------------------------------------------


def test_pure_releases_compose_exactly_and_others_are_not_taken_for_them() -> None:
    three = compose([approximate(0.5, 0, 3)])
    assert three.epsilon(1e-9) <= compose([approximate(0.5, 0), approximate(0.5, 0, 2)]).epsilon(
        1e-9
    )
    assert 1.499 < three.epsilon(1e-9) <= 1.5
    assert compose([approximate(0.5, 0), approximate(0.5, 0, 2)]).method == three.method
    for others in ([approximate(0.9, 0)], [approximate(0.9, 1e-6)], [gaussian(1.0)]):
        assert compose([approximate(0.5, 0), *others]).method != three.method
    assert compose([approximate(0.9, 0), approximate(0.5, 0)]).epsilon(1e-9) > 1.3997
    assert compose([approximate(0.9, 1e-6)]).delta(0.9) >= 1e-6


# --- the analytic Gaussian -----------------------------------------------------------------------

TABLE = [  # noise multiplier, epsilon under zero-out, under replace-one (half the multiplier)
    (0.05, "284.4", "969.6"),
    (0.1, "91.8", "284.4"),
    (0.5, "10.0", "24.4"),
    (1.0, "4.38", "10.0"),
    (3.0, "1.27", "2.75"),
    (5.0, ".726", "1.56"),
]


@pytest.mark.parametrize(("z", "zero_out", "replace_one"), TABLE)
def test_gaussian_epsilon_equals_the_published_table(z: float, zero_out: str, replace_one: str):
    for multiplier, printed in ((z, zero_out), (z / 2, replace_one)):
        unit_in_last_place = 10.0 ** -len(printed.split(".")[1])
        assert gaussian_epsilon(multiplier, DELTA) == pytest.approx(
            float(printed), abs=0.6 * unit_in_last_place
        )


@pytest.mark.parametrize("z", [0.05, 0.1, 0.5, 1.0, 3.0, 5.0])
def test_gaussian_epsilon_solves_the_hockey_stick_integral(z: float):
    epsilon = gaussian_epsilon(z, DELTA)
    crossing = epsilon * z * z + 0.5  # where the density ratio is e^epsilon

    def excess(x: float) -> float:
        return float(stats.norm.pdf(x, 1, z) - math.exp(epsilon + stats.norm.logpdf(x, 0, z)))

    integral, _ = integrate.quad(excess, crossing, crossing + 10 * z, epsabs=0, epsrel=1e-10)
    assert integral == pytest.approx(DELTA, rel=1e-7)


@settings(max_examples=60, deadline=None)
@given(log_z=st.floats(-1.5, 3), log_delta=st.floats(-60, -0.5))
def test_gaussian_epsilon_is_exact_and_never_below_the_truth(log_z: float, log_delta: float):
    z, delta = 10**log_z, math.exp(log_delta)
    epsilon = gaussian_epsilon(z, delta)
    assert exact_gaussian_delta(z, epsilon) <= delta
    if epsilon > 0:
        assert exact_gaussian_delta(z, epsilon * (1 - 1e-9)) > delta


@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 1.0, 30.0, 1e3, 1e4])
@pytest.mark.parametrize("deviations", [-3.0, 0.0, 0.5, 5.0, 20.0])
def test_delta_of_a_shift_is_exact_for_every_epsilon(epsilon: float, deviations: float):
    # The shift at which the loss threshold lies `deviations` above the mean loss.
    mu = -deviations + math.sqrt(deviations**2 + 2 * epsilon)
    exact = exact_gaussian_delta(1 / mu, epsilon)
    assert exact <= delta_of_shift(mu, epsilon) <= exact * (1 + 1e-8)


@pytest.mark.parametrize("z", [0.01, 0.5, 1.0, 100.0, 1e6])
def test_delta_of_a_shift_at_epsilon_zero(z: float):
    exact = exact_gaussian_delta(z, 0.0)
    assert exact <= delta_of_shift(1 / z, 0.0) <= exact * (1 + 1e-8)


def test_gaussian_epsilon_is_zero_where_delta_covers_the_release():
    assert gaussian_epsilon(1e6, 1e-5) == 0.0
    assert gaussian_epsilon(1e4, 1e-5) > 0.0


def test_gaussian_epsilon_survives_extreme_noise():
    assert gaussian_epsilon(1e-300, DELTA) == math.inf
    assert gaussian_epsilon(1e300, DELTA) == 0.0
    assert gaussian_epsilon(0.007, DELTA) == pytest.approx(10811, rel=1e-3)


# --- composition ---------------------------------------------------------------------------------


def test_gaussian_events_compose_to_one_and_fast():
    events = [gaussian(30.0)] * 1000
    start = time.perf_counter()
    curve = compose(events)
    epsilon = curve.epsilon(DELTA)
    assert time.perf_counter() - start < 0.2
    assert epsilon == pytest.approx(gaussian_epsilon(30 / math.sqrt(1000), DELTA), rel=1e-9)
    assert curve.delta(epsilon) <= DELTA
    assert "analytic" in curve.method


def test_a_poisson_population_costs_what_section_17_of_privacy_says():
    assert compose([sampled(1.0, 0.001, 1000)]).epsilon(DELTA) == pytest.approx(0.149, abs=6e-4)
    assert compose([sampled(0.5, 0.001, 1000)]).epsilon(DELTA) == pytest.approx(3.24, abs=6e-3)
    assert compose([sampled(1.0, 0.001, 10000)]).epsilon(DELTA) == pytest.approx(0.476, abs=6e-4)


def test_one_release_is_one_event():
    """Two parts under one draw cost 3.50. As two sampled events they would seem to cost 1.92."""
    together = compose([sampled(1 / math.sqrt(2), 0.1)]).epsilon(DELTA)
    apart = compose([sampled(1.0, 0.1), sampled(1.0, 0.1)]).epsilon(DELTA)
    assert together == pytest.approx(3.50, abs=6e-3)
    assert apart == pytest.approx(1.92, abs=6e-3)


def test_one_sampled_release_equals_its_closed_form():
    """delta(eps) = q delta_gauss(log(1 + (e^eps - 1)/q)) in the worse direction."""
    rate, z = 0.1, 1 / math.sqrt(2)
    curve = compose([sampled(z, rate)])
    for epsilon in (0.1, 1.0, 3.0):
        exact = rate * float(exact_gaussian_delta(z, math.log1p(math.expm1(epsilon) / rate)))
        assert exact <= curve.delta(epsilon) <= exact * 1.001


def test_dpsgd_agrees_with_dp_accounting_and_monte_carlo():
    z, rate, steps = 1.0, 0.01, 1000
    start = time.perf_counter()
    curve = compose([sampled(z, rate, steps)])
    epsilon = curve.epsilon(DELTA)
    assert time.perf_counter() - start < 5  # about half a second on an idle core

    peer = PLDAccountant()
    peer.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(z)), steps)
    assert epsilon == pytest.approx(peer.get_epsilon(DELTA), rel=1e-3)

    rng, runs = np.random.default_rng(0), 20_000
    loss = np.zeros(runs)
    for _ in range(steps):
        x = z * rng.standard_normal(runs) + (rng.random(runs) < rate)
        loss += np.log1p(rate * np.expm1((x - 0.5) / z**2))
    for at in (0.0, 0.3, 0.6):
        sample = np.maximum(0.0, -np.expm1(at - loss))
        error = 5 * sample.std() / math.sqrt(runs)
        assert sample.mean() - error <= curve.delta(at) <= sample.mean() + error


def loss_masses(
    z: float, rate: float, remove: bool, step: float, up: bool
) -> tuple[int, np.ndarray]:
    """Returns one release's loss on a grid, rounded up or down: (first cell's index, masses)."""
    edges = np.arange(-int(20 / step), int(20 / step)) * step  # in the loss of removal

    def cdf(loss: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            x = 0.5 + z**2 * np.log((np.exp(loss) - 1 + rate) / rate)
        x = np.nan_to_num(x, nan=-np.inf, neginf=-np.inf, posinf=np.inf)
        under_without = stats.norm.cdf(x / z)
        under_with = (1 - rate) * under_without + rate * stats.norm.cdf((x - 1) / z)
        return under_with if remove else under_without

    mass = np.diff(cdf(edges))  # cell k holds losses in (edges[k], edges[k+1]]
    first = round(edges[0] / step)
    if not remove:  # the loss of adding is the negative, under the other distribution
        mass, first = mass[::-1], -(first + len(mass))
    return first + (1 if up else 0), mass


def test_heterogeneous_composition_lies_between_two_numeric_convolutions():
    releases = [(2.0, 1.0 - 1e-12), (1.0, 0.2), (0.8, 0.05)]
    curve = compose([gaussian(2.0), sampled(1.0, 0.2), sampled(0.8, 0.05)])
    step = 2e-3
    for epsilon in (0.1, 0.5, 1.5, 3.0):
        bounds = []
        for up in (False, True):
            deltas = []
            for remove in (False, True):
                first, total = 0, np.ones(1)
                for z, rate in releases:
                    start, mass = loss_masses(z, rate, remove, step, up)
                    keep = np.flatnonzero(mass > 1e-18)
                    first += start + keep[0]
                    total = np.convolve(total, mass[keep[0] : keep[-1] + 1])
                loss = (first + np.arange(len(total))) * step
                deltas.append(float(total @ np.maximum(0.0, -np.expm1(epsilon - loss))))
            bounds.append(max(deltas))
        lower, upper = bounds
        assert lower < upper < 1.1 * lower
        assert lower <= curve.delta(epsilon) <= upper


def exact_approximate_dp_delta(epsilon0: float, delta0: float, count: int, epsilon: float) -> float:
    """Returns delta of the optimal composition (Kairouz, Oh and Viswanath 2015), a binomial sum."""
    high = np.arange(count + 1)
    mass = stats.binom.pmf(high, count, 1 / (1 + math.exp(-epsilon0)))
    loss = (2 * high - count) * epsilon0
    pure = float(mass @ np.maximum(0.0, -np.expm1(epsilon - loss)))
    return 1 - (1 - delta0) ** count * (1 - pure)


@pytest.mark.parametrize(("epsilon0", "count"), [(0.1, 25), (0.01, 300), (1.0, 25)])
def test_approximate_dp_composes_optimally(epsilon0: float, count: int):
    curve = compose([approximate(epsilon0, 1e-8, count)])
    epsilon = curve.epsilon(DELTA)
    assert exact_approximate_dp_delta(epsilon0, 1e-8, count, epsilon) <= DELTA
    assert exact_approximate_dp_delta(epsilon0, 1e-8, count, 0.995 * epsilon) > DELTA
    repeated = compose([approximate(epsilon0, 1e-8)] * count)
    assert repeated.epsilon(DELTA) == epsilon
    assert compose([approximate(epsilon0, 1e-6, count)]).epsilon(DELTA) >= epsilon
    assert compose([approximate(epsilon0, 1e-5, count)]).epsilon(DELTA) == math.inf


def test_joint_composition_beats_adding_epsilons():
    """Basic composition, 5 + 5, is far above the joint PLD."""
    votes, training = approximate(0.2, 0.0, 25), sampled(1.0, 0.01, 1000)
    apart = compose([votes]).epsilon(DELTA / 2) + compose([training]).epsilon(DELTA / 2)
    joint = compose([votes, training])
    assert compose([training]).epsilon(DELTA) < joint.epsilon(DELTA) < 0.9 * apart
    assert joint.delta(joint.epsilon(DELTA)) <= DELTA * (1 + 1e-6)


def test_pld_is_never_below_the_analytic_gaussian_at_small_delta():
    """FFT rounding takes a plain PLD below the truth here. `compose` adds a margin for it."""
    z, count = 100.0, 10_000
    parts = [sampled(z, 1 - 1e-12, count)]
    exact = gaussian_epsilon(z / math.sqrt(count), 2e-10)
    assert exact <= compose(parts).epsilon(2e-10) <= 1.1 * exact
    assert compose(parts).delta(gaussian_epsilon(1.0, 1e-14)) >= 1e-14


def test_coarse_fallback_is_an_upper_bound():
    coarse = compose([sampled(0.0199, 0.5), approximate(1.0, 1e-7)])
    fine = compose([sampled(0.0201, 0.5), approximate(1.0, 1e-7)])
    assert fine.epsilon(DELTA) <= coarse.epsilon(DELTA) < 1.1 * fine.epsilon(DELTA)
    assert "sampling ignored" in coarse.method
    four = compose([sampled(0.01, 0.5, 4)]).epsilon(DELTA)
    assert four == pytest.approx(gaussian_epsilon(0.005, DELTA), rel=1e-9)
    large = compose([gaussian(1.0), approximate(200.0, 1e-6)])
    assert large.epsilon(DELTA) == pytest.approx(200 + gaussian_epsilon(1.0, 9e-6), rel=1e-9)


def test_nothing_and_no_guarantee():
    assert compose([]).epsilon(DELTA) == 0.0
    assert compose([]).delta(0.0) == 0.0
    lost = compose([gaussian(5.0), NoGuarantee(reason="the critic is not private")])
    assert lost.epsilon(DELTA) == math.inf
    assert lost.delta(1e4) == 1.0
    assert "the critic is not private" in lost.method


# --- Renyi ---------------------------------------------------------------------------------------

ORDERS = (1.25, 1.5, 2.0, 3.0, 5.0, 8.0, 16.0, 32.0, 64.0)


def test_renyi_curve_is_a_valid_and_close_bound():
    curve = compose([renyi_of_gaussian(3.0, ORDERS, count=2), gaussian(4.0)])
    exact = gaussian_epsilon(1 / math.sqrt(2 / 9 + 1 / 16), DELTA)
    epsilon = curve.epsilon(DELTA)
    assert exact < epsilon < 1.15 * exact
    assert curve.delta(epsilon) == pytest.approx(DELTA, rel=1e-9)
    assert "Renyi" in curve.method


def test_renyi_with_sampled_gaussian_agrees_with_dp_accounting():
    orders = tuple(float(order) for order in range(2, 65))
    nothing = Renyi(orders=orders, divergences=(0.0,) * len(orders))
    peer = RdpAccountant(orders=list(range(2, 65)))
    peer.compose(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0)), 1000)
    epsilon = compose([nothing, sampled(1.0, 0.01, 1000)]).epsilon(DELTA)
    assert peer.get_epsilon(DELTA) <= epsilon * (1 + 1e-12)
    assert epsilon == pytest.approx(peer.get_epsilon(DELTA), rel=1e-6)


@pytest.mark.parametrize(("z", "rate"), [(1.0, 0.1), (0.3, 0.01), (5.0, 0.3)])
def test_sampled_gaussian_at_one_fractional_order(z: float, rate: float):
    """The series of dp_accounting does not converge at many of these. Quadrature is the oracle."""
    order = 1.5

    def moment(x: float) -> float:
        ratio = 1 - rate + rate * math.exp((x - 0.5) / z**2)
        return float(ratio**order * stats.norm.pdf(x, 0, z))

    total = sum(
        integrate.quad(moment, a * z, (a + 1) * z, epsabs=1e-14)[0]
        for a in range(-10, int(2 / z) + 10)
    )
    divergence = math.log(total) / (order - 1)
    curve = compose([Renyi(orders=(order,), divergences=(0.0,)), sampled(z, rate)])
    expected = divergence + math.log1p(-1 / order) - math.log(DELTA * order) / (order - 1)
    assert curve.epsilon(DELTA) == pytest.approx(expected, rel=1e-9)


def test_approximate_dp_is_added_on_top_of_renyi():
    curve = compose([renyi_of_gaussian(3.0, ORDERS), approximate(0.5, 1e-6, 2)])
    alone = compose([renyi_of_gaussian(3.0, ORDERS)])
    assert curve.epsilon(DELTA) == pytest.approx(1.0 + alone.epsilon(8e-6), rel=1e-9)
    assert curve.epsilon(1e-6) == math.inf
    assert curve.delta(0.5) == 1.0
    assert curve.delta(2.0) == pytest.approx(2e-6 + alone.delta(1.0))


def test_renyi_curves_meet_at_their_shared_orders():
    a, b = renyi_of_gaussian(3.0, (2.0, 8.0, 16.0)), renyi_of_gaussian(3.0, (4.0, 8.0))
    only_eight = renyi_of_gaussian(3.0, (8.0,), count=2)
    assert compose([a, b]).epsilon(DELTA) == compose([only_eight]).epsilon(DELTA)
    with pytest.raises(ValueError, match="share no order"):
        compose([a, renyi_of_gaussian(3.0, (4.0,))])


def test_unproved_renyi_orders_are_skipped():
    partial = Renyi(orders=(2.0, 8.0), divergences=(0.1, math.inf), count=3)
    assert math.isfinite(compose([partial]).epsilon(DELTA))
    nowhere = Renyi(orders=(2.0,), divergences=(math.inf,))
    assert compose([nowhere]).epsilon(DELTA) == math.inf
    assert compose([nowhere]).delta(1.0) == 1.0


@pytest.mark.parametrize(
    ("orders", "divergences", "message"),
    [
        ((2.0, 3.0), (0.1, math.nan), "not negative"),
        ((2.0, 3.0), (0.1, -1e-9), "not negative"),
        ((3.0, 2.0), (0.1, 0.2), "increasing"),
        ((2.0, 2.0), (0.1, 0.2), "increasing"),
        ((1.0, 2.0), (0.1, 0.2), "above 1"),
        ((2.0, math.nan), (0.1, 0.2), "above 1"),
        ((2.0, math.inf), (0.1, 0.2), "above 1"),
        ((2.0,), (0.1, 0.2), "one divergence for each order"),
        ((), (), "one divergence for each order"),
    ],
)
def test_bad_renyi_curves_are_refused(
    orders: tuple[float, ...], divergences: tuple[float, ...], message: str
):
    with pytest.raises(ValueError, match=message):
        Renyi(orders=orders, divergences=divergences)


# --- calibration ---------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    log_target=st.floats(math.log(1e-4), math.log(1e3)),
    log_delta=st.floats(math.log(1e-12), math.log(0.1)),
    releases=st.integers(1, 50),
)
def test_calibration_never_exceeds_the_target(log_target: float, log_delta: float, releases: int):
    target, delta = math.exp(log_target), math.exp(log_delta)

    def events(z: float) -> list[Gaussian]:
        return [gaussian(z)] * releases

    z = calibrate_noise_multiplier(events, target, delta)
    assert exact_gaussian_delta(z / math.sqrt(releases), target) <= delta
    assert compose(events(z)).epsilon(delta) <= target
    assert compose(events(z * (1 - 1e-6))).epsilon(delta) > target


@pytest.mark.parametrize(("target", "rate", "steps"), [(1.0, 0.01, 1000), (8.0, 0.05, 200)])
def test_calibration_of_dpsgd(target: float, rate: float, steps: int):
    z = calibrate_noise_multiplier(lambda z: [sampled(z, rate, steps)], target, DELTA)
    epsilon = compose([sampled(z, rate, steps)]).epsilon(DELTA)
    assert 0.999 * target < epsilon <= target
    # Noise 5% too small is seen.
    assert compose([sampled(0.95 * z, rate, steps)]).epsilon(DELTA) > 1.02 * target


def test_five_percent_too_little_noise_is_seen():
    for target in (0.05, 1.3, 10.0):
        z = calibrate_noise_multiplier(lambda z: [gaussian(z)], target, DELTA)
        assert compose([gaussian(0.95 * z)]).epsilon(DELTA) > 1.03 * target


def test_calibration_around_a_fixed_cost():
    fixed = gaussian(6.0)
    z = calibrate_noise_multiplier(lambda z: [gaussian(z), fixed], 1.0, DELTA)
    assert z > calibrate_noise_multiplier(lambda z: [gaussian(z)], 1.0, DELTA)
    with pytest.raises(ValueError, match="no noise multiplier"):
        calibrate_noise_multiplier(lambda z: [gaussian(z), fixed], 0.5, DELTA)
    with pytest.raises(ValueError, match="no noise multiplier"):
        calibrate_noise_multiplier(lambda z: [NoGuarantee(reason="a gap")], 1.0, DELTA)
    with pytest.raises(ValueError, match="none to calibrate"):
        calibrate_noise_multiplier(lambda z: [fixed], 1.0, DELTA)


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan, math.inf])
def test_impossible_targets_are_refused(target: float):
    with pytest.raises(ValueError, match="target_epsilon must be a positive finite number"):
        calibrate_noise_multiplier(lambda z: [gaussian(z)], target, DELTA)


# --- bad input and JSON --------------------------------------------------------------------------


@pytest.mark.parametrize("z", [0.0, -1.0, math.nan, math.inf])
def test_bad_noise_is_refused(z: float):
    for make in (lambda: gaussian(z), lambda: sampled(z, 0.1), lambda: gaussian_epsilon(z, DELTA)):
        with pytest.raises(ValueError, match="noise_multiplier must be a positive finite number"):
            make()


def test_other_bad_events_are_refused():
    for rate in (0.0, 1.0, -0.1, math.nan):
        with pytest.raises(ValueError, match="sampling_rate must be strictly between 0 and 1"):
            sampled(1.0, rate)
    for count in (0, -1):
        with pytest.raises(ValueError, match="count must be at least 1"):
            sampled(1.0, 0.1, count)
    for epsilon in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="epsilon must be a finite number"):
            approximate(epsilon, 0.0)
    for delta in (-1e-9, 1.0, math.nan):
        with pytest.raises(ValueError, match="delta must be in"):
            approximate(1.0, delta)
    with pytest.raises(ValueError, match="reason"):
        NoGuarantee(reason="")
    with pytest.raises(ValueError, match="Extra inputs"):
        Gaussian.model_validate({"noise_multiplier": 1.0, "count": 3})


@pytest.mark.parametrize("events", [[], [gaussian(1.0)], [sampled(1.0, 0.1)]])
def test_bad_questions_are_refused(events: list[Event]):
    curve = compose(events)
    for delta in (0.0, -1e-5, 1.0, math.nan):
        with pytest.raises(ValueError, match="delta must be strictly between 0 and 1"):
            curve.epsilon(delta)
    for epsilon in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="epsilon must be a finite number"):
            curve.delta(epsilon)


def test_pld_refuses_a_delta_it_cannot_resolve():
    with pytest.raises(ValueError, match="finer than the accountant resolves"):
        compose([sampled(1.0, 0.1)]).epsilon(1e-12)
    with pytest.raises(ValueError, match="a larger delta, or fewer releases"):
        compose([sampled(1e4, 1e-9, 10**9)]).epsilon(1e-5)


def test_divergences_that_round_below_zero_are_not_told(caplog: pytest.LogCaptureFixture):
    assert compose([sampled(1e4, 1e-9, 100)]).epsilon(1e-5) == 0.0
    assert not caplog.records


@pytest.mark.parametrize(
    "event",
    [
        gaussian(1 / 3),
        sampled(0.1 + 0.2, 1e-3, 1000),
        Renyi(orders=(1.5, 2.0), divergences=(0.1, math.inf), count=7),
        approximate(0.1, 1e-8, 25),
        NoGuarantee(reason="fixed seed"),
    ],
)
def test_events_come_back_from_json_equal(event: Event):
    adapter: TypeAdapter[Event] = TypeAdapter(Event)
    text = event.model_dump_json()
    json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))
    again = adapter.validate_json(text)
    assert again == event
    assert type(again) is type(event)
    assert hash(again) == hash(event)


def test_an_epsilon_that_is_not_a_number_is_an_error() -> None:
    """No budget would refuse it, since no comparison with it is true."""
    curve = PrivacyCurve("broken", lambda _: math.nan, lambda _: 1.0)
    with pytest.raises(ValueError, match="not a number: broken"):
        curve.epsilon(1e-5)
