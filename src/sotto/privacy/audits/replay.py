"""Replay of a release without one person: the same noise, the same public states, the same keys.

The difference of the two releases is what the person moves, without noise. It is compared with
what the door declares. This needs no confidence: a larger difference refutes the claim.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float, PyTree

from sotto.keys import new_key
from sotto.privacy.accounting.gaussian import epsilon_of_shift
from sotto.privacy.audits.audit import temporary_ledger
from sotto.privacy.audits.auditable import Auditable, Door
from sotto.privacy.release.declaration import noise_scales
from sotto.privacy.statements import Poisson

_MOST = 16
_TOLERANCE = 1e-3
"""Relative error of differences of float32 numbers."""


@dataclass(frozen=True)
class Replay:
    """Result of a replay: the largest change of the releases that one person makes.

    Attributes:
        person: index of the person who moves most.
        shift: L2 norm of the difference in standard deviations of the noise, over the stream.
        epsilon_lower: epsilon of Gaussian noise with this shift, at the claim's delta.
        without_noise: parts without noise that the person changes.
        refuted: whether the claim is smaller.
    """

    person: int
    shift: float
    epsilon_lower: float
    without_noise: tuple[str, ...]
    refuted: bool


def can_replay(auditable: Auditable) -> bool:
    """Whether the code goes through the door and nobody is drawn in secret."""
    door = auditable.door
    return door is not None and not isinstance(door.release.participation, Poisson)


def replay(auditable: Auditable, seed: int) -> Replay:
    """Replays the releases without each of the first people in turn."""
    door = auditable.door
    assert door is not None
    tried = min(auditable.size, _MOST)
    everybody = np.ones((tried, auditable.size), bool)
    without = everybody.copy()
    without[np.arange(tried), np.arange(tried)] = False
    differences = _differences(door, auditable, everybody, without, seed)
    shifts = _shifts(door, {name: differences[name] for name in door.release.parts})
    bare = tuple(
        name for name in door.release.unprotected or {} if np.abs(differences[name]).max() > 0
    )
    person = int(np.argmax(shifts))
    shift = float(shifts[person])
    epsilon = math.inf if bare else epsilon_of_shift(shift, auditable.delta)
    allowed = epsilon_of_shift(shift / (1 + _TOLERANCE), auditable.delta)
    return Replay(person, shift, epsilon, bare, bool(bare) or allowed > auditable.epsilon)


def _differences(
    door: Door,
    auditable: Auditable,
    everybody: np.ndarray,
    without: np.ndarray,
    seed: int,
) -> Mapping[str, Float[np.ndarray, "runs releases d"]]:
    """Returns what each run's person moves in the sums, each part flat.

    Both worlds start each release from the public state of the one in which all are present. After
    the last release whose people or data differ, nobody moves anything.
    """
    runs = len(everybody)
    keys = jax.random.split(new_key(seed), runs)
    worlds = [door.enrolled(auditable.people, rows) for rows in (everybody, without)]
    assert worlds[0][0] is not None
    releases = worlds[0][0].shape[1]
    found: dict[str, list[np.ndarray]] = {}
    with (
        temporary_ledger(door.release.unit) as first,
        temporary_ledger(door.release.unit) as second,
    ):
        streams = []
        for ledger, (persons, units) in zip((first, second), worlds, strict=True):
            stream, states = door.stream(ledger, persons, units, seed, chunk=1)
            streams.append(stream)
        for index in range(_differ_until(worlds[0], worlds[1], releases)):
            logs = []
            for stream, (persons, units) in zip(streams, worlds, strict=True):
                assert persons is not None
                one = jax.tree.map(lambda x, at=index: x[:, at : at + 1], units)
                copied = jax.tree.map(np.asarray, states)
                after, log, _ = stream.run(copied, keys, persons[:, index : index + 1], one)
                logs.append((after, log["released"]))
            for name in logs[0][1]:
                given, gone = (
                    np.concatenate(
                        [
                            np.asarray(x, np.float64).reshape(runs, -1)
                            for x in jax.tree.leaves(one[1][name])
                        ],
                        axis=1,
                    )
                    for one in logs
                )
                found.setdefault(name, []).append((given - gone) * door.release.divisor)
            states = jax.tree.map(np.asarray, logs[0][0])
    rest = releases - len(next(iter(found.values())))
    return {
        name: np.pad(np.stack(rows, axis=1), ((0, 0), (0, rest), (0, 0)))
        for name, rows in found.items()
    }


def _differ_until(one: PyTree, other: PyTree, releases: int) -> int:
    """Returns how many releases there are up to the last with other people or other data."""
    changed = np.zeros(releases, bool)
    changed[0] = True  # at least one release is made
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        changed |= (np.asarray(a) != np.asarray(b)).any(axis=(0, *range(2, np.ndim(a))))
    return int(np.flatnonzero(changed)[-1]) + 1


def _shifts(
    door: Door, differences: Mapping[str, Float[np.ndarray, "runs releases d"]]
) -> Float[np.ndarray, " runs"]:
    """Returns how far each person shifts the independent draws behind the noise, in deviations."""
    squares = 0.0
    for name, scale in noise_scales(door.release).items():
        whitening = door.whitening(differences[name].shape[1])
        draws = np.stack([whitening @ moved for moved in differences[name]])
        squares = squares + np.square(draws / scale).sum(axis=(1, 2))
    return np.asarray(np.sqrt(squares))
