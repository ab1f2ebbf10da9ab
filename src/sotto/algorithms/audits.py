"""Trainings of sotto as code that an audit can make again, with canaries in the place of people."""

import functools
import math
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Int, PyTree

from sotto.algorithms.base import Algorithm
from sotto.privacy.audits import one_run
from sotto.privacy.audits.auditable import Auditable, Door
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Once, Poisson, Returning


def auditable(
    algorithm: Algorithm[Any], config: Any, seed: int, epsilon: float, delta: float
) -> Auditable:
    """Returns a training as a release about as many people as it has, for `audit_training`.

    Args:
        algorithm, config: the training.
        seed: seed of its public state before the first release.
        epsilon, delta: the claim.

    Raises:
        ValueError: the training cannot be audited; the message says why.
    """
    name = algorithm.name
    if type(algorithm).on_devices is Algorithm.on_devices:
        raise ValueError(
            f"sotto audit cannot make a training of {name} again, only those whose updates are "
            "each one release about people of a simulator, such as dppg; attack the known leaks "
            "with sotto audit --leaks, or describe its release as a sotto.Auditable"
        )
    if algorithm.population(config) == "real":
        raise ValueError(
            "this training is about real people, who are not at hand; audit one with the same "
            "settings and simulated people"
        )
    if not math.isfinite(epsilon):
        raise ValueError(
            "the certificate claims no finite epsilon, so no bound can refute it; see sotto "
            "certificate"
        )
    release, unit = algorithm.on_devices(config, algorithm.num_updates(config))
    if isinstance(release.participation, Poisson):
        raise ValueError(
            "people are drawn in secret here, so nobody knows where a canary took part; audit a "
            "training without population_size"
        )
    order = _order(release)
    size = int(order.max()) + 1
    if size < one_run.LEAST:
        raise ValueError(
            f"the training has {size} people; one run tells nothing about fewer than "
            f"{one_run.LEAST}"
        )
    door = Door(release, algorithm.one_state(config, seed), functools.partial(_enrol, order, unit))
    return Auditable(door.train, np.arange(size), epsilon, delta, door)


def _order(release: Release) -> Int[np.ndarray, "releases slots"]:
    """Returns who has which slot: people take part once, or come back in turn as they may."""
    at, how = np.arange(release.horizon), release.participation
    if isinstance(how, Returning):
        cohort, turn = divmod(at, how.min_separation * how.max_participations)
        groups = cohort * how.min_separation + turn % how.min_separation
    else:
        assert isinstance(how, Once)
        groups = at
    return np.asarray(groups[:, None] * release.slots + np.arange(release.slots))


def _enrol(
    order: Int[np.ndarray, "releases slots"],
    unit: PyTree,
    people: np.ndarray,
    present: Bool[np.ndarray, " people"],
) -> tuple[np.ndarray, PyTree]:
    """Returns who is enrolled, and data of the right shapes, which canaries do not read."""
    del people
    data = jax.tree.map(
        lambda x: np.broadcast_to(np.zeros((), x.dtype), (*order.shape, *np.shape(x))), unit
    )
    return np.where(present[order], order, -1), data
