"""Trees of arrays with a leading axis, such as the states of several runs."""

from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

Tree = TypeVar("Tree")


def at(tree: Tree, index: Any) -> Tree:
    """Returns the rows with this index, of every array."""
    rows: Tree = jax.tree.map(lambda x: x[index], tree)
    return rows


def leaves_of(tree: Any) -> tuple[Any, ...]:
    """Returns the arrays of a tree, without the tree's own classes."""
    return tuple(jax.tree.leaves(tree))


def like(tree: Any, leaves: Sequence[Any]) -> Any:
    """Returns a tree as this one with other arrays, one after the other."""
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


def single(tree: Tree) -> Tree:
    """Returns the tree with a leading axis of 1."""
    row: Tree = jax.tree.map(lambda x: jnp.asarray(x)[None], tree)
    return row


def repeated(tree: Tree, count: int) -> Tree:
    """Returns a tree with `count` equal rows."""
    rows: Tree = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *jnp.shape(x))), tree)
    return rows


def flattened(tree: Tree) -> Tree:
    """Returns the tree with one leading axis in place of two."""
    rows: Tree = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)
    return rows


def stacked(trees: Sequence[Tree]) -> Tree:
    """Returns one tree, whose rows are the given ones."""
    rows: Tree = jax.tree.map(lambda *row: jnp.stack(row), *trees)
    return rows
