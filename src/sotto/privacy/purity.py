"""Refuses functions that could carry data past the door.

`local` and `server` must be pure: what they compute may depend on their arguments only, and one
person's `local` may not see another person. Both are traced to a jaxpr, whose every sub-program is
read, and it is that jaxpr which runs: the Python function is never called again. What tracing
cannot see (a Python number computed from private data before) is an assumption that the
certificate names.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex_core

_COLLECTIVES = frozenset(
    {"psum", "pmin", "pmax", "ppermute", "pbroadcast", "pgather", "axis_index", "psum_scatter"}
    | {"psum_invariant", "all_gather", "all_gather_invariant", "all_to_all", "reduce_scatter"}
)
_RULES = frozenset({"custom_vmap_call"})
_FOREIGN = frozenset({"ffi_call", "outside_call", "infeed", "outfeed"})


class ImpureFunction(ValueError):
    """A function given to the door could carry data past it."""


def require_pure(
    role: str, function: Callable[..., Any], *arguments: Any
) -> tuple[Callable[..., Any], Any]:
    """Traces `function` and refuses it unless it is pure.

    Args:
        role: what the function is called in the message, e.g. "local".
        function: the function.
        *arguments: example arguments, or their shapes (`jax.ShapeDtypeStruct`).

    Returns:
        The traced program as a function of the same arguments, for shapes equal to the example's
        only; and the shapes of what it returns.

    Raises:
        ImpureFunction: if it captures an array, calls back into Python, names a mapped axis,
            overrides how it is mapped over people, or has any other effect.
    """
    try:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    except NameError as error:  # jax: "unbound axis name"
        raise ImpureFunction(
            f"{role} uses a named axis ({error}); one person's function cannot see the others"
        ) from error
    if closed.effects:
        raise ImpureFunction(f"{role} has a side effect ({closed.effects}); it must be pure")
    for program in _programs(closed):
        for constant in _constants(program):
            _require_no_data(role, constant)
        for equation in program.jaxpr.eqns:
            _require_allowed(role, equation.primitive.name)
    accepted = signature(arguments)

    def checked(*given: Any) -> Any:
        if signature(given) != accepted:
            raise TypeError(f"{role} was checked for {accepted}, not {signature(given)}")
        outputs = jex_core.jaxpr_as_fun(closed)(*jax.tree.leaves(given))
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return checked, shapes


def signature(tree: Any) -> Any:
    """Structure, shapes and types of a tree of arrays or shapes, to compare with another's."""
    return jax.tree.structure(tree), [(x.shape, x.dtype) for x in jax.tree.leaves(tree)]


def _require_no_data(role: str, constant: Any) -> None:
    if isinstance(constant, jax.Array) or np.size(constant) > 1:
        raise ImpureFunction(
            f"{role} captures an array of shape {np.shape(constant)}; pass it in the public state "
            "if it is public, or as the unit's data if it is not"
        )


def _require_allowed(role: str, primitive: str) -> None:
    if "callback" in primitive or primitive in _FOREIGN:
        raise ImpureFunction(f"{role} calls code outside JAX ({primitive}); it must be pure")
    if primitive in _COLLECTIVES:
        raise ImpureFunction(f"{role} talks across a named axis ({primitive}); it must not")
    if primitive in _RULES:
        raise ImpureFunction(
            f"{role} overrides how it is mapped over people ({primitive}); use plain JAX functions"
        )


def _constants(program: jex_core.ClosedJaxpr) -> Iterator[Any]:
    """Everything that is written into a program, aside or in the place where it is used.

    Where an array goes is JAX's affair: `jax_use_simplified_jaxpr_constants` moves it.
    """
    yield from program.consts
    used = [*program.jaxpr.outvars, *(v for eqn in program.jaxpr.eqns for v in eqn.invars)]
    yield from (one.val for one in used if isinstance(one, jex_core.Literal))


def _programs(closed: jex_core.ClosedJaxpr) -> Iterator[jex_core.ClosedJaxpr]:
    """The program and every program inside it: loops, branches, jitted and custom-rule calls."""
    yield closed
    for equation in closed.jaxpr.eqns:
        for parameter in equation.params.values():
            for inner in parameter if isinstance(parameter, tuple | list) else (parameter,):
                if isinstance(inner, jex_core.ClosedJaxpr):
                    yield from _programs(inner)
                elif isinstance(inner, jex_core.Jaxpr):
                    yield from _programs(jex_core.ClosedJaxpr(inner, ()))
