"""Paths at points that are very close: whoever asks there must not find less noise than is proved.

The reference is 80-digit arithmetic (mpmath). An attacker who knows the points and both functions
sees a Gaussian shift; the worst pair of neighbours at these points makes it as large as the largest
eigenvalue of K Sigma^-1 says, where K is the kernel and Sigma the covariance of the noise that is
really there. It must not be above 1, up to what the surplus of sigma pays for.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
from scipy.linalg import solve_triangular

from sotto.privacy.accounting.composition import Gaussian, compose
from sotto.privacy.errors import PrivacyError
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms.functions import gaussian_process, rounding, scattered
from sotto.privacy.mechanisms.functions.gaussian_process import Kernel, Paths
from sotto.privacy.mechanisms.functions.grid import sample_grid
from sotto.privacy.mechanisms.functions.rkhs import (
    Sensitivity,
    generic_sensitivity,
    mixed_partials_sensitivity,
    norm_at_points,
)
from sotto.privacy.mechanisms.functions.rounding import (
    LEAST_SPREAD,
    MOST_NUMBERS,
    NUGGET,
    check_grid,
    dot,
    surplus,
)
from sotto.privacy.mechanisms.functions.scattered import ScatteredPaths
from sotto.privacy.mechanisms.noise import GeneratorSource
from sotto.privacy.release.functions import FunctionRelease
from sotto.privacy.release.released import ReleasedFunction
from sotto.privacy.release.storage import Store
from sotto.privacy.units import Adjacency, Unit

DIGITS = 80
EPSILON, DELTA = 4.377, 1e-5  # of one release with noise multiplier 1


@pytest.fixture(autouse=True)
def many_digits() -> object:
    with mpmath.workdps(DIGITS):
        yield


def exact(matrix: np.ndarray) -> mpmath.matrix:
    return mpmath.matrix(matrix.tolist())


def kernel_matrix(points: np.ndarray, beta: float) -> mpmath.matrix:
    """exp(-beta |x - y|_1) of these float64 numbers, in 80 digits."""
    rows = [[mpmath.mpf(x) for x in point] for point in points.tolist()]
    return mpmath.matrix(
        [
            [
                mpmath.exp(-beta * mpmath.fsum(abs(a - b) for a, b in zip(x, y, strict=True)))
                for y in rows
            ]
            for x in rows
        ]
    )


def worst_shift(kernel: mpmath.matrix, factor: np.ndarray) -> float:
    """The largest squared shift of neighbours, over the one that is certified: 1 at most."""
    inverse = exact(factor) ** -1
    return float(max(mpmath.eigsy(inverse * kernel * inverse.T, eigvals_only=True)))


def audited(shift: float) -> float:
    """The epsilon of noise multiplier 1 if squared shifts are larger by this factor."""
    return compose([Gaussian(noise_multiplier=1 / math.sqrt(shift))]).epsilon(DELTA)


def corners(sides: Sequence[float]) -> np.ndarray:
    return np.array(list(itertools.product(*((0.25, 0.25 + side) for side in sides))))


def old_factor(points: np.ndarray, beta: float) -> np.ndarray:
    """The factor as it was: every variance 1 minus a sum of squares, point by point."""
    factor = np.zeros((len(points), len(points)))
    for i, point in enumerate(points):
        with_others = np.exp(-beta * np.abs(points[:i] - point).sum(axis=1))
        row = solve_triangular(factor[:i, :i], with_others, lower=True) if i else np.empty(0)
        left = 1.0 - row @ row
        if left <= 0:
            raise ValueError("refused as too close, as it was")
        factor[i, :i], factor[i, i] = row, math.sqrt(left)
    return factor


def new_factor(points: np.ndarray, beta: float, batches: int = 1) -> np.ndarray:
    paths = ScatteredPaths(Kernel(beta=beta, sigma=1.0), points.shape[1])
    for batch in np.array_split(points, batches):
        paths.insert(batch, np.zeros((len(batch), 1)))
    return paths._factor[: len(points), : len(points)]


BOXES = (
    [(side,) * 2 for side in (1.4e-8, 1e-6, 2.0**-40, 0.3)]
    + [(2e-6, 8e-6, 3e-5), (1e-5,) * 3, (2.0**-40,) * 3, (2.0**-40, 1e-6, 0.7)]
    + [(1e-4,) * 4, (2.0**-40, 2.0**-30, 1e-3, 0.7)]
)


@pytest.mark.parametrize("sides", BOXES)
@pytest.mark.parametrize("beta", [2.0**-64, 1e-6, 1.0, 25.0, 1e6, 2.0**64])
def test_no_corner_of_a_box_has_less_noise_than_is_certified(
    sides: tuple[float, ...], beta: float
) -> None:
    points = corners(sides)
    for batches in (1, len(points)):
        assert worst_shift(kernel_matrix(points, beta), new_factor(points, beta, batches)) <= 1


def test_the_old_formula_is_caught() -> None:
    """Corners as an attacker would choose them: the certificate says 4.377 at 1e-5."""
    assert audited(1.0) == pytest.approx(EPSILON, abs=0.01)
    found = {}
    for dimensions, scale, tries in ((2, 1.4e-8, 110), (3, 1e-5, 10)):
        worst = 0.0
        for sides in itertools.islice(_sides(dimensions, scale), tries):
            points = corners(sides)
            try:
                old = old_factor(points, 1.0)
            except ValueError:
                continue
            worst = max(worst, worst_shift(kernel_matrix(points, 1.0), old))
            assert worst_shift(kernel_matrix(points, 1.0), new_factor(points, 1.0)) <= 1
        found[dimensions] = audited(worst)
    assert found[2] > 10
    assert found[3] > 5.4


def _sides(dimensions: int, scale: float) -> Iterator[tuple[float, ...]]:
    generator = np.random.default_rng(0)
    while True:
        yield tuple(scale * np.exp(generator.uniform(-1, 1, dimensions)))


def test_a_nugget_too_small_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaussian_process, "NUGGET", 1e-17)
    worst = 0.0
    for sides in itertools.islice(_sides(3, 1e-4), 10):
        points = corners(sides)
        worst = max(worst, worst_shift(kernel_matrix(points, 1.0), new_factor(points, 1.0)))
    assert worst > 1 + 1e-4


def test_many_scattered_points_have_at_least_the_noise_of_the_process() -> None:
    """300 points in three dimensions, half of them in tight clusters: the bound has room left."""
    generator = np.random.default_rng(1)
    loose = generator.random((150, 3))
    tight = loose[:10].repeat(15, axis=0) + 2.0**-38 * generator.integers(0, 9, (150, 3))
    points = np.unique(np.concatenate([loose, tight]), axis=0)
    factor = new_factor(generator.permutation(points), 2.0, 7)
    order = np.random.default_rng(1)  # the same permutation again
    order.random((150, 3)), order.integers(0, 9, (150, 3))
    points = order.permutation(points)
    distance = np.abs(points[:, None] - points[None]).sum(-1)
    off = factor @ factor.T - np.exp(-2 * distance) - NUGGET * np.eye(len(points))
    assert np.linalg.norm(off, 2) < NUGGET / 1000


def test_conditional_means_of_scattered_points_are_within_what_is_paid() -> None:
    """Whitened exactly, what the code takes for white noise is off by less than the surplus."""
    generator = np.random.default_rng(2)
    points = np.concatenate([corners((2.0**-40, 1e-9)), corners((1e-6, 1e-3)), corners((0.3, 0.5))])
    points = np.unique(points, axis=0)
    values = (
        30 * generator.choice([-1.0, 1.0], (len(points), 2)) * generator.random((len(points), 1))
    )
    paths = ScatteredPaths(Kernel(beta=1.0, sigma=3.0), 2, 2)
    for start in range(0, len(points), 3):
        paths.insert(points[start : start + 3], values[start : start + 3])
    factor = exact(paths._factor[: len(points), : len(points)])
    right = (factor**-1) * exact(values) / 3
    off = exact(paths._white[: len(points)]) - right
    assert 2 * math.sqrt(sum(float(one) ** 2 for one in off)) < surplus(0) * 10


@pytest.mark.parametrize("beta", [2.0**-64, 1e-9, 1.0, 3e3, 1e12, 2.0**64])
def test_bridges_are_exact_and_never_narrower(beta: float) -> None:
    generator = np.random.default_rng(3)
    steps = [2.0**-40, 2.0**-39, 3 * 2.0**-40, 2.0**-20, 0.1, 0.5, math.inf]
    steps += (np.rint(generator.random(8) ** 9 * 2.0**40) / 2.0**40 + 2.0**-40).tolist()
    unit = 2.0**-53
    for left, right in itertools.product(steps, steps):
        weights = gaussian_process._bridge(beta, left, right)
        many = gaussian_process._bridges(beta, np.array([left]), np.array([right]))
        u, w = mpmath.mpf(left) * beta, mpmath.mpf(right) * beta
        open_left, open_right = -mpmath.expm1(-2 * u), -mpmath.expm1(-2 * w)
        whole = -mpmath.expm1(-2 * (u + w))
        exact_weights = mpmath.exp(-u) * open_right / whole, mpmath.exp(-w) * open_left / whole
        spread = mpmath.sqrt(open_left * open_right / whole)
        for one in (weights, [float(x[0]) for x in many]):
            for got, true in zip(one[:2], exact_weights, strict=True):
                assert abs(got - true) <= 16 * unit
            assert one[2] >= spread * (1 - 16 * unit)
            assert one[2] == LEAST_SPREAD or one[2] <= spread * (1 + 16 * unit)


def test_on_a_line_the_shift_is_within_the_surplus_however_close_the_points() -> None:
    """Two worlds, answers in one order and batches: the exact sum of squared shifts is paid for."""
    generator = np.random.default_rng(4)
    close = 0.5 + 2.0**-40 * np.arange(-20, 20)
    points = generator.permutation(
        np.concatenate([close, generator.integers(0, 2**40, 60) / 2**40])
    )
    for beta, ratio in ((1e-3, 1.0), (1.0, 1.0), (50.0, 100.0)):
        shifted = np.exp(-beta * np.abs(points - 0.5))  # h = K(., 1/2): its norm is 1
        values = generator.normal(size=len(points)) * 8 * ratio
        stored: list[tuple[float, float, float]] = []
        total = mpmath.mpf(0)
        for point, value, h in zip(points.tolist(), values.tolist(), shifted.tolist(), strict=True):
            before = max((x for x in stored if x[0] < point), default=None)
            after = min((x for x in stored if x[0] > point), default=None)
            a, b, spread = gaussian_process._bridge(
                beta,
                math.inf if before is None else point - before[0],
                math.inf if after is None else after[0] - point,
            )
            ends = [x for x in (before, after) if x is not None]
            weights = [x for x, end in ((a, before), (b, after)) if end is not None]
            one = sum(w * x[1] for w, x in zip(weights, ends, strict=True))
            other = sum(w * (x[1] - x[2]) for w, x in zip(weights, ends, strict=True))
            moved = mpmath.mpf(h) - mpmath.mpf(one) + mpmath.mpf(other)
            total += (moved / (spread * mpmath.mpf(ratio))) ** 2
            stored.append((point, value, h))
        # Here 1 is the sensitivity, and `ratio` the noise: the certified shift is 1 / ratio.
        assert float(total * ratio**2) <= (1 + 2.0**-24 + surplus(ratio)) ** 2


@pytest.mark.parametrize(
    "axes",
    [
        ([0.2, 0.2 + 2.0**-30, 0.9], [0.1, 0.4]),
        ([0.0, 1e-3], [0.0, 2e-3], [0.0, 3e-2]),
        ([0.0, 1.4e-5], [0.0, 1.4e-5]),
    ],
)
def test_grids_have_the_noise_of_the_process(
    axes: tuple[list[float], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    size = math.prod(map(len, axes))
    monkeypatch.setattr(
        gaussian_process, "standard_normal", lambda _, shape: np.eye(size).reshape(shape)
    )
    kept = [np.array(axis) for axis in axes]
    points = np.stack([x.ravel() for x in np.meshgrid(*kept, indexing="ij")], axis=1)
    for beta in (1.0, 100.0):
        check_grid(kept, beta, 2)
        rows = sample_grid(kept, beta, 1.0, None, paths=size).reshape(size, size)  # type: ignore[arg-type]
        assert worst_shift(kernel_matrix(points, beta), rows) <= (1 + surplus(1.0)) ** 2


def release(beta: float, dimensions: int, size: int | None) -> FunctionRelease:
    unit = Unit(kind="reward-function", adjacency=Adjacency.REPLACE_ONE)
    sensitivity = Sensitivity(1.0, beta, "so it was chosen", dimensions)
    return FunctionRelease("f", unit, sensitivity, 4.0, "simulated", size)


def ledger(path: Path) -> Ledger:
    return Ledger.create(
        path / "ledger.sqlite",
        unit=Unit(kind="reward-function", adjacency=Adjacency.REPLACE_ONE),
        budget=Budget(epsilon=50.0, delta=1e-5),
    )


def test_nodes_that_float64_cannot_resolve_are_refused_before_they_are_charged(
    tmp_path: Path,
) -> None:
    opened = release(1.0, 2, 4).open(ledger(tmp_path))
    near = np.array([0.0, 2.0**-44])
    with pytest.raises(ValueError, match="so close together that float64"):
        opened.release(np.zeros((2, 2, 1)), (near, near))
    assert opened.released == 0
    opened.release(np.zeros((2, 2, 1)), (np.array([0.0, 1e-5]), np.array([0.0, 1e-5])))
    assert opened.released == 1


@pytest.mark.parametrize("beta", [2.0**-65, 2.0**65, math.nan, math.inf, 0.0])
def test_kernels_that_float64_cannot_resolve_are_refused(beta: float) -> None:
    with pytest.raises(ValueError, match="beta"):
        Sensitivity(1.0, beta, "")
    with pytest.raises(ValueError, match="beta"):
        Kernel(beta=beta, sigma=1.0)


def test_the_noise_pays_for_rounding() -> None:
    one = release(1.0, 2, None)
    assert one.sigma >= 4.0 * (1 + surplus(4.0))
    assert surplus(4.0) < 1e-5
    # The proof's sums, for as many numbers as one release holds: on a line and scattered.
    unit = 2.0**-53
    numbers = math.sqrt(MOST_NUMBERS)
    assert 2 * 32 * unit * numbers / LEAST_SPREAD <= surplus(0)
    assert 2 * 12 * unit * numbers / math.sqrt(0.75 * NUGGET) <= surplus(0)
    most = scattered._LARGEST_SCATTER
    assert 2 * most * (most + 2) * unit <= NUGGET / 4


def test_no_more_answers_than_are_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sotto.privacy.release.released.MOST_NUMBERS", 10)
    kernel = Kernel(beta=1.0, sigma=1.0)
    zero = lambda points: np.zeros((len(points), 2))  # noqa: E731
    function = ReleasedFunction.create(kernel, 2, 1, zero, GeneratorSource(), None)
    kept = function(np.linspace(0, 1, 5))
    with pytest.raises(PrivacyError, match="at most 10 numbers"):
        function(np.array([0.1]))
    assert np.array_equal(function(np.linspace(0, 1, 5)), kept)


def test_a_function_of_an_earlier_law_is_read_and_not_continued(tmp_path: Path) -> None:
    """Its points may have had too little noise; what left stays what it was."""
    path = tmp_path / "f.values"
    header = {
        "kind": "function",
        "kernel": {"beta": 1.0, "sigma": 1.0},
        "actions": 1,
        "dimensions": 2,
        "entropy": "operating-system",
    }
    Store.create(path, header).append(np.array([[0.5, 0.5]]), np.array([[2.0]]))
    assert ReleasedFunction.open(path)(np.array([[0.5, 0.5]])).tolist() == [[2.0]]
    with pytest.raises(PrivacyError, match="another law of noise"):
        ReleasedFunction.open(path, lambda points: points[:, :1])


def test_paths_draw_what_the_bridge_says_between_points_that_are_close() -> None:
    """Samples between two points 2^-39 apart, not the formula: their variance is the floor's."""
    count = 20_000
    paths = Paths(Kernel(beta=1.0, sigma=2.0), count, np.random.default_rng(5))
    low, high = paths.at(0.5), paths.at(0.5 + 2.0**-39)
    middle = paths.sample(np.array([0.5 + 2.0**-40]))[0]
    spread = np.std(middle - (np.array(low) + np.array(high)) / 2)
    assert spread == pytest.approx(2 * LEAST_SPREAD, rel=6 / math.sqrt(2 * count))


def test_dot_products_are_rounded_once() -> None:
    generator = np.random.default_rng(6)
    rows = generator.normal(size=(3, 200)) * 10.0 ** generator.integers(-8, 8, (3, 200))
    columns = generator.normal(size=(200, 2)) * 10.0 ** generator.integers(-8, 8, (200, 2))
    rows[:, 100:], columns[100:] = -rows[:, :100], columns[:100]  # all but cancels
    columns[100:] *= 1 + 2.0**-50
    for i, p in itertools.product(range(3), range(2)):
        products = [Fraction(a) * Fraction(b) for a, b in zip(rows[i], columns[:, p], strict=True)]
        assert dot(rows, columns)[i, p] == float(sum(products))


def test_sensitivities_do_not_underflow_and_norms_do_not_cancel() -> None:
    for scale in (3e-170, 1.0, 1e150):
        generic = generic_sensitivity(3 * scale, 5 * scale, 2, 0.25).value
        assert generic == pytest.approx(scale * generic_sensitivity(3, 5, 2, 0.25).value, rel=1e-14)
        bounds = {(): scale, (0,): 2 * scale, (1,): scale, (0, 1): 7 * scale}
        mixed = mixed_partials_sensitivity(bounds, 2, 3, 0.5).value
        whole = {axes: bound / scale for axes, bound in bounds.items()}
        assert mixed == pytest.approx(
            scale * mixed_partials_sensitivity(whole, 2, 3, 0.5).value, rel=1e-14
        )
    points = np.array([0.5, 0.5 + 2.0**-40, 0.5 + 2.0**-39])
    values = np.exp(-np.abs(points - 0.5))  # K(., 1/2), whose norm is 1
    assert norm_at_points(points, values, 1.0) == pytest.approx(1.0, abs=1e-9)
    assert rounding.surplus(2.0**16) < 0.07
