"""Noise that differs from the noise of the proof: used twice, cut off, or on too fine a grid."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32

from sotto.privacy.accounting.composition import gaussian_epsilon
from sotto.privacy.audits.audit import AuditResult
from sotto.privacy.audits.function_trials import FunctionTrials
from sotto.privacy.audits.leaks.leak import (
    CLAIMED,
    DELTA,
    USERS,
    Leak,
    against,
    against_certificate,
    enrolled,
    updates,
)
from sotto.privacy.claims.rewards import LOGGED_FUNCTION
from sotto.privacy.mechanisms.functions.rkhs import vector_sensitivity
from sotto.privacy.mechanisms.noise import GeneratorSource
from sotto.privacy.release.functions import FunctionRelease
from sotto.privacy.units import REWARD_FUNCTION

# --- one draw for two releases -------------------------------------------------------------------

_ONES = np.ones((1, USERS), np.float32)
"""Everybody contributes 1."""
_BEFORE = updates(lambda present: (enrolled(present), _ONES))
_AFTER = updates(lambda _: (USERS + enrolled(True), _ONES))


def _resumed(present: bool, seed: int, samples: int, *, fresh: bool) -> Float[np.ndarray, "n 2"]:
    """Makes one release, and after a resumption another one with other people.

    The seed of the second release is the same or fresh. The person is in the first release only.
    """
    before = _BEFORE(present, seed, samples)
    after = _AFTER(True, seed ^ 1 if fresh else seed, samples)
    return np.concatenate([before, after], axis=1)


REUSED_NOISE = Leak(
    name="reused-noise",
    claim="A resumed run may use the same noise seed, because its releases are about new people.",
    why="The difference of two releases with the same noise has no noise.",
    remedy="every draw has a fresh key, which is then forgotten; a resumed run opens a new stream",
    claimed_epsilon=CLAIMED,
    leaky=against(CLAIMED, functools.partial(_resumed, fresh=False)),
    sound=against(
        lambda: _BEFORE.certified_epsilon(DELTA), functools.partial(_resumed, fresh=True)
    ),
)

# --- float32 tails -------------------------------------------------------------------------------

_TAIL_Z = 1.0


def float32_normal_values() -> Float32[np.ndarray, "8388608"]:
    """Every value of float32 `jax.random.normal`; all are equally likely.

    The generator's 32 random bits become a 23-bit mantissa, a uniform number in (-1, 1), and
    sqrt(2) erfinv of it.
    """
    mantissas = jnp.arange(2**23, dtype=jnp.uint32) | jnp.uint32(0x3F800000)
    unit = jax.lax.bitcast_convert_type(mantissas, jnp.float32) - 1
    low = np.nextafter(np.float32(-1), np.float32(0))
    uniform = jnp.maximum(low, unit * (np.float32(1) - low) + low)
    return np.asarray(np.float32(math.sqrt(2)) * jax.lax.erf_inv(uniform))


def _enumerated_tails(_samples: int, _seed: int, _confidence: float) -> AuditResult:
    """Computes the probability of outputs that only one of the neighbours 0 and 1 can have."""
    values = float32_normal_values() * np.float32(_TAIL_Z)
    largest = values.max()
    impossible_without = float(np.mean(values + np.float32(1) > largest))
    return AuditResult(
        epsilon_lower=math.inf if impossible_without > DELTA else 0.0,
        certified_epsilon=_TAIL_CLAIMED,
        delta=DELTA,
        confidence=1.0,
        threshold=float(largest),
        orientation=1,
        samples=values.size,
    )


_TAIL_CLAIMED = gaussian_epsilon(_TAIL_Z, DELTA)

FLOAT32_TAILS = Leak(
    name="float32-tails",
    claim="Noise from float32 jax.random.normal is Gaussian noise.",
    why="It never exceeds 5.22 standard deviations. At noise multiplier 1, outputs that only one "
    "neighbour can reach have probability 1.2e-5, which no epsilon covers (enumerated).",
    remedy="a sampler whose tails reach 17 standard deviations, and whose delta is charged",
    claimed_epsilon=_TAIL_CLAIMED,
    leaky=_enumerated_tails,
    sound=against_certificate(
        updates(lambda present: (enrolled(present), _ONES), noise_multiplier=_TAIL_Z)
    ),
    runs=0,
)

# --- a grid finer than the sampler ---------------------------------------------------------------

_VALUES, _GRID_Z, _FINE_RATIO = 32, 5.0, 2.0**50


def _even(integers: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n 1"]:
    """Returns the share of even integers, which is all that this adversary looks at."""
    return np.asarray(np.mean(integers % 2 == 0, axis=1, keepdims=True))


def _too_fine(present: bool, seed: int, samples: int) -> Float[np.ndarray, "n 1"]:
    """Draws values that move by an odd number of grid steps, with rounded float64 noise.

    A float64 number of this size is a multiple of 1/4 or 1/2, and ties are rounded to even.
    """
    moved = round(_FINE_RATIO / _GRID_Z / math.sqrt(_VALUES)) | 1
    generator = GeneratorSource(seed).next()
    drawn = np.rint(generator.standard_normal((samples, _VALUES)) * _FINE_RATIO)
    return _even(drawn.astype(np.int64) + moved * present)


_ON_THE_GRID = FunctionTrials(
    FunctionRelease(
        "values",
        REWARD_FUNCTION,
        vector_sensitivity(_VALUES, 1, 1.0),
        _GRID_Z,
        "simulated",
        size=_VALUES,
        protects=(LOGGED_FUNCTION(radius="1"),),
    ),
    (_VALUES, 1),
    lambda present, _: np.full((_VALUES, 1), float(present)),
)


def _on_the_grid(present: bool, seed: int, samples: int) -> Float[np.ndarray, "n 1"]:
    return _even(_ON_THE_GRID(present, seed, samples) / _ON_THE_GRID.release.grid)


FINE_GRID = Leak(
    name="fine-grid",
    claim="A float64 normal, scaled and rounded to a grid, is Gaussian noise on that grid.",
    why="On a grid that is finer than the 53 bits resolve, some integers are hit more often than "
    "others. At 2^50 steps in a standard deviation most are even, and a shift by an odd number "
    "of steps makes them odd.",
    remedy="noise is drawn on the grid with the distribution of a rounded normal, with more bits "
    "where 53 do not decide",
    claimed_epsilon=gaussian_epsilon(_GRID_Z, DELTA),
    leaky=against(gaussian_epsilon(_GRID_Z, DELTA), _too_fine),
    sound=against(lambda: _ON_THE_GRID.certified_epsilon(DELTA), _on_the_grid),
)
