"""Small statements and releases, of which a test names only what it is about."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from sotto.privacy.answers.distances import TrainingShards
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.mechanisms.policies import GaussianPolicy
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Gap, Once, Part, StreamStatement
from sotto.privacy.units import Unit

UNIT = Unit(kind="trajectory", adjacency="zero-out")
GAP = Gap(name="a gap", why="for the test")
QUIET = 1e-6
"""A noise multiplier so small that the released numbers are the sums, to 1e-4."""
SLOTS, HORIZON, D = 4, 5, 3
UNITS = np.zeros((SLOTS, D), np.float32)


def statement(noise_multiplier: float = 3.0, **changes: Any) -> StreamStatement:
    """A stream of one part."""
    fields: dict[str, Any] = {
        "name": "update",
        "unit": UNIT,
        "participation": Once(),
        "parts": {"policy": Part(clip_norm=0.5, noise_multiplier=noise_multiplier)},
        "dimensions": {"policy": 10},
        "divisor": 4.0,
        "horizon": 20,
        "population": "simulated",
        "sampler_delta": 1e-30,
    }
    return StreamStatement(**fields | changes)


def answers(**changes: Any) -> AnswerStatement:
    """The answers of a teacher."""
    fields: dict[str, Any] = {
        "name": "teacher",
        "mechanism": GaussianPolicy(actions=3, noise_stddev=0.5),
        "distance": TrainingShards(teachers=100),
        "queries": 100,
        "queries_per_student": 60,
        "observation_size": 4,
        "population": "simulated",
    }
    return AnswerStatement(**fields | changes)


def own_data(state: Any, unit: Array, key: Array) -> Any:
    return {"u": unit}, {"seen": unit}


def count(state: Array, released: Any) -> Any:
    """The state counts the releases."""
    return state + 1, released


def release(noise_multiplier: float = QUIET, clip_norm: float = 1.0, **changes: Any) -> Release:
    """The sum of the people's own data, by default all but without noise."""
    fields: dict[str, Any] = {
        "name": "update",
        "local": own_data,
        "server": count,
        "unit": UNIT,
        "parts": {"u": Part(clip_norm=clip_norm, noise_multiplier=noise_multiplier)},
        "slots": SLOTS,
        "divisor": 1.0,
        "horizon": HORIZON,
        "population": "simulated",
    }
    return Release(**fields | changes)


def keys(runs: int = 1, seed: int = 0) -> Array:
    return jax.random.split(jax.random.key(seed), runs)


def newcomers(
    runs: int = 1, releases: int = HORIZON, first: int = 0, slots: int = SLOTS
) -> np.ndarray:
    """People who each come once."""
    numbers = first + np.arange(releases * slots, dtype=np.int32).reshape(releases, slots)
    return np.broadcast_to(numbers, (runs, releases, slots))
