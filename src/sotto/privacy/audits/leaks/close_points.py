"""Too little noise on a path at four very close points, because a variance is a difference.

The points are the corners of a box with sides of 1.4 10^-8. The fourth value, given the others,
should have a standard deviation of 2.8 10^-8, and has 1.1 10^-8. Neighbouring functions differ only
at this corner.
"""

import numpy as np
from jaxtyping import Float, Float64, Int

from sotto.privacy.accounting.composition import gaussian_epsilon
from sotto.privacy.audits.audit import temporary_ledger
from sotto.privacy.audits.leaks.leak import DELTA, Leak, against
from sotto.privacy.claims.rewards import LOGGED_FUNCTION
from sotto.privacy.mechanisms.functions.rkhs import Sensitivity
from sotto.privacy.release.functions import FunctionRelease
from sotto.privacy.release.released import RESOLUTION
from sotto.privacy.units import REWARD_FUNCTION

_Z = 1.0
_ACTIONS = 2_000
_CLAIMED = gaussian_epsilon(_Z, DELTA)
_SIDES = np.array([15_260, 15_170]) * RESOLUTION
_POINTS = 0.25 + _SIDES * np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
_DECAY = np.exp(-(_POINTS[-1] - _POINTS[0]))
_GIVEN = np.array([-_DECAY.prod(), _DECAY[0], _DECAY[1]])
"""Weights of the other three values in the expected fourth value."""

_RELEASED = FunctionRelease(
    name="values",
    unit=REWARD_FUNCTION,
    sensitivity=Sensitivity(1.0, 1.0, "the norm of the difference is 1", 1.0, 2),
    noise_multiplier=_Z,
    population="simulated",
    protects=(LOGGED_FUNCTION(radius="1"),),
)


def _values(present: bool) -> Float64[np.ndarray, " 4"]:
    """Returns the function at the corners: it has norm 1 and is 0 at three of them, or is 0."""
    last = np.sqrt(np.prod(-np.expm1(-2 * (_POINTS[-1] - _POINTS[0]))))
    return np.array([0.0, 0.0, 0.0, last if present else 0.0])


def _nearest(points: Float64[np.ndarray, "q 2"]) -> Int[np.ndarray, " q"]:
    """Returns the number of the corner that is nearest to each point."""
    nearest: Int[np.ndarray, " q"] = np.abs(points[:, None] - _POINTS).sum(axis=2).argmin(axis=1)
    return nearest


def _statistic(values: Float64[np.ndarray, "4 samples"]) -> Float[np.ndarray, "samples 1"]:
    return np.asarray((values[3] - _GIVEN @ values[:3])[:, None])


def _cancelled(present: bool, seed: int, samples: int) -> Float[np.ndarray, "samples 1"]:
    """Draws noise whose Cholesky factor has 1 minus a sum of squares on its diagonal."""
    factor = np.zeros((4, 4))
    for i, point in enumerate(_POINTS):
        row = np.exp(-np.abs(_POINTS[:i] - point).sum(axis=1))
        for j in range(i):
            factor[i, j] = (row[j] - factor[i, :j] @ factor[j, :j]) / factor[j, j]
        factor[i, i] = np.sqrt(1 - factor[i, :i] @ factor[i, :i])
    drawn = np.random.default_rng(seed).standard_normal((4, samples))
    return _statistic(_values(present)[:, None] + _Z * factor @ drawn)


def _through_the_door(present: bool, seed: int, samples: int) -> Float[np.ndarray, "samples 1"]:
    """Draws a path for each run, `_ACTIONS` paths in a function: more would be refused here."""
    secret = np.repeat(_values(present)[:, None], _ACTIONS, axis=1)
    parts = []
    for part in range(-(-samples // _ACTIONS)):
        with temporary_ledger(_RELEASED.unit) as ledger:
            opened = _RELEASED.open(ledger, noise_seed=(seed << 32) + part)
            own = opened.release_function(lambda points: secret[_nearest(points)], _ACTIONS)
            values = own(_POINTS)
            parts.append(_statistic(values))
    return np.concatenate(parts)[:samples]


def _certified() -> float:
    with temporary_ledger(_RELEASED.unit) as ledger:
        _RELEASED.open(ledger).release_function(lambda points: np.zeros((len(points), 1)), 1)
        return ledger.spent().epsilon_at(DELTA)


CLOSE_POINTS = Leak(
    name="close-points",
    claim="Noise from a Cholesky factor in float64 has the intended covariance.",
    why="Between very close points, the remaining variance is smaller than rounding errors.",
    remedy="each scattered point has additional noise far above rounding, and no variance cancels",
    claimed_epsilon=_CLAIMED,
    leaky=against(_CLAIMED, _cancelled),
    sound=against(_certified, _through_the_door),
)
