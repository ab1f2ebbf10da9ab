"""Answers points of a released function for ever, until it is killed: see test_released.py."""

import sys
from pathlib import Path

import numpy as np

from sotto.privacy.release.released import ReleasedFunction


def secret(points: np.ndarray) -> np.ndarray:
    return np.hstack([np.sin(5 * points), points**2])


def main() -> None:
    function = ReleasedFunction.open(Path(sys.argv[1]), secret)
    generator = np.random.default_rng(int(sys.argv[2]))
    while True:
        points = generator.integers(0, 5000, 3) / 5000
        for point, answer in zip(points, function(points), strict=True):
            print(point.hex(), *(value.hex() for value in answer), flush=True)


if __name__ == "__main__":
    main()
