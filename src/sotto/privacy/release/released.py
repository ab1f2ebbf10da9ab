"""The results of a `FunctionRelease`: noisy values, which may be kept and copied for ever.

`ReleasedValues` holds the noisy values of one release at nodes. `ReleasedFunction` answers at any
point: the first answer at a point is noisy and kept, later ones repeat it. The owner keeps the
secret function; the file holds noisy values only. A function that is closed to a grid no longer
needs the secret.

Guarantee:
    An answer is on disk before it leaves, so that a point has one answer for ever, also if the
    process is killed. The noise at new points is conditioned on (answer - secret) at the old ones.
    This is the same number before and after a restart, rounding included, so that the proof covers
    both (docs/privacy.md, section 13).
"""

import math
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Float64
from scipy.interpolate import RegularGridInterpolator

from sotto.privacy.errors import PrivacyError
from sotto.privacy.mechanisms.functions.gaussian_process import Kernel, Paths
from sotto.privacy.mechanisms.functions.scattered import ScatteredPaths
from sotto.privacy.mechanisms.functions.values import power_below, to_grid
from sotto.privacy.mechanisms.noise import GeneratorSource
from sotto.privacy.mechanisms.secret_functions import SecretFunction, rows_of
from sotto.privacy.release.storage import ReleaseFile

RESOLUTION = 2.0**-40
"""Spacing of points; they are rounded to it, so that float64 tells any two apart."""

_LAW = 2
"""Version of the noise's law; a file is continued only under the law it was begun with. Version 1
drew in float64, with too little noise between near points."""

SURPLUS = 2.0**-14
"""Relative surplus of noise. Half of it pays for rounding to the grid, half for float64."""

LARGEST_VALUE = 2.0**52
"""Largest secret value in units of the grid, so that float64 holds answers exactly."""


def values_grid(sensitivity: float, sigma: float) -> float:
    """Returns the spacing of the public grid of released values, a power of two.

    It is fine against the sensitivity, and at most 2^42 times finer than the noise.
    """
    return power_below(max(sensitivity * 2.0**-34, sigma * 2.0**-41))


def require_resolved(rounding: float, sensitivity: float, sigma: float) -> None:
    """Refuses values that rounding moves further apart than the surplus of noise covers.

    Args:
        rounding: square of how far rounding moves neighbours apart, in units of sigma.
        sensitivity: of one release.
        sigma: standard deviation of the noise of every value.

    Raises:
        PrivacyError: it does.
    """
    if not math.sqrt(rounding) <= SURPLUS / 2 * sensitivity / sigma:
        raise PrivacyError(
            "these points are too many, or too close together, to be told apart on the grid of "
            "released values; ask at fewer points, or further apart"
        )


class ReleasedValues:
    """Noisy values at nodes, without anything secret.

    Attributes:
        values: [*nodes, actions] (any shape where there are no axes); not to be changed.
        axes: positions of the nodes along each dimension; None: the values have no places.
    """

    def __init__(
        self,
        values: Float64[np.ndarray, "*nodes actions"],
        axes: tuple[Float64[np.ndarray, " _"], ...] | None = None,
    ) -> None:
        self.values = values
        self.axes = axes
        self.values.flags.writeable = False

    def __call__(
        self, points: Float[np.ndarray, "q d"] | Float[np.ndarray, " q"]
    ) -> Float64[np.ndarray, "q actions"]:
        """Returns values at points, linear between nodes, and constant beyond the edge."""
        if self.axes is None:
            raise ValueError(
                "these values have no places; release them with axes to ask in between"
            )
        points = as_points(points, len(self.axes))
        clipped = [
            np.clip(column, axis[0], axis[-1])
            for column, axis in zip(points.T, self.axes, strict=True)
        ]
        if len(self.axes) == 1:
            columns = [np.interp(clipped[0], self.axes[0], one) for one in self.values.T]
            return np.stack(columns, axis=1)
        single = [len(axis) == 1 for axis in self.axes]  # no slope along these
        kept = [i for i, alone in enumerate(single) if not alone]
        values = self.values.reshape(*(len(self.axes[i]) for i in kept), self.values.shape[-1])
        interpolator = RegularGridInterpolator([self.axes[i] for i in kept], values)
        return np.asarray(interpolator(np.stack([clipped[i] for i in kept], axis=1)))

    def save(self, path: Path) -> None:
        """Writes the values to a new file; when it returns they are on disk."""
        header = {
            "kind": "values",
            "shape": list(self.values.shape),
            "axes": self.axes and [axis.tolist() for axis in self.axes],
        }
        ReleaseFile.create(path, header, self.values)

    @classmethod
    def open(cls, path: Path) -> "ReleasedValues":
        """Returns the values of an earlier release from their file."""
        store = ReleaseFile.open(path)
        header = store.header
        if header["kind"] != "values" or len(store) != 1:
            raise PrivacyError(f"{path} holds no released values; open the function that it holds")
        ((_, flat),) = store.read()
        axes = header["axes"] and tuple(np.array(axis) for axis in header["axes"])
        return cls(flat.reshape(header["shape"]), axes)


class ReleasedFunction:
    """A function plus a noisy path, which answers anywhere in [0, 1]^d.

    `OpenFunctionRelease.release_function` makes it, or `ReleasedFunction.open` from its file.

    Attributes:
        kernel: of the noise.
        sensitivity: largest distance of neighbours, in the norm of the kernel.
        actions: number of functions; each has its own path.
        dimensions: d.
    """

    def __init__(
        self,
        kernel: Kernel,
        sensitivity: float,
        actions: int,
        dimensions: int,
        secret: SecretFunction | None,
        generators: GeneratorSource,
        store: ReleaseFile | None,
    ) -> None:
        self.kernel = kernel
        self.sensitivity = sensitivity
        self.actions = actions
        self.dimensions = dimensions
        self._secret = secret
        self._store = store
        self._grid = values_grid(sensitivity, kernel.sigma)
        self._rounding = 0.0
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._unfinished = False  # whether an answer may be on disk, and is not remembered
        self._row: dict[bytes, int] = {}
        self._answers: list[Float64[np.ndarray, " actions"]] = []
        self._first: tuple[np.ndarray, np.ndarray] | None = None  # a point, and the secret there
        self._nodes: ReleasedValues | None = None
        self._noise: Paths | ScatteredPaths
        if dimensions == 1:
            self._noise = Paths(kernel, actions, generators.next(), self._grid)
        else:
            self._noise = ScatteredPaths(kernel, dimensions, actions, generators.next(), self._grid)

    @classmethod
    def create(
        cls,
        kernel: Kernel,
        sensitivity: float,
        actions: int,
        dimensions: int,
        secret: SecretFunction,
        generators: GeneratorSource,
        path: Path | None,
    ) -> "ReleasedFunction":
        """Returns a function without answers, for which `OpenFunctionRelease` has charged."""
        header = {
            "kind": "function",
            "kernel": kernel.model_dump(),
            "sensitivity": sensitivity,
            "actions": actions,
            "dimensions": dimensions,
            "entropy": generators.entropy,
            "law": _LAW,
        }
        store = None if path is None else ReleaseFile.create(path, header)
        return cls(kernel, sensitivity, actions, dimensions, secret, generators, store)

    @classmethod
    def open(cls, path: Path, secret: SecretFunction | None = None) -> "ReleasedFunction":
        """Returns a function released earlier, which goes on from its file.

        Args:
            path: of the file.
            secret: the *same* function as ever, to answer at points never asked; another one
                would be released with noise that is known. None: it answers what it has answered,
                and anything if it was closed.

        Raises:
            PrivacyError: the file holds something else, is damaged, or cannot be continued.
        """
        store = ReleaseFile.open(path)
        header = store.header
        if header["kind"] != "function":
            raise PrivacyError(f"{path} holds no released function; open the values that it holds")
        if header["entropy"] != "operating-system" and secret is not None:
            raise PrivacyError("noise from a fixed seed is for tests; it cannot be continued")
        kernel = Kernel.model_validate(header["kernel"])
        if header.get("law") != _LAW and secret is not None:
            raise PrivacyError(
                f"{path} was released by an earlier version, which drew its noise by another law; "
                "open it without the secret for the answers that it has, or release it anew"
            )
        sensitivity = header.get("sensitivity", kernel.sigma)
        actions, dimensions = header["actions"], header["dimensions"]
        function = cls(kernel, sensitivity, actions, dimensions, secret, GeneratorSource(), store)
        for points, flat in store.read():
            if len(points) == 0:
                function._nodes = _grid_from(flat, dimensions, actions)
                function._secret = None
                continue
            function._remember(points.reshape(-1, dimensions), flat.reshape(-1, actions))
        return function

    @property
    def closed(self) -> bool:
        """Whether it answers without the secret, everywhere."""
        return self._nodes is not None

    def __len__(self) -> int:
        return len(self._answers)

    def __call__(
        self, points: Float[np.ndarray, "q d"] | Float[np.ndarray, " q"]
    ) -> Float64[np.ndarray, "q actions"]:
        """Returns noisy values at points of [0, 1]^d, rounded to multiples of `RESOLUTION`.

        Points must be chosen without looking at anything secret; they may depend on what was
        released, also by this function.

        Raises:
            PrivacyError: a new point, and the secret is not here, this process is a fork of the one
            that released the function, or an answer was interrupted; or the points are too many, or
            too close together, for what pays for rounding.
            LedgerUnavailable: the answer could not be stored, and does not leave.
        """
        points = as_points(points, self.dimensions)
        if not (np.isfinite(points).all() and (points >= 0).all() and (points <= 1).all()):
            raise ValueError("the function lives on [0, 1] in each dimension; scale the points")
        points = np.rint(points / RESOLUTION) * RESOLUTION
        with self._lock:
            keys = _keys(points)
            new = {key: i for i, key in enumerate(keys) if key not in self._row}
            if new and self._nodes is not None:
                return self._from_nodes(points, keys)
            if new:
                self._ask(points[list(new.values())])
            if not keys:
                return np.empty((0, self.actions))
            return np.stack([self._answers[self._row[key]] for key in keys])

    def close(self, axes: Sequence[Float[np.ndarray, " _"]]) -> ReleasedValues:
        """Answers on a grid and forgets the secret; from then on it is linear between the nodes.

        Points that were asked before keep their answers.
        """
        if self.closed:
            raise PrivacyError("the function is closed already")
        kept = tuple(np.asarray(axis, dtype=np.float64) for axis in axes)
        mesh = np.meshgrid(*kept, indexing="ij")
        values = self(np.stack([one.ravel() for one in mesh], axis=1))
        nodes = ReleasedValues(values.reshape(*map(len, kept), self.actions), kept)
        with self._lock:
            if self._store is not None:
                self._store.append(np.empty(0), _grid_to(nodes))
            self._nodes, self._secret = nodes, None
        return nodes

    def _ask(self, points: Float64[np.ndarray, "q d"]) -> None:
        """Draws, stores and then remembers answers at distinct new points."""
        if self._secret is None:
            raise PrivacyError(
                "the secret function is needed to answer at new points; open the release with it, "
                "or ask where it has answered"
            )
        if os.getpid() != self._process:
            raise PrivacyError(
                "another process released this function, and both would answer with the same "
                "noise; ask at new points in that process"
            )
        if self._unfinished:
            raise PrivacyError(
                "an answer was interrupted before it was remembered; open the function again from "
                "its file, or release it anew"
            )
        rounding = self._rounding + self._noise.rounding(self._as_asked(points))
        require_resolved(rounding, self.sensitivity, self.kernel.sigma)
        secret, self._secret = self._secret, None
        try:
            # Noise near old points is nearly known, so a point must have one value for ever.
            hidden = self._hidden(secret, points)
            first, value = self._first or (points[:1], hidden[:1])
            again = self._hidden(secret, np.concatenate([first, points]))
            if not np.array_equal(again, np.concatenate([value, hidden])):
                raise ValueError("the function has changed")
        except KeyboardInterrupt:
            self._secret = secret
            raise
        except BaseException:
            # Where it fails is not protected, and more points would tell more of it.
            why = "the secret function failed, or has changed, and answers at no new point any more"
            raise PrivacyError(why) from None
        self._secret = secret
        drawn = self._noise.sample(self._as_asked(points))
        answers = (to_grid(hidden, self._grid) + drawn.whole) * self._grid
        self._unfinished = True
        try:
            if self._store is not None:
                self._store.append(points, answers)
        except Exception:  # it did not leave, and the file refuses another one if it has this one
            self._unfinished = False
            raise
        self._remember(points, answers, hidden)
        self._unfinished = False

    def _remember(
        self,
        points: Float64[np.ndarray, "q d"],
        answers: Float64[np.ndarray, "q actions"],
        hidden: Float64[np.ndarray, "q actions"] | None = None,
    ) -> None:
        if self._secret is not None:
            hidden = self._hidden(self._secret, points) if hidden is None else hidden
            self._first = self._first or (points[:1], hidden[:1])
            asked = self._as_asked(points)
            self._rounding += self._noise.rounding(asked)
            on_grid = np.rint(answers / self._grid) - to_grid(hidden, self._grid)
            self._noise.insert(asked, on_grid * self._grid)
        start = len(self._answers)
        self._row |= {key: start + i for i, key in enumerate(_keys(points))}
        self._answers.extend(answers)

    def _hidden(
        self, secret: SecretFunction, points: Float64[np.ndarray, "q d"]
    ) -> Float64[np.ndarray, "q actions"]:
        values = rows_of(secret, points, self.actions)
        limit = LARGEST_VALUE * self._grid
        return np.clip(np.where(np.isfinite(values), values, 0.0), -limit, limit)

    def _as_asked(self, points: Float64[np.ndarray, "q d"]) -> np.ndarray:
        return points[:, 0] if self.dimensions == 1 else points

    def _from_nodes(
        self, points: Float64[np.ndarray, "q d"], keys: Sequence[bytes]
    ) -> Float64[np.ndarray, "q actions"]:
        assert self._nodes is not None
        answers = self._nodes(points)
        for i, key in enumerate(keys):
            if (row := self._row.get(key)) is not None:
                answers[i] = self._answers[row]
        return answers


def as_points(points: np.ndarray, dimensions: int) -> Float64[np.ndarray, "q d"]:
    """Returns points as [q, d]; in one dimension a plain list is accepted."""
    points = np.asarray(points, dtype=np.float64)
    if points.ndim == 1 and dimensions == 1:
        points = points[:, None]
    if points.ndim != 2 or points.shape[1] != dimensions:
        raise ValueError(f"points must have shape [q, {dimensions}], got {points.shape}")
    return points


def _keys(points: Float64[np.ndarray, "q d"]) -> list[bytes]:
    return [row.tobytes() for row in points + 0.0]  # one zero, not two


def _grid_to(nodes: ReleasedValues) -> Float64[np.ndarray, " n"]:
    """Returns axes and values in one list of numbers, for the file."""
    assert nodes.axes is not None
    lengths = [float(len(axis)) for axis in nodes.axes]
    return np.concatenate([lengths, *nodes.axes, nodes.values.ravel()])


def _grid_from(flat: Float64[np.ndarray, " n"], dimensions: int, actions: int) -> ReleasedValues:
    lengths = flat[:dimensions].astype(int).tolist()
    stops = np.cumsum([dimensions, *lengths])
    *axes, values = np.split(flat[dimensions:], stops[1:] - dimensions)
    return ReleasedValues(values.reshape(*lengths, actions), tuple(axes))
