"""Sample paths: their exact joint law, for any order and any batches of points."""

import itertools
import math
from array import array

import numpy as np
import pytest

from sotto.privacy.mechanisms.functions import gaussian_process
from sotto.privacy.mechanisms.functions import grid as process_grid
from sotto.privacy.mechanisms.functions import scattered as scattered_paths
from sotto.privacy.mechanisms.functions.gaussian_process import Kernel, Paths
from sotto.privacy.mechanisms.functions.grid import grid_rounding, sample_grid
from sotto.privacy.mechanisms.functions.rounding import LEAST_SPREAD, NUGGET
from sotto.privacy.mechanisms.functions.scattered import ScatteredPaths
from sotto.privacy.mechanisms.functions.sorted_points import SortedPoints
from sotto.privacy.mechanisms.functions.values import MOVED
from sotto.privacy.mechanisms.noise import GeneratorSource, Singles, rounded_normal


class UnitVectors:
    """A generator whose i-th draw is the i-th unit vector over all paths.

    A path is a linear map of its draws, so the values of all paths are the rows of that map A, and
    the joint law of the points is N(0, A A').
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.drawn = 0

    def normals(self, shape: tuple[int, ...]) -> np.ndarray:
        rows = shape[0] if len(shape) == 2 else math.prod(shape) // self.size
        taken = np.eye(self.size)[self.drawn : self.drawn + rows]
        self.drawn += rows
        return taken.reshape(shape)


@pytest.fixture(autouse=True)
def draw_unit_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(
        generator: np.random.Generator | UnitVectors, shape: tuple[int, ...], ratio: np.ndarray
    ) -> np.ndarray:
        if isinstance(generator, UnitVectors):
            return np.rint(generator.normals(shape) * ratio).astype(np.int64)
        return rounded_normal(generator, shape, ratio)

    class UnitSingles:
        def __init__(self, generator: UnitVectors) -> None:
            self.generator, self.left = generator, list[float]()

        def draw(self, ratio: float) -> int:
            self.left = self.left or self.generator.normals((1, self.generator.size))[0].tolist()
            return round(ratio * self.left.pop(0))

    def singles(generator: np.random.Generator | UnitVectors) -> object:
        return UnitSingles(generator) if isinstance(generator, UnitVectors) else Singles(generator)

    monkeypatch.setattr(gaussian_process, "Singles", singles)
    monkeypatch.setattr(gaussian_process, "rounded_normal", drawn)
    monkeypatch.setattr(process_grid, "rounded_normal", drawn)
    monkeypatch.setattr(scattered_paths, "rounded_normal", drawn)


def covariance(points: np.ndarray, beta: float, sigma: float) -> np.ndarray:
    points = np.asarray(points, dtype=float).reshape(len(points), -1)
    distance = np.abs(points[:, None] - points[None]).sum(-1)
    return np.asarray(sigma**2 * np.exp(-beta * distance))


@pytest.mark.unchecked_types
@pytest.mark.parametrize("beta", [0.01, 1.0, 24.0, 1e4])
def test_points_one_by_one_have_the_joint_law(beta: float) -> None:
    points = np.random.default_rng(0).random(40)
    paths = Paths(Kernel(beta=beta, sigma=1.5), 40, UnitVectors(40))  # type: ignore[arg-type]
    rows = np.array([paths.at(point) for point in points])
    assert np.abs(rows @ rows.T - covariance(points, beta, 1.5)).max() < 1e-10


@pytest.mark.unchecked_types
@pytest.mark.parametrize("beta", [0.01, 1.0, 24.0, 1e4])
def test_batches_have_the_joint_law_with_each_other_and_within(beta: float) -> None:
    points = np.random.default_rng(1).random(60)
    paths = Paths(Kernel(beta=beta, sigma=0.7), 60, UnitVectors(60))  # type: ignore[arg-type]
    cuts = (0, 10, 30, 60)  # later batches put several points into one gap and beyond the ends
    rows = np.concatenate([paths(np.sort(points[a:b])) for a, b in itertools.pairwise(cuts)])
    asked = np.concatenate([np.sort(points[a:b]) for a, b in itertools.pairwise(cuts)])
    assert np.abs(rows @ rows.T - covariance(asked, beta, 0.7)).max() < 1e-10


def _published(points: list[float], count: int, right_end: int) -> np.ndarray:
    """Samples as the published code does, with `right_end` 0; the right value is -1."""
    generator = np.random.default_rng(2)
    stored: list[tuple[float, np.ndarray]] = []
    for point in points:  # increasing, so each is to the right of the last
        fresh = generator.standard_normal(count)
        if stored:
            decay = math.exp(-(point - stored[-1][0]))
            fresh = decay * stored[right_end][1] + math.sqrt(1 - decay**2) * fresh
        stored.append((point, fresh))
    return np.array([values for _, values in stored])


def test_beyond_the_last_point_the_nearest_one_counts() -> None:
    """Cov(g(.8), g(.9)) is .905 when .2, .8, .9 are asked. The published code gives .50."""
    count, points = 40_000, [0.2, 0.8, 0.9]
    paths = Paths(Kernel(beta=1.0, sigma=1.0), count, np.random.default_rng(3))
    ours = np.array([paths.at(point) for point in points])
    expected, limit = covariance(np.array(points), 1.0, 1.0), 6 * math.sqrt(2 / count)

    def furthest(rows: np.ndarray) -> float:
        return float(np.abs(rows @ rows.T / count - expected).max())

    assert expected[1, 2] == pytest.approx(0.905, abs=1e-3)
    assert furthest(ours) < limit
    assert furthest(_published(points, count, right_end=-1)) < limit
    assert furthest(_published(points, count, right_end=0)) > 5 * limit


def test_a_wrong_scale_would_be_noticed() -> None:
    """The sum of squares of whitened values is chi-squared, so 5 per cent off is far out."""
    points = np.linspace(0, 1, 20_001)
    values = Paths(Kernel(beta=30.0, sigma=2.0))(points)[:, 0]
    decay = math.exp(-30.0 * 5e-5)
    white = (values[1:] - decay * values[:-1]) / math.sqrt(1 - decay**2)
    ratio = float(np.mean((white / 2.0) ** 2))
    spread = math.sqrt(2 / len(white))
    assert abs(ratio - 1) < 6 * spread
    assert abs(ratio * 1.05**2 - 1) > 6 * spread or abs(ratio / 1.05**2 - 1) > 6 * spread


def test_a_point_keeps_its_value_in_any_company() -> None:
    generator = np.random.default_rng(4)
    path = Paths(Kernel(beta=5.0, sigma=1.0))
    known: dict[float, float] = {}
    for size in (1, 300, 3, 5000, 1, 40, 900):
        points = generator.integers(0, 4000, size) / 4000
        for point, value in zip(points.tolist(), path(points)[:, 0].tolist(), strict=True):
            assert known.setdefault(point, value) == value
    assert len(path) == len(known)
    assert path(np.array(list(known)))[:, 0].tolist() == list(known.values())


def test_many_single_points_stay_sorted() -> None:
    stored = SortedPoints(2)
    points = np.random.default_rng(5).permutation(3000) / 7.0
    for point in points.tolist():
        stored.insert(stored.place(point), point, array("d", [point, -point]))
    held, values = stored.arrays()
    assert np.array_equal(held, np.sort(points))
    assert np.array_equal(values, np.stack([held, -held], axis=1))
    stored.merge(np.array([-1.0, 0.5, 1e9]), np.zeros((3, 2)))
    place = stored.place(0.5)
    assert place.known
    assert stored.place(0.6).left == (pytest.approx(4 / 7), pytest.approx([4 / 7, -4 / 7]))
    assert len(stored) == 3003


def test_paths_are_of_their_own_and_from_fresh_entropy() -> None:
    points = np.linspace(0, 1, 500)
    kernel = Kernel(beta=1000.0, sigma=1.0)
    one, other = Paths(kernel, 2)(points), Paths(kernel, 2)(points)
    for left, right in ((one[:, 0], one[:, 1]), (one[:, 0], other[:, 0])):
        assert abs(np.corrcoef(left, right)[0, 1]) < 0.3
    assert one.dtype == np.float64


def test_points_next_to_each_other_and_far_apart_stay_finite() -> None:
    path = Paths(Kernel(beta=1e-3, sigma=1.0))
    points = np.array([0.5, np.nextafter(0.5, 1), 0.0, 5e-324, 1.0, 1e300, -1e300, 0.25])
    values = path(points)[:, 0]
    assert np.isfinite(values).all()
    assert values[0] == pytest.approx(values[1], abs=7 * LEAST_SPREAD)
    assert np.isfinite([path.at(point) for point in (0.3, -5.0, 1e299)]).all()


def test_what_was_kept_is_what_later_points_are_conditioned_on() -> None:
    kernel = Kernel(beta=2.0, sigma=1.0)
    for paths in (Paths(kernel, 2), ScatteredPaths(kernel, 1, 2)):
        shaped = (lambda x: x) if isinstance(paths, Paths) else (lambda x: x[:, None])
        old, new = np.array([0.9, 0.1, 0.4]), np.array([0.4 + 1e-9])
        paths.insert(shaped(old), np.array([[1.0, 2.0], [3.0, 4.0], [-5.0, 7.0]]))
        assert paths.sample(shaped(new)).values == pytest.approx(np.array([[-5.0, 7.0]]), abs=1e-2)
        assert paths(shaped(old)).tolist() == [[1.0, 2.0], [3.0, 4.0], [-5.0, 7.0]]
        assert len(paths) == 3


@pytest.mark.unchecked_types
@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 4), (1, 5)])
def test_a_grid_has_the_joint_law(shape: tuple[int, ...]) -> None:
    generator = np.random.default_rng(6)
    axes = [np.sort(generator.random(n)) for n in shape]
    size = math.prod(shape)
    rows = sample_grid(axes, 3.0, 1.3, UnitVectors(size), paths=size).values  # type: ignore[arg-type]
    assert rows.shape == (*shape, size)
    rows = rows.reshape(size, size)
    points = np.stack([one.ravel() for one in np.meshgrid(*axes, indexing="ij")], axis=1)
    assert np.abs(rows @ rows.T - covariance(points, 3.0, 1.3)).max() < 1e-10
    single = sample_grid(axes, 3.0, 1.3, GeneratorSource(0).next()).values
    assert single.shape == shape


def inverse_factor(points: np.ndarray, kernel: Kernel, nugget: float = 0.0) -> np.ndarray:
    """Returns the inverse Cholesky factor of the values' covariance, from its definition."""
    own = nugget * kernel.sigma**2 * np.eye(len(points))
    return np.linalg.inv(np.linalg.cholesky(covariance(points, kernel.beta, kernel.sigma) + own))


@pytest.mark.parametrize("dimensions", [1, 2])
def test_rounding_covers_what_moves_a_step_anywhere(dimensions: int) -> None:
    """Neighbours' values are off by up to 2 MOVED - 1 grid steps, with any signs."""
    generator = np.random.default_rng(3)
    kernel, grid = Kernel(beta=3.0, sigma=0.7), 2.0**-20
    points = generator.random((9, dimensions))
    paths: Paths | ScatteredPaths = ScatteredPaths(kernel, dimensions, 2, None, grid)
    asked = points
    if dimensions == 1:
        paths, asked = Paths(kernel, 2, None, grid), points[:, 0]
    charged = 0.0
    for batch in (slice(0, 4), slice(4, 5), slice(5, 9)):
        drawn = paths.sample(asked[batch])
        assert drawn.rounding == pytest.approx(paths.rounding(asked[batch]))
        charged += drawn.rounding
        paths.insert(asked[batch], drawn.values)
    order = (
        [*range(9)] if dimensions > 1 else [*np.argsort(asked[:4]), 4, *(5 + np.argsort(asked[5:]))]
    )
    nugget = NUGGET if dimensions > 1 else 0.0
    weights = np.abs(inverse_factor(points[order], kernel, nugget)).sum(axis=1)
    exact = 2 * float(np.sum((MOVED * grid * weights) ** 2))
    assert exact <= charged * (1 + 1e-6)
    assert charged < (1.01 if dimensions > 1 else 8) * exact  # on a line weights count as 1


@pytest.mark.unchecked_types
def test_rounding_of_a_grid_is_that_of_its_points() -> None:
    axes = [np.array([0.1, 0.4, 0.45]), np.array([0.0, 0.7])]
    points = np.stack([one.ravel() for one in np.meshgrid(*axes, indexing="ij")], axis=1)
    kernel, grid = Kernel(beta=3.0, sigma=0.7), 2.0**-20
    weights = np.abs(inverse_factor(points, kernel)).sum(axis=1)
    charged = grid_rounding(axes, 3.0, 0.7, grid)
    assert charged == pytest.approx(
        sample_grid(axes, 3.0, 0.7, GeneratorSource(0).next(), None, grid).rounding
    )
    assert (
        float(np.sum((MOVED * grid * weights) ** 2))
        <= charged
        < 8 * np.sum((MOVED * grid * weights) ** 2)
    )


@pytest.mark.unchecked_types
def test_means_are_made_of_earlier_draws_alone() -> None:
    """So a value is a shifted draw of the grid's law, whatever float64 does to the mean."""
    kernel, points = Kernel(beta=2.0, sigma=1.0), np.linspace(0, 1, 6)
    square = np.stack([one.ravel() for one in np.meshgrid(points[:3], points[:2])], axis=1)

    def means(last: int, make: str) -> tuple[np.ndarray, np.ndarray]:
        def drawn(_: object, shape: tuple[int, ...], ratio: np.ndarray) -> np.ndarray:
            rows = np.arange(1, math.prod(shape) + 1).reshape(shape) ** 2 * 10**9
            rows.reshape(-1)[last:] += 7**11
            return rows

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gaussian_process, "rounded_normal", drawn)
            patch.setattr(process_grid, "rounded_normal", drawn)
            patch.setattr(scattered_paths, "rounded_normal", drawn)
            if make == "grid":
                one = sample_grid([points[:3], points[:2]], 2.0, 1.0, np.random.default_rng())
            elif make == "line":
                one = Paths(kernel).sample(points)
            else:
                one = ScatteredPaths(kernel, 2).sample(square)
        return one.means.reshape(-1), one.whole.reshape(-1)

    for make in ("grid", "line", "scattered"):
        whole = means(6, make)[0]
        for last in range(6):
            changed, values = means(last, make)
            assert np.array_equal(changed[: last + 1], whole[: last + 1])
            assert np.any(values[last:] != means(6, make)[1][last:])


@pytest.mark.unchecked_types
def test_scattered_points_have_the_joint_law_in_three_dimensions() -> None:
    points = np.random.default_rng(7).random((50, 3))
    paths = ScatteredPaths(Kernel(beta=2.0, sigma=1.1), 3, 50, UnitVectors(50))  # type: ignore[arg-type]
    rows = np.concatenate([paths(points[:1]), paths(points[:30])[1:], paths(points[30:])])
    expected = covariance(points, 2.0, 1.1) + 1.1**2 * NUGGET * np.eye(50)
    assert np.abs(rows @ rows.T - expected).max() < 1e-10
    again = paths(np.concatenate([points[::-1], points[:5]]))
    assert np.array_equal(again[:50], rows[::-1])


@pytest.mark.unchecked_types
def test_scattered_points_on_a_line_agree_with_the_path() -> None:
    points = np.random.default_rng(8).random(20)
    kernel = Kernel(beta=4.0, sigma=1.0)
    line = Paths(kernel, 20, UnitVectors(20))  # type: ignore[arg-type]
    scattered = ScatteredPaths(kernel, 1, 20, UnitVectors(20))  # type: ignore[arg-type]
    rows = np.array([line.at(point) for point in points])
    assert rows == pytest.approx(
        np.concatenate([scattered(p.reshape(1, 1)) for p in points]), abs=1e-3
    )


@pytest.mark.unchecked_types
@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: Kernel(beta=0.0, sigma=1.0), "greater than or equal"),
        (lambda: Kernel(beta=1.0, sigma=math.inf), "finite"),
        (lambda: Paths(Kernel(beta=1, sigma=1))(np.array([math.nan])), "finite"),
        (lambda: Paths(Kernel(beta=1, sigma=1))(np.zeros((2, 2))), "list of finite numbers"),
        (lambda: Paths(Kernel(beta=1, sigma=1), 0), "at least one path"),
        (
            lambda: sample_grid([np.array([0.0, 0.0])], 1.0, 1.0, np.random.default_rng()),
            "increase strictly",
        ),
        (
            lambda: ScatteredPaths(Kernel(beta=1, sigma=1), 2)(np.zeros((3, 1))),
            r"finite numbers \[q, 2\]",
        ),
    ],
)
def test_nonsense_is_refused(ask: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ask()  # type: ignore[operator]


@pytest.mark.parametrize("paths", [None, 1, 3])
def test_rounding_of_a_grid_counts_every_path(paths: int | None) -> None:
    axes, grid = [np.array([0.1, 0.4, 0.45]), np.array([0.0, 0.7])], 2.0**-20
    found = sample_grid(axes, 3.0, 0.7, GeneratorSource(0).next(), paths, grid).rounding
    each = grid_rounding(axes, 3.0, 0.7, grid)
    assert found == pytest.approx((paths or 1) * each, rel=1e-9)
