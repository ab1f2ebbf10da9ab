"""Refuses functions that could carry data past the door.

`local` and `server` must be pure: their results may depend on their arguments only, and one
person's `local` may not see another person. Both are traced to a jaxpr. All of its sub-programs are
read, and the jaxpr is the program that runs. The Python function is never called again. The classes
of an author's trees are code too, which JAX calls to fill a tree: `Release.traced` and others trace
functions of the trees' leaves, so that such a class is called within the trace and not afterwards.

A program passes if everything in it is understood. Every operation is on the list of `primitives`.
Every value is a plain array or a key of `keys`. Every constant is a single number. The parameters
of operations are numbers, names, types and programs, which are read in the same way. Tracing cannot
see a Python number that was computed from private data before; the certificate names this as an
assumption.
"""

import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.core import DebugInfo, JaxprEqnContext, ShapedArray
from jax._src.mesh import AbstractMesh, Mesh
from jax._src.named_sharding import NamedSharding, UnspecifiedValue
from jax._src.source_info_util import SourceInfo
from jax.extend import core as jex_core

from sotto.errors import CodeFailed
from sotto.keys import KEY
from sotto.modules import is_defined_in
from sotto.privacy.release import primitives


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
        ImpureFunction: if it captures an array, holds an operation that is not on the list, draws
            random numbers from keys of another kind, has a side effect, or holds anything that is
            not understood; or if JAX's rules for its operations have been replaced. The program
            is read again whenever it is traced to be compiled.
    """
    try:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    except (NameError, CodeFailed) as error:
        cause = error.__cause__ or error
        if not isinstance(cause, NameError) or "unbound axis name" not in str(cause):
            raise
        raise ImpureFunction(
            f"{role} uses a named axis ({cause}); one person's function cannot see the others"
        ) from error
    _require_pure_program(role, closed)
    accepted = signature(arguments)

    def checked(*given: Any) -> Any:
        if signature(given) != accepted:
            raise TypeError(f"{role} was checked for {accepted}, not {signature(given)}")
        _require_pure_program(role, closed)  # whoever traced it too could have changed it since
        outputs = jex_core.jaxpr_as_fun(closed)(*jax.tree.leaves(given))
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return checked, shapes


def signature(tree: Any) -> Any:
    """Returns structure, shapes and types of a tree of arrays or shapes, for comparison."""
    return jax.tree.structure(tree), [(x.shape, x.dtype) for x in jax.tree.leaves(tree)]


def _require_pure_program(role: str, closed: jex_core.ClosedJaxpr) -> None:
    if closed.effects:
        raise ImpureFunction(f"{role} has a side effect ({closed.effects}); it must be pure")
    operations: dict[int, jex_core.Primitive] = {}
    for program in _programs(role, closed):
        _require_understood(role, program)
        operations |= {id(one.primitive): one.primitive for one in program.jaxpr.eqns}
    _require_rules_of_jax(role, operations.values())


def _require_understood(role: str, program: jex_core.ClosedJaxpr) -> None:
    """Refuses what one program holds, leaving out the programs inside it."""
    jaxpr = program.jaxpr
    for part, kind in _parts_of(jaxpr):  # any other class has methods that JAX would call
        if type(part) is not kind:
            raise ImpureFunction(
                f"{role} holds a {type(part).__name__} where a program has a {kind.__name__}; "
                "write it with functions of JAX"
            )
    for primitive in (one.primitive for one in jaxpr.eqns):
        if not primitives.is_allowed(primitive):
            raise ImpureFunction(
                f"{role} uses `{primitive}`, which is not among the operations known to be pure "
                "and to treat every person alone; write it with other functions of JAX"
            )
    for constant in _constants(program):
        _require_no_data(role, constant)
    for variable in (*jaxpr.invars, *jaxpr.constvars, *(v for e in jaxpr.eqns for v in e.outvars)):
        _require_plain_type(role, variable.aval)
    for equation in jaxpr.eqns:
        if equation.effects:
            raise ImpureFunction(f"{role} has a side effect ({equation.effects}); it must be pure")
        if _says_how_to_compile(equation):
            raise ImpureFunction(
                f"{role} says where or how `{equation.primitive}` is to be compiled; leave that out"
            )


def _parts_of(jaxpr: jex_core.Jaxpr) -> Iterator[tuple[Any, type]]:
    """Yields what a program consists of, each with the class that it must have."""
    yield from ((one, list) for one in (jaxpr.invars, jaxpr.constvars, jaxpr.outvars, jaxpr.eqns))
    yield jaxpr.debug_info, DebugInfo
    for equation in jaxpr.eqns:
        yield equation, jex_core.JaxprEqn
        yield from ((equation.invars, list), (equation.outvars, list), (equation.params, dict))
        yield equation.ctx, JaxprEqnContext
        yield equation.source_info, SourceInfo


def _says_how_to_compile(equation: jex_core.JaxprEqn) -> bool:
    context = equation.ctx
    return bool(context.compute_type or context.xla_metadata or not context.cur_abstract_mesh.empty)


def _require_no_data(role: str, constant: Any) -> None:
    if isinstance(constant, jax.Array) or np.size(constant) > 1:
        raise ImpureFunction(
            f"{role} captures an array of shape {np.shape(constant)}; pass it in the public state "
            "if it is public, or as the unit's data if it is not"
        )
    if np.asarray(constant).dtype.kind not in _NUMBERS:
        raise ImpureFunction(f"{role} captures a {type(constant).__name__}; use numbers only")


_NUMBERS = "biufcV"
"""Kinds of numpy types: truth values, numbers, and small floats such as bfloat16."""


def _require_plain_type(role: str, aval: Any) -> None:
    if type(aval) is not ShapedArray or not aval.sharding.mesh.empty:
        raise ImpureFunction(f"{role} computes with {aval}, which is not a plain array; use arrays")
    if jnp.issubdtype(aval.dtype, jax.dtypes.extended) and not _is_our_key(aval.dtype):
        raise ImpureFunction(
            f"{role} computes with {aval.dtype}; random keys must be threefry2x32, whose numbers "
            "do not depend on other people's keys (jax.random.key(seed, impl='threefry2x32'))"
        )


def _is_our_key(dtype: Any) -> bool:
    return getattr(dtype, "_impl", None) is KEY.dtype._impl


def _require_rules_of_jax(role: str, used: Iterable[jex_core.Primitive]) -> None:
    for primitive in used:
        if not primitives.has_rules_of_jax(primitive):
            raise ImpureFunction(
                f"{role} uses `{primitive}`, for which JAX's rules have been replaced; it must be "
                "mapped over people and compiled as JAX does it"
            )


def _constants(program: jex_core.ClosedJaxpr) -> Iterator[Any]:
    """Yields all constants of a program, whether listed apart or at their place of use.

    Where an array goes is JAX's affair: `jax_use_simplified_jaxpr_constants` moves it.
    """
    yield from program.consts
    used = [*program.jaxpr.outvars, *(v for eqn in program.jaxpr.eqns for v in eqn.invars)]
    yield from (one.val for one in used if isinstance(one, jex_core.Literal))


def _programs(role: str, closed: jex_core.ClosedJaxpr) -> Iterator[jex_core.ClosedJaxpr]:
    """Yields the program and every program in the parameters of its listed operations.

    One is handed out, and may be refused, before it is looked into.
    """
    yield closed
    for equation in closed.jaxpr.eqns:
        primitive = equation.primitive
        uncalled = primitives.UNCALLED.get(id(primitive), frozenset())
        for name, value in equation.params.items():
            if name not in uncalled:
                for inner in _programs_in(role, f"`{name}` of `{primitive}`", value):
                    yield from _programs(role, inner)


def _programs_in(role: str, where: str, value: Any) -> Iterator[jex_core.ClosedJaxpr]:
    """Yields the programs that a parameter holds; refuses any other value that is not plain."""
    if _is_plain(value):
        return
    if type(value) is jex_core.ClosedJaxpr:
        yield value
    elif type(value) is jex_core.Jaxpr and not value.constvars:
        yield jex_core.ClosedJaxpr(value, ())
    elif type(value) is tuple or (isinstance(value, tuple) and _is_of_jax(value)):
        for one in value:
            yield from _programs_in(role, where, one)
    else:
        raise ImpureFunction(
            f"{role} holds a {type(value).__name__} as {where}, which is not understood; "
            "write it with other functions of JAX"
        )


_PLAIN = (type(None), bool, int, float, complex, str)
_NUMPY = frozenset(k for k in np.sctypeDict.values() if issubclass(k, np.number | np.bool))


def _is_plain(value: Any) -> bool:
    """Whether a parameter is a number, a name, a choice, a type, or a placement left open.

    `select_and_gather_add` names the comparison it chooses by: a listed operation is plain too.
    """
    return (
        type(value) in _PLAIN
        or type(value) in _NUMPY
        or isinstance(value, np.dtype)
        or (isinstance(value, enum.Enum) and _is_of_jax(value))
        or type(value) is UnspecifiedValue
        or (type(value) in (Mesh, AbstractMesh) and value.empty)
        or (type(value) is NamedSharding and value.mesh.empty)
        or primitives.is_allowed(value)
        or _is_our_key(value)
        or value is KEY.dtype._impl
    )


def _is_of_jax(value: Any) -> bool:
    return is_defined_in(type(value), "jax", "jaxlib")
