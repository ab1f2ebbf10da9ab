"""The description of a user's own code that `sotto audit MODULE:NAME` audits."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, PyTree
from scipy import sparse
from scipy.linalg import toeplitz

from sotto.keys import KEY, new_key
from sotto.privacy.audits.audit import ReleaseTrials, Repetition, temporary_ledger
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.mechanisms import binary_tree, correlated
from sotto.privacy.release.release import Release
from sotto.privacy.release.stream import Stream
from sotto.trees import repeated

Train = Callable[[PyTree, Bool[np.ndarray, "runs people"], int], PyTree]
Enrol = Callable[[PyTree, Bool[np.ndarray, " people"]], tuple[np.ndarray | None, PyTree]]


@dataclass(frozen=True)
class Auditable:
    """Code of your own, with its claim, as `sotto audit MODULE:NAME` audits it.

    Attributes:
        train: function `(people, present, seed)` that makes several independent runs and returns
            everything that leaves them, arrays of shape [runs, ...]. `present` has the shape
            [runs, people] and says who takes part in which run. All random numbers of a run, noise
            included, must depend on the seed and the place of the run only, so that runs can be
            repeated without one person.
        people: public example people, arrays of shape [people, ...]. The first of them should be
            the one who changes the output most, such as somebody far from all others.
        epsilon: epsilon that you claim for one person, at `delta`.
        delta: delta of the claim.
        door: the release behind `train`, if it goes through the door (`of_release`).
    """

    train: Train
    people: PyTree
    epsilon: float
    delta: float = 1e-5
    door: "Door | None" = None

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < math.inf:
            raise ValueError(
                f"the claimed epsilon is {self.epsilon}, which no audit can refute; give the "
                "epsilon that you claim"
            )
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must be between 0 and 1, got {self.delta}")
        if len({np.shape(leaf)[:1] for leaf in jax.tree.leaves(self.people)}) != 1:
            raise ValueError("people must be arrays with one entry for each person first")

    @property
    def size(self) -> int:
        """Number of example people."""
        return len(jax.tree.leaves(self.people)[0])

    @classmethod
    def of_release(
        cls,
        release: Release,
        state: PyTree,
        people: PyTree,
        *,
        enrol: Enrol | None = None,
        epsilon: float | None = None,
        delta: float = 1e-5,
    ) -> "Auditable":
        """Returns the description of a release, which the audit makes through the real door.

        Args:
            release: the release, of simulated people.
            state: public state before the first release.
            people: example people, arrays of shape [people, ...].
            enrol: function `(people, present)` that gives the enrolment numbers
                [releases, slots], -1 for nobody, and the unit data [releases, slots, ...]. Under
                Poisson sampling the numbers are None and the data [population, ...]. By default
                people fill the slots in order.
            epsilon: the claim. None: what the ledger states.
            delta: delta of the claim.
        """
        door = Door(release, state, enrol or functools.partial(_in_order, release))
        if epsilon is None:
            everybody = np.ones(len(jax.tree.leaves(people)[0]), bool)
            epsilon = door.certified_epsilon(people, everybody, delta)
        return cls(door.train, people, epsilon, delta, door)


@dataclass(frozen=True)
class Door:
    """A release with its first public state and its people's places."""

    release: Release
    state: PyTree
    enrol: Enrol

    def train(self, people: PyTree, present: Bool[np.ndarray, "runs people"], seed: int) -> PyTree:
        """Makes runs side by side through the real door, with noise from a fixed seed.

        Returns:
            All that is released, and all that the server logs, [runs, releases, ...].
        """
        persons, units = self.enrolled(people, present)
        with temporary_ledger(self.release.unit) as ledger:
            stream, states = self.stream(ledger, persons, units, seed)
            keys = jax.random.split(new_key(seed), len(present))
            _, log, _ = stream.run(states, keys, persons, units)
        return jax.tree.map(np.asarray, log)

    def enrolled(
        self, people: PyTree, present: Bool[np.ndarray, "runs people"]
    ) -> tuple[np.ndarray | None, PyTree]:
        """Returns numbers [runs, releases, slots] and data of the people of several runs."""
        rows, place = np.unique(present, axis=0, return_inverse=True)
        place = place.reshape(-1)
        each = [self.enrol(people, row) for row in rows]
        units = jax.tree.map(lambda *x: jnp.asarray(np.stack(x)[place]), *(one[1] for one in each))
        if each[0][0] is None:
            return None, units
        return np.stack([np.asarray(one[0]) for one in each])[place], units

    def stream(
        self,
        ledger: Ledger,
        persons: np.ndarray | None,
        units: PyTree,
        seed: int,
        chunk: int | None = None,
    ) -> tuple[Stream, PyTree]:
        """Opens a stream of several runs, whose ledgers read as the first one's."""
        runs = len(persons if persons is not None else jax.tree.leaves(units)[0])
        ledgers = [ledger, *[Repetition(ledger)] * (runs - 1)]
        states = repeated(self.state, runs)
        one = jax.tree.map(lambda x: x[0] if persons is None else x[0, 0], units)
        return self._shown.open(ledgers, states, one, chunk=chunk, noise_seed=seed), states

    def contribution(self, people: PyTree) -> tuple[Any, Any]:
        """Returns the shapes of what `local` returns: one person's parts, and diagnostics."""
        persons, units = self.enrol(people, np.ones(len(jax.tree.leaves(people)[0]), bool))
        before = 1 if persons is None else 2  # axes of people, or of releases and slots
        person = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x)[before:], x.dtype), units)
        shapes: tuple[Any, Any] = jax.eval_shape(self.release.local, self.state, person, KEY)
        return shapes

    def whitening(self, releases: int) -> Any:
        """Returns the matrix that turns the noise of the first releases into independent draws.

        `whitening(n) @ sums` of one part, divided by its `noise_scales`, has independent noise of
        deviation 1, if the door adds the noise that it states.
        """
        correlation = self.release.correlation
        if correlation.kind == "independent":
            return sparse.eye_array(releases)
        if correlation.kind == "binary-tree":
            return np.linalg.inv(binary_tree.noising_rows(0, releases))
        column = correlated.strategy_coefficients(correlation, self.release.horizon)
        return toeplitz(column[:releases], np.zeros(releases))

    @property
    def _shown(self) -> Release:
        """The release whose log also holds all that is released."""

        def server(state: Any, released: Any) -> tuple[Any, Any]:
            after, log = self.release.server(state, released)
            return after, {"released": released, "log": log}

        return replace(self.release, server=server)

    def certified_epsilon(
        self, people: PyTree, present: Bool[np.ndarray, " people"], delta: float
    ) -> float:
        """Returns the ledger's epsilon for one run with noise from the operating system."""
        inputs = self.enrol(people, present)
        trials = ReleaseTrials(self.release, self.state, lambda _: inputs, np.asarray)
        return trials.certified_epsilon(delta)


def _in_order(
    release: Release, people: PyTree, present: Bool[np.ndarray, " people"]
) -> tuple[np.ndarray, PyTree]:
    """Fills the slots of one release after the other; absent people leave their slot empty."""
    releases = -(-present.size // release.slots)
    if releases > release.horizon:
        raise ValueError(
            f"{present.size} people do not fit into {release.horizon} releases of {release.slots} "
            "slots; give fewer, or an `enrol`"
        )
    room = releases * release.slots
    persons = np.full(room, -1)
    persons[: present.size] = np.where(present, np.arange(present.size), -1)

    def placed(leaf: Any) -> np.ndarray:
        rest = np.zeros((room - present.size, *np.shape(leaf)[1:]), np.asarray(leaf).dtype)
        filled = np.concatenate([np.asarray(leaf), rest])
        return filled.reshape(releases, release.slots, *filled.shape[1:])

    return persons.reshape(releases, release.slots), jax.tree.map(placed, people)
