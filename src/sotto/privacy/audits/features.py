"""Statistics of a run's output that an audit looks at.

A bound is valid for any statistic. The choice decides which leaks are found.
"""

import jax
import numpy as np
from jaxtyping import Float, PyTree

_MOST = 64
"""Most numbers of an output that are looked at one by one."""


def flat(outputs: PyTree) -> Float[np.ndarray, "runs d"]:
    """Returns all numbers of each run as one vector; those that are not finite become zero."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(outputs)]
    runs = len(leaves[0])
    joined = np.concatenate([x.reshape(runs, -1).astype(np.float64) for x in leaves], axis=1)
    return np.asarray(np.nan_to_num(joined, nan=0.0, posinf=0.0, neginf=0.0))


def statistics(outputs: PyTree, direction: Float[np.ndarray, " d"]) -> Float[np.ndarray, "runs k"]:
    """Returns the statistics of each run's output.

    The first is the projection onto the difference that one person makes. Then come length, mean,
    largest and least number, counts of zeros and of numbers that are not finite, and lowest set
    bits. The rest are the numbers that the person moves most, and their squares.

    Args:
        outputs: arrays of shape [runs, ...].
        direction: difference that the person makes to the output with the same random numbers.
    """
    numbers = flat(outputs)
    length = np.linalg.norm(direction)
    unit = direction / length if length > 0 else direction
    few = numbers[:, np.sort(np.argsort(-np.abs(direction), kind="stable")[:_MOST])]
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(outputs)]
    unusual = sum((~np.isfinite(x.reshape(len(x), -1))).sum(axis=1) for x in leaves)
    whole = [
        numbers @ unit,
        np.linalg.norm(numbers, axis=1),
        numbers.mean(axis=1),
        numbers.max(axis=1),
        numbers.min(axis=1),
        (numbers == 0).sum(axis=1),
        np.asarray(unusual),
    ]
    bits = np.concatenate([lowest_bits(x.reshape(len(x), -1)) for x in leaves], axis=1)
    whole += [bits.mean(axis=1), bits.min(axis=1), bits.max(axis=1)]
    return np.column_stack([*whole, few, np.square(few)]).astype(np.float64)


def lowest_bits(values: Float[np.ndarray, "runs d"]) -> Float[np.ndarray, "runs d"]:
    """Returns the exponent of the lowest set bit of each number; 64 where there is none.

    Noise in floats that was not drawn on the grid of the output tells values apart by these bits
    (Mironov 2012, "On Significance of the Least Significant Bits for Differential Privacy").
    """
    precision = 24 if values.dtype == np.float32 else 53
    finite = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    mantissa, exponent = np.frexp(finite)
    integer = np.abs(np.ldexp(mantissa, precision)).astype(np.int64)
    lowest = np.frexp((integer & -integer).astype(np.float64))[1] - 1
    return np.where(integer == 0, 64.0, lowest + exponent - precision)
