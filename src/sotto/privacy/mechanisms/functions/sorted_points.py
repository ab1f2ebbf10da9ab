"""Sorted points on a line with values, for single insertions and for batches.

Single points go into buckets of bounded size, found by bisection. A batch merges sorted arrays.
Each form is made from the other when it is needed. A number takes little more than 8 bytes.
"""

from array import array
from bisect import bisect_left
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

_BUCKET = 512
_DOUBLES = "d"


class Place(NamedTuple):
    """The place of a point among the stored points.

    Attributes:
        bucket, position: place to insert it.
        left: the point before it, with its values; None if there is none (or `known`).
        right: the point at or after it, with its values; None if there is none.
        known: whether `right` is the point itself.
    """

    bucket: int
    position: int
    left: "tuple[float, array[float]] | None"
    right: "tuple[float, array[float]] | None"
    known: bool


class SortedPoints:
    """Distinct points, each with `width` values.

    An insertion makes O(log n) comparisons and moves at most a bucket; every 256th splits one.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._flat: tuple[np.ndarray, np.ndarray] | None = (np.empty(0), np.empty((0, width)))
        self._buckets: list[array[float]] | None = None
        self._values: list[array[float]] = []
        self._ends: list[float] = []  # the largest point of each bucket except the last
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def arrays(self) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, "n width"]]:
        """Returns all points in order, and their values; do not change them."""
        if self._flat is None:
            assert self._buckets is not None
            points = np.concatenate([np.frombuffer(one) for one in self._buckets])
            values = np.concatenate([np.frombuffer(one) for one in self._values])
            self._flat = points, values.reshape(-1, self.width)
        return self._flat

    def merge(
        self, points: Float64[np.ndarray, " q"], values: Float64[np.ndarray, "q width"]
    ) -> None:
        """Adds sorted distinct new points."""
        old, old_values = self.arrays()
        if len(old):
            before = np.searchsorted(old, points) + np.arange(len(points))
            is_old = np.ones(len(old) + len(points), dtype=bool)
            is_old[before] = False
            merged = np.empty(is_old.size)
            merged_values = np.empty((is_old.size, self.width))
            merged[is_old], merged[before] = old, points
            merged_values[is_old], merged_values[before] = old_values, values
            points, values = merged, merged_values
        self._flat, self._buckets = (points.copy(), values.copy()), None
        self._size = len(points)

    def place(self, point: float) -> Place:
        """Returns the place of a point, stored or not."""
        buckets = self._split()
        bucket = bisect_left(self._ends, point)
        points, values, width = buckets[bucket], self._values[bucket], self.width
        position = bisect_left(points, point)
        start = position * width
        left = right = None
        if position < len(points):
            right = points[position], values[start : start + width]
            if right[0] == point:
                return Place(bucket, position, None, right, True)
        if position:
            left = points[position - 1], values[start - width : start]
        elif bucket:
            left = buckets[bucket - 1][-1], self._values[bucket - 1][-width:]
        return Place(bucket, position, left, right, False)

    def insert(self, place: Place, point: float, values: "array[float]") -> None:
        """Adds a new point at its place; look the place up just before."""
        buckets, bucket = self._split(), place.bucket
        here, held = buckets[bucket], self._values[bucket]
        here.insert(place.position, point)
        start = place.position * self.width
        held[start:start] = values
        self._size += 1
        self._flat = None
        if len(here) > _BUCKET:
            middle = len(here) // 2
            buckets[bucket : bucket + 1] = [here[:middle], here[middle:]]
            cut = middle * self.width
            self._values[bucket : bucket + 1] = [held[:cut], held[cut:]]
            self._ends.insert(bucket, here[middle - 1])

    def _split(self) -> list["array[float]"]:
        """Returns the buckets, made of the arrays if a batch came last."""
        if self._buckets is None:
            assert self._flat is not None
            points, values = self._flat
            starts = range(0, max(1, len(points)), _BUCKET // 2)
            cuts = [slice(start, start + _BUCKET // 2) for start in starts]
            self._buckets = [array(_DOUBLES, points[cut].tobytes()) for cut in cuts]
            self._values = [array(_DOUBLES, values[cut].tobytes()) for cut in cuts]
            self._ends = [bucket[-1] for bucket in self._buckets[:-1]]
        return self._buckets
