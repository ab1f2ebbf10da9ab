"""Noise on a grid that is finer than its sampler: exact likelihoods, read as an attacker would.

A float64 normal of 53 bits, scaled and rounded to a fine grid, hits some integers more often than
others. Whoever knows the sampler reads that from released numbers. Here the probability of an
integer is counted, for the sampler as it is written and for the one that was replaced.
"""

import ast
import math
from decimal import Decimal, localcontext
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import sotto
from sotto.privacy.claims.rewards import LOGGED_FUNCTION
from sotto.privacy.mechanisms.functions.calibration import multiplier_for
from sotto.privacy.mechanisms.functions.rkhs import vector_sensitivity
from sotto.privacy.mechanisms.noise import (
    ERROR,
    LARGEST_RATIO,
    LAYERS,
    GeneratorSource,
    rounded_normal,
    sampler_delta,
    throw,
)
from sotto.privacy.release.functions import FunctionRelease
from sotto.privacy.units import REWARD_FUNCTION

NODES, ITERATIONS, RADIUS, EPSILON, DELTA = 266, 50, 0.1, 0.5, 1e-5
RELEASE = FunctionRelease(
    "values",
    REWARD_FUNCTION,
    vector_sensitivity(NODES, 1, RADIUS),
    multiplier_for(EPSILON, DELTA),
    "simulated",
    size=NODES,
    horizon=ITERATIONS,
    protects=(LOGGED_FUNCTION(radius=f"{RADIUS:g}"),),
)
BEST_GUESS = (math.exp(EPSILON) + DELTA) / (1 + math.exp(EPSILON))

# --- the sampler that was replaced ---------------------------------------------------------------

WIDTHS, HEIGHTS = (np.array([x / 2**160 for x in row]) for row in LAYERS)
STEPS = WIDTHS[:-1] * 2.0**-52


def old_draws(count: int, ratio: float, seed: int) -> np.ndarray:
    """rint(normal * ratio) with a normal of 53 bits in 1,024 layers, as it was."""
    generator = np.random.default_rng(seed)
    kept = []
    while sum(map(len, kept)) < count:
        values, layers = throw(generator.bit_generator.random_raw(count))
        low, high = HEIGHTS[layers], HEIGHTS[layers + 1]
        curve = np.exp(-(values**2) / 2)
        kept.append(values[low + (high - low) * generator.random(count) < curve])
    return np.rint(np.concatenate(kept)[:count] * ratio)


def old_likelihoods(integers: np.ndarray, ratio: float) -> np.ndarray:
    """How probable each integer is, up to a constant: its points in every layer are counted."""

    def first(bound: np.ndarray) -> np.ndarray:
        """The least place of each layer whose draw is at least `bound`."""
        places = (
            np.floor((bound[:, None] - 0.5) / (STEPS * ratio)) + np.arange(-3, 4)[:, None, None]
        )
        reached = np.rint((places + 0.5) * STEPS * ratio) >= bound[:, None]
        return np.asarray(places[0] + np.argmax(reached, axis=0))

    size = np.abs(integers)
    points = np.clip(first(size + 1), 0, 2**52) - np.clip(first(size), 0, 2**52)
    top = np.exp(-((size / ratio) ** 2) / 2)[:, None]
    under = np.clip((top - HEIGHTS[:-1]) / np.diff(HEIGHTS), 0, 1)
    return np.asarray((points * under).sum(axis=1))


# --- the sampler ---------------------------------------------------------------------------------

UNIT = 2 ** (160 + 52 + 192 + 1)
"""Points are odd multiples of 1 / UNIT of a width, in units of 2^-160."""


def likelihood(integer: int, ratio: float) -> Decimal:
    """1,024 areas times P(integer) before points above the curve are thrown anew, exactly.

    For integers above 0, of cells that are narrow against a layer: the points of each layer are
    counted, and in the one that the curve crosses, weighted with the curve in the middle.
    """
    numerator, denominator = ratio.as_integer_ratio()

    def first(width: int, bound: int) -> int:
        """The least P with round(ratio * width (2P + 1) / UNIT) >= bound; see settle_exactly."""
        least = -(-((2 * bound - 1) * UNIT * denominator) // (2 * width * numerator))
        return max(0, least // 2)

    middle = Decimal(integer) / Decimal(ratio)
    top = (-(middle**2) / 2).exp()
    total = Decimal(0)
    for i, width in enumerate(LAYERS.widths[:-1]):
        if Decimal(LAYERS.heights[i]) >= top * 2**160:
            break
        points = min(first(width, integer + 1), 2**244) - min(first(width, integer), 2**244)
        low, high = (Decimal(h) / 2**160 for h in LAYERS.heights[i : i + 2])
        share = min(Decimal(1), (top - low) / (high - low))
        total += points * share * (Decimal(width) / 2**160 * (high - low)) / 2**244
    return total


def cell(integer: int, ratio: float) -> Decimal:
    """The integral of exp(-x^2 / 2) over the cell of an integer (Taylor, for narrow cells)."""
    x, width = Decimal(integer) / Decimal(ratio), 1 / Decimal(ratio)
    second = (x * x - 1) * width**2 / 24
    fourth = (x**4 - 6 * x * x + 3) * width**4 / 1920
    return (-(x**2) / 2).exp() * width * (1 + second + fourth)


@pytest.mark.parametrize("ratio", [2.0**30, 3.3e11, RELEASE.sigma / RELEASE.grid, LARGEST_RATIO])
def test_every_integer_has_the_probability_that_is_proved(ratio: float) -> None:
    """The points of every layer, counted for integers where the density is all that it can be."""
    rng = np.random.default_rng(0)
    with localcontext() as context:
        context.prec = 70
        for x in [0.01, 1e-9, 3.9, *np.abs(rng.standard_normal(6)).clip(0.01, 4.0)]:
            k = round(x * ratio) | 1
            for integer in (k, k + 1):
                found = likelihood(integer, ratio) / cell(integer, ratio)
                # The middle of the crossing layer is taken for the whole: width^2 is left of it.
                assert abs(found - 1) < ERROR + (20 / ratio) ** 2
    assert sampler_delta(1.0, 1) >= 4 * ERROR


def guesses_right(log_ratios: np.ndarray, values: int) -> float:
    """How often the sign of the sum of so many log likelihood ratios is right.

    Each is small, so their mean is half their variance, which a sample shows better.
    """
    return float(stats.norm.cdf(math.sqrt(values) * np.std(log_ratios) / 2))


def log_ratios_of_the_old(ratio: float, shift: int, count: int) -> np.ndarray:
    """Of values that were drawn without the shift, against with it, by exact likelihoods."""
    drawn = old_draws(count, ratio, seed=1)
    far = old_likelihoods(drawn - shift, ratio)
    return np.log(old_likelihoods(drawn, ratio) / np.maximum(far, 1e-300))


def test_composed_likelihoods_stay_within_the_certificate_and_the_old_ones_do_not() -> None:
    """266 values, 50 times, at a certified epsilon of .5: guesses are right .6225 of the time."""
    values = NODES * ITERATIONS
    sigma = RELEASE.sigma
    assert pytest.approx(0.6225, abs=1e-4) == BEST_GUESS
    # The old grid, 2^-40 of the sensitivity: ratio 2^46.
    grid = 2.0 ** (math.floor(math.log2(RELEASE.sensitivity.value)) - 40)
    assert 2**45 < sigma / grid < 2**47
    shift = math.trunc(RADIUS / grid)
    assert guesses_right(log_ratios_of_the_old(sigma / grid, shift | 1, 1500), values) > 0.9
    # At the door's ratios the same sampler does not show.
    coarse = round(RADIUS / sigma * 2.0**26)
    assert guesses_right(log_ratios_of_the_old(2.0**26, coarse, 1500), values) < BEST_GUESS
    # Now: the exact likelihoods of what is drawn, at the ratio at which it is released.
    ratio = sigma / RELEASE.grid
    shift = math.trunc(RADIUS / RELEASE.grid) | 1
    drawn = rounded_normal(GeneratorSource(2).next(), (120,), ratio)
    with localcontext() as context:
        context.prec = 60
        found = [
            float((likelihood(abs(k), ratio) / likelihood(abs(k - shift), ratio)).ln())
            for k in drawn.tolist()
        ]
    scaled, moved = drawn / ratio, shift / ratio
    np.testing.assert_allclose(found, moved * (moved / 2 - scaled), rtol=1e-9, atol=1e-13)
    many = rounded_normal(GeneratorSource(3).next(), (200_000,), ratio) / ratio
    right = guesses_right(moved * (moved / 2 - many), values)
    # Of a Gaussian shift: Phi(mu / 2), mu^2 = values (shift / sigma)^2.
    assert right == pytest.approx(stats.norm.cdf(math.sqrt(values) * moved / 2), abs=1e-3)
    assert right < BEST_GUESS


# --- the law, by its counts ----------------------------------------------------------------------


def p_value(sample: np.ndarray, ratio: float, edges: np.ndarray) -> float:
    """Chi-squared of counts between half-integers."""
    expected = np.diff(stats.norm.cdf(edges / ratio)) * sample.size
    counts = np.histogram(sample, edges)[0]
    few = expected < 10
    expected = np.append(expected[~few], expected[few].sum())
    counts = np.append(counts[~few], counts[few].sum())
    used = expected > 1
    distance = np.sum((counts[used] - expected[used]) ** 2 / expected[used])
    return float(stats.chi2.sf(distance, used.sum() - 1))


@pytest.mark.parametrize("ratio", [0.2, 0.5, 1.0, 7.3, 1000.0, 2.0**26, 2.0**43])
def test_counts_are_those_of_a_rounded_normal_and_a_wrong_scale_is_rejected(ratio: float) -> None:
    cells = np.arange(-60, 61) * max(1, round(ratio / 12)) + 0.5
    edges = np.concatenate([[-np.inf], cells - 1, [np.inf]])
    edges = np.unique(edges)
    generator = GeneratorSource(5).next()
    count = 300_000 if ratio < 1e12 else 30_000
    sample = rounded_normal(generator, (count,), ratio)
    assert p_value(sample, ratio, edges) > 1e-3
    wrong = rounded_normal(generator, (count,), ratio * (1.03 if ratio < 1e12 else 1.1))
    assert p_value(wrong, ratio, edges) < 1e-6


def test_low_bits_are_even() -> None:
    """Of every sixteen integers each is as frequent; the old sampler prefers even ones."""
    ratio = 2.0**43
    sample = rounded_normal(GeneratorSource(6).next(), (40_000,), ratio) % 16
    assert stats.chisquare(np.bincount(sample)).pvalue > 1e-3
    old = old_draws(40_000, 2.0**48, seed=6).astype(np.int64) % 2
    assert stats.chisquare(np.bincount(old)).pvalue < 1e-6


def test_noise_far_below_the_grid_is_nearly_always_zero() -> None:
    assert not rounded_normal(GeneratorSource(7).next(), (100_000,), 0.05).any()


# --- nobody else draws ---------------------------------------------------------------------------

NORMAL = {"standard_normal", "normal", "multivariate_normal", "randn", "gauss", "normalvariate"}
PUBLIC = {
    "rl/networks.py": "a policy's own actions",
    "algorithms/dppg/exploration.py": "a policy's own parameters",
    "algorithms/dppg/trust_region.py": "a simulation of noise, of public numbers",
    "experiments/rio2025/regret.py": "first weights of a published figure",
    "experiments/recommenders/replay.py": "noise of simulated replays on public data",
    "experiments/trials/simulated.py": "noise of simulated intervals, whose coverage is counted",
    "algorithms/evaluation/chains.py": "tables drawn anew from a model that was released",
    "algorithms/offline_people/model.py": "first particles of a model that was released",
    "algorithms/functional_q/choice.py": "random rewards for which public policies are planned",
    "privacy/audits/one_run.py": "a simulation of an audit, of public numbers",
    "privacy/audits/noise_size.py": "directions of canaries",
}
ATTACKED = "privacy/audits/leaks/"
DOORS = {
    "privacy/mechanisms/functions/gaussian_process.py",
    "privacy/mechanisms/functions/grid.py",
    "privacy/mechanisms/functions/scattered.py",
    "privacy/mechanisms/gaussian_policy.py",
    "privacy/mechanisms/noise.py",
    "privacy/release/draws.py",
    "privacy/release/functions.py",
}


def called(tree: ast.AST) -> set[str]:
    """Names of the functions that a module calls."""
    functions = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = {f.attr for f in functions if isinstance(f, ast.Attribute)}
    return names | {f.id for f in functions if isinstance(f, ast.Name)}


def test_gaussian_noise_is_drawn_in_one_place() -> None:
    """`sampler_delta` speaks of one sampler: no module draws normal numbers but by it."""
    root = Path(sotto.__path__[0])
    others, doors = set(), set()
    for path in root.rglob("*.py"):
        names = called(ast.parse(path.read_text()))
        relative = path.relative_to(root).as_posix()
        if names & NORMAL and not relative.startswith(ATTACKED):
            others.add(relative)
        if names & {"rounded_normal", "Singles", "settle", "settle_exactly", "throw"}:
            doors.add(relative)
    assert others == set(PUBLIC)
    assert doors == DOORS
