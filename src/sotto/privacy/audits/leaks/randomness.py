"""Random numbers that are drawn for a whole batch of people at once."""

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32

from sotto.privacy.accounting.composition import gaussian_epsilon
from sotto.privacy.audits.audit import ReleaseTrials
from sotto.privacy.audits.leaks.leak import DELTA, PERSON, Leak, against, against_certificate
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Part

_Z, _USERS, _SEED = 5.0, 8, 30


@functools.cache
def batch_sides(kind: Literal["rbg", "threefry2x32"], present: bool) -> Float32[np.ndarray, " k"]:
    """Returns each person's random sign, as `vmap` draws it for a batch.

    A person's key is folded from the training's key by enrolment number. The first person is
    present, or the slot is empty and folds -1.
    """
    training = jax.random.key(_SEED, impl=kind)
    persons = jnp.arange(_USERS).at[0].set(0 if present else -1)
    keys = jax.vmap(functools.partial(jax.random.fold_in, training))(persons)
    return np.asarray(jax.vmap(lambda key: jnp.sign(jax.random.normal(key)))(keys))


def _inputs(
    present: bool, kind: Literal["rbg", "threefry2x32"]
) -> tuple[np.ndarray, Float32[np.ndarray, "1 k"]]:
    persons = np.arange(_USERS)
    persons[0] = 0 if present else -1
    return persons[None], batch_sides(kind, present)[None]


def _local(_state: Any, side: Array, _key: Array) -> tuple[Any, Any]:
    return {"update": side}, ()


def _server(state: Any, released: Any) -> tuple[Any, Any]:
    return state + released["update"], released["update"]


def _trials(kind: Literal["rbg", "threefry2x32"]) -> ReleaseTrials:
    release = Release(
        name="update",
        local=_local,
        server=_server,
        unit=PERSON,
        parts={"update": Part(clip_norm=1.0, noise_multiplier=_Z)},
        slots=_USERS,
        divisor=_USERS,
        horizon=1,
        population="simulated",
    )
    inputs = functools.partial(_inputs, kind=kind)
    return ReleaseTrials(release, jnp.float32(0.0), inputs, np.asarray)


_CLAIMED = gaussian_epsilon(_Z, DELTA)

BATCH_RANDOMNESS = Leak(
    name="batch-randomness",
    claim="Each person has a separate random key, so nobody moves another person's numbers.",
    why="With keys of the kind rbg, the first key of a batch decides all random numbers of the "
    "batch. So the presence of the first person moves everybody's numbers.",
    remedy="all keys are of the kind threefry2x32; the door refuses all others",
    claimed_epsilon=_CLAIMED,
    leaky=against(_CLAIMED, _trials("rbg")),
    sound=against_certificate(_trials("threefry2x32")),
)
