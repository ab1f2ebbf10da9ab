"""Stable prefixes: the inequality on whole trees, in both directions, and the accounting's numbers.

Trees are enumerated. Every prefix that can be released has its exact probability, by quadrature
over the threshold's noise, from densities that this file defines. Experts come in groups that act
alike, so that there can be hundreds of them.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import integrate, stats

from sotto.privacy.accounting import two_hop
from sotto.privacy.accounting.composition import ApproximateDP, Gaussian, SampledGaussian, compose
from sotto.privacy.accounting.events import PrefixReleases
from sotto.privacy.mechanisms.prefix_calibration import (
    Target,
    calibrate_consensus,
    calibrate_floor,
    calibrate_random_stop,
    fixed_log_delta,
    theorem1,
)
from sotto.privacy.mechanisms.sparse_vector import NoiseName, SparseVector, named
from sotto.privacy.mechanisms.stable_prefixes import (
    Consensus,
    Floor,
    RandomStop,
    Rule,
    StablePrefixMechanism,
)

Prefix = tuple[int, ...]
Law = dict[object, float]
DEPTH = 4
QUADRATURE = 1e-4  # relative error of the integrals below

# --- trees ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Experts with the same greedy action after every prefix, and a floor."""

    size: float
    greedy: Callable[[Prefix], int]
    floor: float

    def probability(self, prefix: Prefix, action: int) -> float:
        return 1 - self.floor if action == self.greedy(prefix) else self.floor


@dataclass(frozen=True)
class Run:
    """The settings of a run, which may differ from those that are certified."""

    threshold: float
    noise: SparseVector
    hazard: float = 0.0
    visible_coin: bool = False

    def grid(self) -> tuple[np.ndarray, np.ndarray]:
        rate = self.noise.threshold_rate
        y = np.linspace(0, 40, 4001) if self.noise.law == "exponential" else None
        t = -y / rate if y is not None else np.linspace(-40, 40, 8001) / rate
        density = rate * np.exp(-rate * np.abs(t)) * (1 if y is not None else 0.5)
        return t, density

    def passes(self, query: float, t: np.ndarray) -> np.ndarray:
        gap = self.threshold + t - query
        rate = self.noise.query_rate
        if self.noise.law == "exponential":
            return np.where(gap <= 0, -np.expm1(rate * np.minimum(gap, 0)), 0.0)
        tail = 0.5 * np.exp(-rate * np.abs(gap))
        return np.where(gap <= 0, 1 - tail, tail)


def tree(experts: Sequence[Group], run: Run) -> Law:
    """Returns the probability of every prefix that a rollout of a drawn expert may release."""
    t, density = run.grid()
    sizes = np.array([group.size for group in experts])
    found: Law = {}

    def add(prefix: Prefix, why: str, weights: np.ndarray, left: np.ndarray) -> None:
        drawn = float(weights @ sizes / sizes.sum())
        key = (prefix, why) if run.visible_coin else prefix
        found[key] = found.get(key, 0.0) + drawn * abs(integrate.simpson(density * left, x=t))

    def walk(prefix: Prefix, weights: np.ndarray, left: np.ndarray) -> None:
        if len(prefix) == DEPTH:
            add(prefix, "end", weights, left)
            return
        add(prefix, "coin", weights, run.hazard * left)
        for action in (0, 1):
            after = weights * [group.probability(prefix, action) for group in experts]
            passes = run.passes(float(after @ sizes), t)
            add(prefix, "fail", after, (1 - run.hazard) * left * (1 - passes))
            walk((*prefix, action), after, (1 - run.hazard) * left * passes)

    walk((), np.ones(len(experts)), np.ones_like(t))
    assert sum(found.values()) == pytest.approx(1, abs=1e-6)
    return found


def votes(experts: Sequence[Group], run: Run) -> Law:
    """Returns the same for a rollout of the vote; the world tosses a coin at every step."""
    t, density = run.grid()
    found: Law = {}

    def walk(prefix: Prefix, probability: float, left: np.ndarray) -> None:
        def mass(part: np.ndarray) -> float:
            return probability * abs(float(integrate.simpson(density * part, x=t)))

        if len(prefix) == 2 * DEPTH:
            found[prefix] = mass(left)
            return
        counts = [sum(g.size for g in experts if g.greedy(prefix) == a) for a in (0, 1)]
        winner = int(counts[1] > counts[0])
        passes = run.passes(abs(counts[1] - counts[0]), t)
        found[prefix] = mass(left * (1 - passes))
        for seen in (0, 1):
            walk((*prefix, winner, seen), probability / 2, left * passes)

    walk((), 1.0, np.ones_like(t))
    return found


def hockey_stick(p: Law, q: Law, epsilon: float, fold: int = 1) -> float:
    """Returns the largest p(S) - e^epsilon q(S) of so many independent copies of each."""
    keys = sorted({*p, *q}, key=repr)
    one, other = (np.array([law.get(key, 0.0) for key in keys]) for law in (p, q))
    ones, others = one, other
    for _ in range(fold - 1):
        ones, others = np.outer(ones, one).ravel(), np.outer(others, other).ravel()
    return float(np.maximum(ones - math.exp(epsilon) * others, 0).sum())


def contrary(after: int) -> Callable[[Prefix], int]:
    """Plays 0, and 1 from its `after`-th action on."""
    return lambda prefix: int(len(prefix) >= after)


def scattered(seed: int) -> Callable[[Prefix], int]:
    return lambda prefix: int(np.random.default_rng([seed, len(prefix), *prefix]).integers(2))


def always_zero(prefix: Prefix) -> int:
    return 0


def inputs(experts: int, floor: float) -> list[tuple[list[Group], Group]]:
    """Returns pairs of the other experts and the one who may be absent."""
    uniform = [Group(experts - 1, always_zero, floor)]
    third = (experts - 1) / 3
    mixed = [Group(third, always_zero, floor)] + [
        Group(third, scattered(seed), floor) for seed in (1, 2)
    ]
    return [
        (others, Group(1, greedy, floor))
        for others in (uniform, mixed)
        for greedy in (always_zero, contrary(0), contrary(1), contrary(2))
    ]


def worst(
    run: Run,
    event: PrefixReleases,
    pairs: Sequence[tuple[list[Group], Group]],
    law: Callable[[Sequence[Group], Run], Law] = tree,
    folds: Sequence[int] = (1, 2),
) -> float:
    """Returns the largest divergence over the certified delta, in both directions."""
    found = 0.0
    curves = {fold: compose([event.model_copy(update={"count": fold})]) for fold in folds}
    for others, one in pairs:
        p, q = law([*others, one], run), law(others, run)
        for fold, epsilon in itertools.product(folds, (0.05, 0.2, 0.5, 1.0, 1.5, 2.5, 5.0)):
            certified = curves[fold].delta(epsilon)
            for a, b in ((p, q), (q, p)):
                found = max(found, hockey_stick(a, b, epsilon, fold) / certified)
    return found


def mechanism(rule: Rule, noise: SparseVector) -> StablePrefixMechanism:
    return StablePrefixMechanism(experts=400, rule=rule, noise=noise, failure=1e-4)


def runs(certified: StablePrefixMechanism) -> Run:
    hazard = certified.rule.hazard if isinstance(certified.rule, RandomStop) else 0.0
    return Run(certified.threshold, certified.noise, hazard)


RULES = [Floor(floor=0.05, ratio=0.5), RandomStop(hazard=0.05, ratio=0.5)]


@pytest.mark.parametrize("name", get_args(NoiseName))
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
def test_no_tree_exceeds_the_certificate(rule: Rule, name: NoiseName) -> None:
    """It covers floor and floor-free, all noise laws, masses around and above the threshold."""
    certified = mechanism(rule, named(name, 0.8, 0.6))
    run = runs(certified)
    found = []
    for experts in (400, int(1.2 * certified.threshold) + 400):
        event = certified.model_copy(update={"experts": experts}).event(1)
        found.append(worst(run, event, inputs(experts, rule.floor)))
    # Thresholds are small compared with 400, so some masses are near them.
    near = Run(400 * (1 - rule.floor), run.noise, run.hazard)
    found.append(worst(near, certified.event(1), inputs(400, rule.floor)))
    assert max(found) <= 1 + QUADRATURE
    assert max(found) > 0.02  # the trees are not trivially private


@pytest.mark.parametrize("name", get_args(NoiseName))
def test_no_vote_exceeds_the_certificate(name: NoiseName) -> None:
    certified = mechanism(Consensus(), named(name, 0.5, 0.6))
    run = runs(certified)
    pairs = []
    for lead in (0, 1, 2, int(certified.threshold), int(certified.threshold) + 20):
        half = [
            Group(100 + lead, always_zero, 0.0),
            Group(100, lambda prefix: 1 - int(len(prefix) == 4), 0.0),
        ]
        pairs += [(half, Group(1, contrary(k), 0.0)) for k in (0, 2, 9)]
    found = worst(run, certified.event(1), pairs, votes, folds=(1,))
    assert 0.1 < found <= 1 + QUADRATURE
    # Without a margin one expert decides the vote if the others are tied.
    assert worst(replace(run, threshold=-20.0), certified.event(1), pairs, votes, (1,)) > 10


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
def test_a_threshold_that_is_too_small_is_caught(rule: Rule) -> None:
    certified = mechanism(rule, named("exponential", 0.8, 0.6))
    pairs = inputs(400, rule.floor)
    small = replace(runs(certified), threshold=0.5)
    assert worst(small, certified.event(1), pairs, folds=(1,)) > 3


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
def test_noise_that_is_too_small_is_caught(rule: Rule) -> None:
    certified = mechanism(rule, named("exponential", 0.8, 0.6))
    forgot = Run(400 * (1 - rule.floor), named("exponential", 3.2, 0.6), runs(certified).hazard)
    assert worst(forgot, certified.event(1), inputs(400, rule.floor), folds=(1,)) > 3


def test_without_a_floor_stopping_gives_the_drawn_expert_away() -> None:
    """Without it about 1 in 400 runs names the expert at any epsilon, so `Floor` needs it."""
    certified = mechanism(RULES[0], named("exponential", 0.8, 0.6))
    bare = [([Group(399, always_zero, 0.0)], Group(1, contrary(1), 0.0))]
    assert worst(runs(certified), certified.event(1), bare) > 10
    p, q = (tree(experts, runs(certified)) for experts in ([*bare[0][0], bare[0][1]], bare[0][0]))
    assert hockey_stick(p, q, 8.0) == pytest.approx(1 / 400, rel=0.05)


def test_a_visible_coin_is_worthless() -> None:
    """A visible coin shows why no output may tell the reason for an end."""
    certified = mechanism(RULES[1], named("exponential", 0.8, 0.6))
    others, one = [Group(399, always_zero, 0.0)], Group(1, contrary(1), 0.0)
    secret = runs(certified)
    shown = replace(secret, visible_coin=True)
    assert worst(secret, certified.event(1), [(others, one)]) <= 1 + QUADRATURE
    assert worst(shown, certified.event(1), [(others, one)], folds=(1,)) > 10
    divergence = hockey_stick(tree([*others, one], shown), tree(others, shown), 8.0)
    assert divergence > 0.8 / 400


# --- the arithmetic ------------------------------------------------------------------------------


def products(one: Sequence[float], other: Sequence[float], n: int, epsilon: float) -> float:
    return hockey_stick(dict(enumerate(one)), dict(enumerate(other)), epsilon, n)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.1, 2.0])
def test_pure_composition_is_exact(epsilon: float) -> None:
    p = math.exp(0.7) / (1 + math.exp(0.7))
    found = two_hop.pure_delta(0.7, 5, epsilon)
    assert found == pytest.approx(products([p, 1 - p], [1 - p, p], 5, epsilon), rel=1e-8, abs=1e-15)
    assert two_hop.pure_delta(0.7, 5, two_hop.pure_epsilon(0.7, 5, found)) <= found
    each = two_hop.pure_epsilon_of_each(5, 1.0, 1e-3)
    assert two_hop.pure_delta(each, 5, 1.0) <= 1e-3 < two_hop.pure_delta(1.001 * each, 5, 1.0)


def test_pure_composition_of_a_million_releases_is_rounded_up() -> None:
    """The true value is a sum of the same terms with 40 digits; its logarithms round by 2e-10."""
    true = 5.793345416262e-07
    assert true < two_hop.pure_delta(1e-3, 10**6, 5.0) < true * (1 + 1e-7)


@pytest.mark.parametrize("target", [0.0, 0.1, 0.8, 2.0])
def test_the_drawn_experts_pair_is_exact_and_covers_more_experts(target: float) -> None:
    """Drawing one of m with ratios 0 and rho is dominated for every m from the stated one on."""
    experts, ratio, n = 20, 1.5, 4
    found = float(two_hop.drawn_delta(experts, ratio, n, np.array([target]))[0])
    hit = 1 / (1 + experts * ratio)
    p = [(1 + ratio) * hit, (1 - 1 / experts) * (1 - hit)]
    assert found == pytest.approx(products(p, [hit, 1 - hit], n, target), rel=1e-8, abs=1e-15)
    for m in (20, 21, 30, 1000):
        hit = 1 / ((m - 1) * ratio)
        p = [(1 - 1 / m) * (1 + ratio) * hit, (1 - 1 / m) * (1 - hit)]
        assert products(p, [hit, 1 - hit], n, target) <= found + 1e-15


def test_the_pair_at_a_lower_bound_on_experts_does_not_cover_more_of_them() -> None:
    """With more experts the largest ratio grows beyond that of the pair at the lower bound."""

    def pair(m: int) -> tuple[list[float], list[float]]:
        hit = 1 / ((m - 1) * 1.5)
        return [(1 - 1 / m) * 2.5 * hit, (1 - 1 / m) * (1 - hit)], [hit, 1 - hit]

    target = math.log(2.5 * (1 - 1 / 20))
    assert products(*pair(20), 1, target) < 1e-15
    assert products(*pair(100), 1, target) > 1e-4


@pytest.mark.parametrize("delta", [1e-5, 1e-4])
def test_epsilon_and_delta_of_a_curve_agree(delta: float) -> None:
    event = PrefixReleases(count=25, experts=3000, ratio=1.5, failure=1e-7, epsilon=0.1)
    curve = compose([event])
    epsilon = curve.epsilon(delta)
    assert curve.delta(epsilon) <= delta * 1.001
    assert curve.delta(0.97 * epsilon) > delta
    assert curve.epsilon(25 * 1e-7) == math.inf
    assert curve.delta(0.0) <= 1


def test_failures_and_draws_add_up() -> None:
    """The sum is epsilon = a + b with delta = n d' + drawn(a) + e^a pure(b)."""
    event = PrefixReleases(count=25, experts=3000, ratio=1.5, failure=1e-7, epsilon=0.1)
    k = np.arange(26)
    hit = 1 / (1 + 3000 * 1.5)

    def total(a: float, epsilon: float) -> float:
        ratio = k * math.log(2.5) + (25 - k) * math.log1p(-1 / 3000)
        drawn = np.sum(stats.binom.pmf(k, 25, hit) * np.maximum(np.exp(ratio) - math.exp(a), 0))
        p = 1 / (1 + math.exp(-0.1))
        pure = np.sum(
            np.maximum(
                stats.binom.pmf(k, 25, p) - math.exp(epsilon - a) * stats.binom.pmf(k, 25, 1 - p), 0
            )
        )
        return float(25e-7 + drawn + math.exp(a) * pure)

    for epsilon in (1.0, 2.0, 3.0):
        best = min(total(a, epsilon) for a in np.linspace(0, epsilon, 2001))
        assert best * (1 - 2e-3) <= compose([event]).delta(epsilon) <= best * 1.01


def test_jointly_with_noisy_steps() -> None:
    """The oracle is a PLD of noisy steps and queries that is built here."""
    prefixes = PrefixReleases(count=10, experts=1000, ratio=1.0, failure=1e-7, epsilon=0.1)
    steps = SampledGaussian(noise_multiplier=2.0, sampling_rate=0.05, count=100)
    delta = 1e-4
    grid = {"value_discretization_interval": 1e-3}
    joint = pld.from_gaussian_mechanism(2.0, sampling_prob=0.05, **grid).self_compose(100)
    joint = joint.compose(
        pld.from_privacy_parameters(
            dp_accounting.pld.common.DifferentialPrivacyParameters(0.1, 0.0), **grid
        ).self_compose(10)
    )
    best = math.inf
    for a in np.linspace(0.0, 10 * math.log(2), 400):
        drawn = float(two_hop.drawn_delta(1000, 1.0, 10, np.array([a]))[0])
        left = (delta - 1e-6 - drawn) * math.exp(-a)
        if left > 0:
            best = min(best, a + joint.get_epsilon_for_delta(left))
    found = compose([prefixes, steps]).epsilon(delta)
    assert found == pytest.approx(best, rel=0.01)
    apart = compose([prefixes]).epsilon(delta / 2) + compose([steps]).epsilon(delta / 2)
    assert max(compose([prefixes]).epsilon(delta), compose([steps]).epsilon(delta)) < found < apart


def test_several_streams_cost_at_most_the_widest_and_no_less_than_each() -> None:
    one = PrefixReleases(count=10, experts=1000, ratio=1.0, failure=1e-7, epsilon=0.1)
    other = PrefixReleases(count=5, experts=1000, ratio=0.5, failure=1e-7, epsilon=0.2)
    votes_ = PrefixReleases(count=5, experts=1000, ratio=0, failure=1e-7, epsilon=0.1)
    gaussian = Gaussian(noise_multiplier=3.0)
    delta = 1e-4
    twice = one.model_copy(update={"count": 20})
    assert compose([one, one]).epsilon(delta) == compose([twice]).epsilon(delta)
    for extra in (other, votes_, gaussian):
        assert compose([one, extra]).epsilon(delta) > compose([one]).epsilon(delta)
    bound = compose([one]).epsilon(delta / 2) + compose([votes_]).epsilon(delta / 2)
    assert compose([one, votes_]).epsilon(delta) < bound


# --- tabulated figures ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "floor", "hazard"), [(25, 247, 129), (62, 388, 245), (100, 461, 310)]
)
def test_thresholds_of_the_table(n: int, floor: float, hazard: float) -> None:
    target = Target(3000, n, 5.0, 1 / 6000)
    for found, expected in (
        (calibrate_floor(target, 0.01), floor),
        (calibrate_random_stop(target, 0.02), hazard),
    ):
        assert found.threshold == pytest.approx(expected, rel=0.01)
        assert 4.9 < compose([found.event(n)]).epsilon(1 / 6000) <= 5


@pytest.mark.parametrize(
    ("n", "basic", "advanced", "exact"),
    [(25, 0.1, (0.0933, 1646), (0.1325, 1174)), (62, 0.04, (0.0596, 2610), (0.0805, 1944)),
     (100, 0.025, (0.0470, 3335), (0.0630, 2500))],
)  # fmt: skip
def test_the_papers_accounting(
    n: int, basic: float, advanced: tuple[float, float], exact: tuple[float, float]
) -> None:
    target = Target(10_000, n, 5.0, 1 / 60_000)
    assert theorem1(target, 0.01, "basic").epsilon_each == pytest.approx(basic, rel=0.01)
    target = Target(3000, n, 5.0, 1 / 6000)
    for composition, (each, threshold) in (("advanced", advanced), ("exact", exact)):
        found = theorem1(target, 0.01, composition)
        assert found.epsilon_each == pytest.approx(each, rel=2e-3)
        assert found.threshold == pytest.approx(threshold, rel=0.01)


def test_the_floor_free_threshold_needs_no_floor_and_consensus_no_draw() -> None:
    target = Target(3000, 25, 5.0, 1 / 6000)
    consensus = calibrate_consensus(target)
    event = consensus.event(25)
    assert event.ratio == 0
    assert event.epsilon == consensus.noise.general_cost
    assert compose([event]).epsilon(1 / 6000) == pytest.approx(5.0, rel=1e-6)
    assert consensus.threshold < calibrate_random_stop(target, 0.02).threshold


@pytest.mark.parametrize(("n", "joint"), [(25, 7.46), (62, 7.33), (100, 7.33)])
def test_joint_epsilon_of_five_and_five(n: int, joint: float) -> None:
    """Adding up gives 10, and one PLD gives this, at delta 1/3000."""
    delta = 1 / 3000
    each = two_hop.pure_epsilon_of_each(n, 5.0, delta / 4)
    releases = ApproximateDP(epsilon=each, delta=delta / 4 / n, count=n)
    steps = SampledGaussian(noise_multiplier=60, sampling_rate=256 / 3000, count=823_964)
    assert compose([releases, steps]).epsilon(delta) == pytest.approx(joint, rel=0.01)


def test_noisy_steps_of_epsilon_five() -> None:
    def epsilon(count: int) -> float:
        event = SampledGaussian(noise_multiplier=60, sampling_rate=256 / 3000, count=count)
        return compose([event]).epsilon(1 / 6000)

    assert epsilon(823_964) <= 5 < epsilon(round(1.01 * 823_964))


# --- what is refused -----------------------------------------------------------------------------


def test_too_few_experts_or_too_large_a_delta_are_refused() -> None:
    with pytest.raises(ValueError, match="vacuous for 3000 experts"):
        Target(3000, 25, 5.0, 1 / 3000)
    with pytest.raises(ValueError, match="experts are too few"):
        calibrate_floor(Target(100, 25, 5.0, 1e-4), 0.01)
    with pytest.raises(ValueError, match="fewer than the"):
        theorem1(Target(500, 25, 5.0, 1e-4), 0.01, "advanced")
    with pytest.raises(ValueError, match="fewer than the"):
        StablePrefixMechanism(
            experts=40, rule=RULES[0], noise=named("exponential", 1.0), failure=1e-4
        )
    for wrong in ({"experts": 1}, {"releases": 0}, {"epsilon": 0.0}, {"horizon": 0}):
        with pytest.raises(ValueError, match="must be"):
            Target(**({"experts": 10, "releases": 1, "epsilon": 1.0, "delta": 0.01} | wrong))


def test_the_threshold_has_no_horizon_and_grows_with_less_failure() -> None:
    certified = mechanism(RULES[0], named("exponential", 0.8, 0.6))
    less = certified.model_copy(update={"failure": 1e-6})
    assert less.threshold - certified.threshold == pytest.approx(math.log(100) / 0.48, rel=1e-6)
    assert certified.needed(400) > certified.needed(200) > certified.threshold


@pytest.mark.parametrize(("n", "delta"), [(25, 0.0083), (62, 0.0205), (100, 0.0328)])
def test_what_a_fixed_log_costs(n: int, delta: float) -> None:
    assert fixed_log_delta(n, 3000) == pytest.approx(delta, abs=5e-5)


def test_prefixes_of_few_experts_are_not_counted_as_those_of_many() -> None:
    many = PrefixReleases(count=10, experts=1000, ratio=1.0, failure=1e-7, epsilon=0.1)
    few = many.model_copy(update={"experts": 50})
    all_few, all_many = (one.model_copy(update={"count": 20}) for one in (few, many))
    both = compose([many, few])
    for delta in (1e-4, 1e-2):
        assert both.epsilon(delta) == compose([all_few]).epsilon(delta)
    assert both.delta(0.5) == compose([all_few]).delta(0.5) > compose([all_many]).delta(0.5)


def test_adding_an_expert_costs_what_the_others_are_drawn_less() -> None:
    """With two experts, everybody's log is drawn half as often as without the other one."""
    event = PrefixReleases(count=5, experts=2, ratio=1e-4, failure=1e-9, epsilon=0.1)
    queries = two_hop.pure_epsilon(0.1, 5, 1e-5 - 1e-9)
    assert compose([event]).epsilon(1e-5) == pytest.approx(5 * math.log(2) + queries, rel=1e-6)
    assert compose([event]).delta(5 * math.log(2) - 0.1) == 1.0
