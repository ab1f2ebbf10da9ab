"""Classes of an author's trees stay out of programs. JAX calls their code to fill a tree.

In a program they saw every person's data, the exact sum and the noise, under a proved certificate.
"""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sotto.keys import keys_of
from sotto.privacy.certificates.derive import derive
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.release.noise_shares import Promise, SharedRelease
from sotto.privacy.release.prefixes import _asked
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Part
from sotto.privacy.units import Unit

SLOTS = 4
SEEN: list[Any] = []
"""All that the classes below were given since `SEEN.clear()`."""


@jax.tree_util.register_pytree_node_class
class Node:
    """A tree of one array, which notes what is put into it and multiplies noise by zero."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def tree_flatten(self) -> Any:
        SEEN.append(self.x)
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, _aux: Any, children: Any) -> "Node":
        SEEN.append(children[0])
        traced = isinstance(children[0], jax.core.Tracer)
        return cls(children[0] * 0 if traced and children[0].dtype == jnp.int32 else children[0])


class _Pair(NamedTuple):
    x: Any


class Named(_Pair):
    """The same without a registration: JAX makes named tuples by their class."""

    def __new__(cls, x: Any) -> "Named":
        SEEN.append(x)
        return super().__new__(cls, x)


def release(**changes: Any) -> Release:
    """A sum of three numbers of each person, with noise of three clip norms."""
    return Release(
        name="update",
        local=local,
        server=server,
        unit=Unit(kind="trajectory", adjacency="zero-out"),
        parts={"u": Part(clip_norm=1.0, noise_multiplier=3.0)},
        slots=SLOTS,
        divisor=1.0,
        population="simulated",
        **changes,
    )


def local(state: Any, unit: Any, key: Any) -> Any:
    return {"u": type(unit)(unit.x + 0 * state.x)}, Node(unit.x)


def server(state: Any, released: Any) -> Any:
    return type(state)(state.x + 1), Node(released["u"].x)


@pytest.mark.parametrize("tree", [Node, Named])
def test_a_stream_gives_them_public_results_only(tmp_path: Path, tree: Any) -> None:
    budget = Budget(epsilon=10.0, delta=1e-5)
    made = release(horizon=50)
    ledger = Ledger.create(tmp_path / "ledger.sqlite", unit=made.unit, budget=budget)
    state, units = tree(jnp.zeros((1, 3))), tree(np.zeros((SLOTS, 3), np.float32))
    stream = made.open([ledger], state, units)
    persons = np.arange(50 * SLOTS).reshape(1, 50, SLOTS)
    data = tree(np.zeros((1, 50, SLOTS, 3), np.float32))
    SEEN.clear()
    after, log, _ = stream.run(state, keys_of([0], 1), persons, data)
    assert not [x for x in SEEN if isinstance(x, jax.core.Tracer)]
    assert (type(after), type(log)) == (tree, Node)
    assert float(np.asarray(after.x)[0, 0]) == 50
    assert derive(ledger).status == "proved"
    assert np.std(log.x) == pytest.approx(3.0, rel=0.3)  # it was 0: noise alone, 150 numbers


def test_a_device_gives_them_public_results_only() -> None:
    made = release(horizon=1)
    shared = SharedRelease(
        made, Promise(SLOTS, 0, 24), Node(jnp.zeros(3)), Node(jnp.zeros(3)), noise_seed=0
    )
    SEEN.clear()
    one = shared.contribution(Node(jnp.zeros(3)), Node(jnp.ones(3)), keys_of([0], 1)[0])
    shared.published(Node(jnp.zeros(3)), one)
    assert not [x for x in SEEN if isinstance(x, jax.core.Tracer)]


def test_a_poll_of_experts_gives_them_nothing() -> None:
    experts = Node(jnp.arange(6.0).reshape(6, 1))
    ask = _asked(lambda one, seen: jnp.int32(one.x + seen[:, 0]), experts, (1, 1), 9)
    SEEN.clear()
    chosen = ask(experts, np.ones((2, 1), np.float32))
    assert not [x for x in SEEN if isinstance(x, jax.core.Tracer)]
    assert np.asarray(chosen).reshape(6, 2).tolist() == [[n + 1] * 2 for n in range(6)]
