"""`pytest.approx` for small numbers, such as a delta."""

from typing import Any

import numpy as np
import pytest

_approx = pytest.approx


def install() -> None:
    """Makes `pytest.approx` relative, except where a zero is expected.

    Its default has an absolute tolerance of 1e-12 beside the relative one. So it takes any two
    numbers below 1e-12 for equal, and a test of such a delta could not fail.
    """
    pytest.approx = _relative  # type: ignore[assignment]


def _relative(
    expected: Any, rel: float | None = None, abs: float | None = None, nan_ok: bool = False
) -> Any:
    numbers = list(expected.values()) if isinstance(expected, dict) else expected
    if abs is None and np.all(np.asarray(numbers) != 0):
        rel, abs = 1e-6 if rel is None else rel, 0.0  # given abs alone, pytest has no rel
    return _approx(expected, rel=rel, abs=abs, nan_ok=nan_ok)
