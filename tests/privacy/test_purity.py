"""The door refuses functions that could carry data past it, and runs what it checked."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array

from sotto.privacy.release.purity import ImpureFunction, require_pure

VECTOR = jax.ShapeDtypeStruct((3,), jnp.float32)
PRIVATE = jnp.arange(3.0)
PRIVATE_NUMPY = np.arange(3.0, dtype=np.float32)
PRIVATE_KEY = jax.random.key(3)
REFERENCE = jax.new_ref(jnp.zeros(3))


def loop(body: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: jax.lax.scan(lambda c, _: (body(c), None), x, None, length=2)[0]


@jax.custom_batching.custom_vmap
def sees_the_others(x: Array) -> Array:
    return x


@sees_the_others.def_vmap
def _(_size: int, _batched: Any, x: Array) -> tuple[Array, bool]:
    return jnp.broadcast_to(x.sum(axis=0), x.shape), True


@jax.custom_jvp
def with_a_derivative(x: Array) -> Array:
    return x + PRIVATE


@with_a_derivative.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return with_a_derivative(*primals), tangents[0]


def write_reference(x: Array) -> Array:
    REFERENCE[...] = x
    return x


def print_it(x: Array) -> Array:
    jax.debug.print("{}", x)
    return x


def call_back(x: Array) -> Array:
    jax.debug.callback(lambda value: None, x)
    return x


def across_devices(x: Array) -> Array:
    mesh = Mesh(np.array(jax.devices()[:1]), ("i",))
    total: Array = jax.shard_map(
        lambda y: jax.lax.psum(y, "i"),
        mesh=mesh,
        in_specs=PartitionSpec("i"),
        out_specs=PartitionSpec(),
    )(x)
    return total


CAPTURES = {
    "array": lambda x: x + PRIVATE,
    "numpy": lambda x: x + PRIVATE_NUMPY,
    "one number of an array": lambda x: x + PRIVATE[0],
    "key": lambda x: x + jax.random.normal(PRIVATE_KEY, (3,)),
    "jit": lambda x: jax.jit(lambda y: y + PRIVATE)(x),
    "jit in jit": lambda x: jax.jit(lambda y: jax.jit(lambda z: z + PRIVATE_NUMPY)(y))(x),
    "scan": loop(lambda c: c + PRIVATE),
    "numpy in scan": loop(lambda c: c + PRIVATE_NUMPY),
    "jit in scan": loop(jax.jit(lambda c: c + PRIVATE)),
    "cond": lambda x: jax.lax.cond(x[0] > 0, lambda y: y + PRIVATE, lambda y: y, x),
    "while": lambda x: jax.lax.while_loop(lambda y: y[0] < 3, lambda y: y + PRIVATE, x),
    "condition": lambda x: (
        jax.lax.while_loop(lambda y: y[0] < PRIVATE_NUMPY[1:].max(), jnp.sin, x) + PRIVATE_NUMPY
    ),
    "remat": lambda x: jax.checkpoint(lambda y: jnp.sin(y) * PRIVATE)(x),
    "grad": jax.grad(lambda x: jax.checkpoint(lambda y: jnp.sin(y) * PRIVATE)(x).sum()),
    "vmap": lambda x: jax.vmap(lambda y: y + PRIVATE)(x),
    "custom rule": with_a_derivative,
}

IMPURE = {
    "psum": (lambda x: jax.lax.psum(x, "people"), "named axis"),
    "all_gather": (lambda x: jax.lax.all_gather(x, "people").sum(0), "named axis"),
    "axis_index": (lambda x: x + jax.lax.axis_index("people"), "named axis"),
    "psum in scan": (loop(lambda c: jax.lax.psum(c, "people")), "named axis"),
    "shard_map": (across_devices, "`shard_map`, which is not among"),
    "pure_callback": (
        lambda x: jax.pure_callback(lambda y: y, VECTOR, x),
        "not among the operations",
    ),
    "pure_callback in jit": (
        jax.jit(lambda x: jax.pure_callback(lambda y: y, VECTOR, x)),
        "not among the operations",
    ),
    "io_callback": (lambda x: io_callback(lambda y: y, VECTOR, x), "side effect"),
    "ffi": (lambda x: jax.ffi.ffi_call("anything", VECTOR)(x), "not among the operations"),
    "debug.print": (print_it, "side effect"),
    "debug.print in scan": (loop(print_it), "side effect"),
    "debug.callback": (call_back, "side effect"),
    "custom_vmap": (sees_the_others, "not among the operations"),
    "custom_vmap in jit": (jax.jit(sees_the_others), "not among the operations"),
    "custom_vmap in scan": (loop(sees_the_others), "not among the operations"),
    "reference written": (write_reference, "side effect"),
    "reference read": (lambda x: x + REFERENCE[...], "side effect"),
}


@pytest.mark.parametrize("role", ["local", "server"])
@pytest.mark.parametrize("function", CAPTURES.values(), ids=CAPTURES.keys())
def test_a_captured_array_is_refused(role: str, function: Callable[[Array], Array]) -> None:
    with pytest.raises(ImpureFunction, match=f"{role} captures an array") as refusal:
        require_pure(role, function, VECTOR)
    assert "\n" not in str(refusal.value)


@pytest.fixture
def written_in_place() -> Iterator[None]:
    """JAX writes arrays where they are used, instead of beside the program."""
    jax.config.update("jax_use_simplified_jaxpr_constants", True)
    try:
        yield
    finally:
        jax.config.update("jax_use_simplified_jaxpr_constants", False)


@pytest.mark.usefixtures("written_in_place")
@pytest.mark.parametrize("function", CAPTURES.values(), ids=CAPTURES.keys())
def test_a_captured_array_is_refused_wherever_it_is_written(
    function: Callable[[Array], Array],
) -> None:
    with pytest.raises(ImpureFunction, match="captures an array"):
        require_pure("server", function, VECTOR)
    with pytest.raises(ImpureFunction, match="captures an array"):
        require_pure("server", lambda x: (x, PRIVATE), VECTOR)


@pytest.mark.usefixtures("written_in_place")
def test_numbers_that_are_written_in_place_are_no_data() -> None:
    require_pure("local", lambda x: jnp.where(x > 0.5, x * 2, 0), VECTOR)


@pytest.mark.parametrize(("function", "why"), IMPURE.values(), ids=IMPURE.keys())
def test_whatever_reaches_out_is_refused(function: Callable[[Array], Array], why: str) -> None:
    with pytest.raises(ImpureFunction, match=why):
        require_pure("local", function, VECTOR)


def pure(state: dict[str, Array], x: Array) -> dict[str, Array]:
    """Control flow, randomness, derivatives, custom rules, inner loops over own data."""
    draw = jax.random.normal(jax.random.key(0), (3,))
    y = jax.nn.relu(x) * state["scale"] + jnp.arange(3) + jnp.eye(3) @ draw
    y = jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, y)
    y = loop(jax.jit(jnp.tanh))(y)
    y = jax.lax.while_loop(lambda z: z[0] > 0.1, lambda z: z / 2, y)
    slope = jax.grad(lambda z: jax.nn.logsumexp(jax.checkpoint(jax.nn.softmax)(z)))(y)
    return {"y": y + jax.vmap(lambda z: z * slope.sum())(x)}


def test_a_pure_function_passes_and_its_program_computes_the_same() -> None:
    state, x = {"scale": jnp.float32(2.0)}, jnp.array([0.3, -1.0, 2.0])
    checked, shapes = require_pure("local", pure, state, x)
    assert shapes["y"].shape == (3,)
    np.testing.assert_allclose(checked(state, x)["y"], pure(state, x)["y"], rtol=1e-4)
    batch = jnp.stack([x, -x])
    np.testing.assert_allclose(
        jax.jit(jax.vmap(checked, in_axes=(None, 0)))(state, batch)["y"][1],
        pure(state, -x)["y"],
        rtol=1e-4,
    )


def test_what_was_checked_is_what_runs() -> None:
    smuggled: list[Array] = []

    def changes_its_mind(x: Array) -> Array:
        return x + smuggled[0] if smuggled else x

    checked, _ = require_pure("local", changes_its_mind, VECTOR)
    smuggled.append(PRIVATE)
    np.testing.assert_array_equal(jax.jit(checked)(jnp.ones(3)), jnp.ones(3))


@pytest.mark.parametrize("given", [jnp.ones(4), jnp.ones(3, dtype=jnp.int32), (jnp.ones(3),)])
def test_a_program_does_not_run_on_what_it_was_not_checked_for(given: Any) -> None:
    checked, _ = require_pure("local", jnp.sin, VECTOR)
    with pytest.raises(TypeError, match="was checked for"):
        checked(given)
