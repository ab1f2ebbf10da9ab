"""Paths at points that are very close: whoever asks there must not find less noise than is proved.

The reference is 80-digit arithmetic (mpmath). An attacker who knows the points and both functions
sees a Gaussian shift; the worst pair of neighbours at these points makes it as large as the largest
eigenvalue of K Sigma^-1 says, where K is the kernel and Sigma the covariance of the noise that is
really there. It must not be above 1, up to what the surplus of sigma pays for. And where two
neighbours answer with the same numbers, their draws are counted, as the code makes them.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path

import mpmath
import numpy as np
import pytest
from norms import norm_at_points
from scipy.linalg import solve_triangular

from sotto.privacy.accounting.composition import Gaussian, compose
from sotto.privacy.errors import PrivacyError
from sotto.privacy.mechanisms.functions import gaussian_process
from sotto.privacy.mechanisms.functions import grid as process_grid
from sotto.privacy.mechanisms.functions import scattered as scattered_paths
from sotto.privacy.mechanisms.functions.gaussian_process import Kernel, Paths
from sotto.privacy.mechanisms.functions.grid import sample_grid
from sotto.privacy.mechanisms.functions.rkhs import (
    Sensitivity,
    generic_sensitivity,
)
from sotto.privacy.mechanisms.functions.rounding import LEAST_SPREAD, NUGGET, dot
from sotto.privacy.mechanisms.functions.scattered import ScatteredPaths
from sotto.privacy.mechanisms.functions.values import MOVED, Sample
from sotto.privacy.mechanisms.noise import GeneratorSource, rounded_normal
from sotto.privacy.release.released import SURPLUS, ReleasedFunction, require_resolved, values_grid
from sotto.privacy.release.storage import ReleaseFile
from sotto.privacy.statements import UNBOUNDED_DRAWS

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
    monkeypatch.setattr(scattered_paths, "NUGGET", 1e-17)
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


Ask = Callable[[], Sample]
CLOSE = 2.0**-40 * np.arange(-9, 9)


def largest(generator: object, shape: tuple[int, ...], ratio: np.ndarray) -> np.ndarray:
    """Draws eight times as large: values near the largest there ever are."""
    return 8 * rounded_normal(generator, shape, ratio)  # type: ignore[arg-type]


class Worlds:
    """Two neighbours who answer alike: how far apart their draws have to be.

    Attributes:
        moved: distances of draws, in units of their spread; all so far.
        rounding: what is charged for rounding, all so far.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moved: list[float] = []
        self.rounding = 0.0
        self._patch = monkeypatch

    @property
    def shift(self) -> float:
        """All distances together."""
        return math.hypot(*self.moved)

    def answer(self, one: Ask, other: Ask, apart: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Noise of both at the same points; `apart` is their secrets' difference in grid steps."""
        ratios = np.empty(apart.shape)

        def spied(generator: object, shape: tuple[int, ...], ratio: np.ndarray) -> np.ndarray:
            ratios[:] = np.broadcast_to(ratio, shape).reshape(-1)
            return largest(generator, shape, ratio)

        self._draw_by(spied)
        first = one()
        whole, drawn = first.whole.reshape(-1), first.fresh.reshape(-1)
        fresh = np.zeros(apart.shape, dtype=np.int64)
        self._draw_by(lambda _, shape, ratio: fresh.reshape(shape))
        for i in range(len(fresh)):  # each mean is made of the draws before
            mean = other().means.reshape(-1)[i]
            fresh[i] = whole[i] + apart[i] - np.rint(mean / first.grid)
        self.moved += ((fresh - drawn) / ratios).tolist()
        self.rounding += first.rounding
        second = other()
        assert np.array_equal(second.whole.reshape(-1), whole + apart)
        return first.values, second.values

    def _draw_by(self, draws: object) -> None:
        for module in (gaussian_process, process_grid, scattered_paths):
            self._patch.setattr(module, "rounded_normal", draws)


def difference(points: np.ndarray, beta: float, grid: float) -> np.ndarray:
    """A function of norm 1 in the kernel's space which these points pin down, in grid steps."""
    kernel = kernel_matrix(points, beta)
    signs = mpmath.matrix([(-1.0) ** i * (1 + i % 3) for i in range(len(points))])
    white = mpmath.cholesky(kernel) * signs / mpmath.norm(signs)
    secret = np.random.default_rng(9).normal(size=len(points))
    moved = [float(one) + two for one, two in zip(white, secret, strict=True)]
    return np.rint(np.array(moved) / grid) - np.rint(secret / grid)


def noise_of(ratio: float) -> tuple[float, float]:
    """Sigma at sensitivity 1, and the grid."""
    sigma = ratio * (1 + SURPLUS)
    return sigma, values_grid(1.0, sigma)


@pytest.mark.parametrize("ratio", [0.3, 3.5, 127.9])
@pytest.mark.parametrize("dimensions", [1, 2])
def test_neighbours_draws_are_no_further_apart_than_certified(
    dimensions: int, ratio: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At points 2^-40 apart and others, in batches and one by one."""
    generator = np.random.default_rng(4)
    points = np.full((len(CLOSE), dimensions), 0.5)
    points[:, 0] += CLOSE
    points = np.concatenate([points, generator.integers(0, 2**40, (12, dimensions)) / 2**40])
    points = generator.permutation(points)
    (sigma, grid), beta = noise_of(ratio), 3.0
    paths: list[Paths | ScatteredPaths] = [
        Paths(Kernel(beta=beta, sigma=sigma), 1, None, grid)
        if dimensions == 1
        else ScatteredPaths(Kernel(beta=beta, sigma=sigma), dimensions, 1, None, grid)
        for _ in range(2)
    ]
    apart = difference(points, beta, grid).astype(np.int64)
    worlds = Worlds(monkeypatch)
    for start, stop in itertools.pairwise([0, 10, *range(11, 16), 30]):
        batch = points[start:stop]
        if dimensions == 1:  # drawn from left to right
            order = np.argsort(batch[:, 0])
            batch, apart[start:stop] = batch[order, 0], apart[start:stop][order]
        one, other = (partial(path.sample, batch) for path in paths)
        answers = worlds.answer(one, other, apart[start:stop])
        for path, values in zip(paths, answers, strict=True):
            path.insert(batch, values)
    require_resolved(worlds.rounding, 1.0, sigma)
    assert worlds.shift <= 1 / ratio
    assert worlds.shift <= (1 + 2.0**-40) / sigma + math.sqrt(worlds.rounding)


@pytest.mark.parametrize("ratio", [0.3, 3.5, 127.9])
@pytest.mark.parametrize(
    "axes",
    [([0.2, 0.2 + 2.0**-30, 0.9],), ([0.1, 0.1004, 0.9], [0.3, 0.3007, 0.301]), ([0.0, 0.02],) * 4],
)
def test_neighbours_draws_on_a_grid_are_no_further_apart_than_certified(
    axes: tuple[list[float], ...], ratio: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [np.array(axis) for axis in axes]
    points = np.stack([x.ravel() for x in np.meshgrid(*kept, indexing="ij")], axis=1)
    (sigma, grid), beta = noise_of(ratio), 3.0
    worlds = Worlds(monkeypatch)

    def ask() -> Sample:
        return sample_grid(kept, beta, sigma, GeneratorSource().next(), None, grid)

    apart = difference(points, beta, grid).astype(np.int64)
    worlds.answer(ask, ask, apart)
    require_resolved(worlds.rounding, 1.0, sigma)
    assert worlds.shift <= 1 / ratio
    assert worlds.shift <= (1 + 2.0**-40) / sigma + math.sqrt(worlds.rounding)
    assert worlds.shift > 0.999 / sigma  # these points show the whole of the difference
    white = mpmath.cholesky(kernel_matrix(points, beta)) ** -1 * exact(apart[:, None])
    added = [one - float(two) * grid / sigma for one, two in zip(worlds.moved, white, strict=True)]
    assert math.hypot(*added) < math.sqrt(worlds.rounding)


def test_means_in_fewer_digits_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Means in float32: the neighbours' draws are further apart than is certified."""
    ratio, axis, worst = 127.9, np.array([0.2, 0.2 + 2.0**-30]), 0.0
    sigma, grid = noise_of(ratio)
    apart = difference(axis[:, None], 3.0, grid).astype(np.int64)

    def ask() -> Sample:
        drawn = sample_grid([axis], 3.0, sigma, GeneratorSource().next(), None, grid)
        return drawn._replace(means=drawn.means.astype(np.float32).astype(np.float64))

    for _ in range(20):
        worlds = Worlds(monkeypatch)
        worlds.answer(ask, ask, apart)
        worst = max(worst, worlds.shift)
    assert worst > 1.01 / ratio


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


@pytest.mark.unchecked_types
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
        process_grid,
        "rounded_normal",
        lambda _, shape, ratio: np.rint(np.eye(size).reshape(shape) * ratio).astype(np.int64),
    )
    kept = [np.array(axis) for axis in axes]
    points = np.stack([x.ravel() for x in np.meshgrid(*kept, indexing="ij")], axis=1)
    for beta in (1.0, 100.0):
        drawn = sample_grid(kept, beta, 1.0, None, paths=size)  # type: ignore[arg-type]
        rows, charged = drawn.values.reshape(size, size), math.sqrt(drawn.rounding)
        assert charged < 1e-5
        assert worst_shift(kernel_matrix(points, beta), rows) <= (1 - charged) ** -2


@pytest.mark.parametrize("beta", [2.0**-65, 2.0**65, math.nan, math.inf, 0.0])
def test_kernels_that_float64_cannot_resolve_are_refused(beta: float) -> None:
    with pytest.raises(ValueError, match="beta"):
        Sensitivity(1.0, beta, "", 1.0)
    with pytest.raises(ValueError, match="beta"):
        Kernel(beta=beta, sigma=1.0)


@pytest.mark.parametrize("ratio", [2.0**-4, 1.0, 3.6, 127.9, 128.1, 2.0**16])
def test_one_operation_of_float64_is_a_64th_of_the_grid(ratio: float) -> None:
    """So are the other constants of the proof, for all the noise there may be."""
    sigma, grid = noise_of(ratio)
    unit = 2.0**-53
    assert unit * (32 * sigma + 1) <= grid / 64 * (1 + 2.0**-11)
    assert 2 + 2 * 8 / 64 * (1 + 2.0**-11) + 16 * unit * 100 / grid <= MOVED
    allowed = (SURPLUS / 2 / sigma) ** 2
    floored = allowed / (2 * MOVED * grid / (sigma * LEAST_SPREAD)) ** 2
    assert floored * LEAST_SPREAD**2 < 1e-3
    answers = allowed / (MOVED * grid / (sigma * math.sqrt(1 + NUGGET))) ** 2
    assert answers < UNBOUNDED_DRAWS


def test_the_nugget_is_larger_than_what_float64_makes_of_the_factor() -> None:
    most = scattered_paths._LARGEST_SCATTER
    assert 2 * most * (most + 4) * 2.0**-53 <= NUGGET / 4


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
    ReleaseFile.create(path, header).append(np.array([[0.5, 0.5]]), np.array([[2.0]]))
    assert ReleasedFunction.open(path)(np.array([[0.5, 0.5]])).tolist() == [[2.0]]
    with pytest.raises(PrivacyError, match="by another law"):
        ReleasedFunction.open(path, lambda points: points[:, :1])


def test_paths_draw_what_the_bridge_says_between_points_that_are_close() -> None:
    """Samples between two points 2^-39 apart, not the formula: their variance is the floor's."""
    count = 20_000
    paths = Paths(Kernel(beta=1.0, sigma=2.0), count, np.random.default_rng(5))
    low, high = paths.at(0.5), paths.at(0.5 + 2.0**-39)
    middle = paths.sample(np.array([0.5 + 2.0**-40])).values[0]
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
        generic = generic_sensitivity(3 * scale, 5 * scale, 2, 1.0).value
        assert generic == pytest.approx(scale * generic_sensitivity(3, 5, 2, 1.0).value, rel=1e-14)
    points = np.array([0.5, 0.5 + 2.0**-40, 0.5 + 2.0**-39])
    values = np.exp(-np.abs(points - 0.5))  # K(., 1/2), whose norm is 1
    assert norm_at_points(points, values, 1.0) == pytest.approx(1.0, abs=1e-9)
