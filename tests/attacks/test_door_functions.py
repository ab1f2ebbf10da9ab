"""Ways past the door through a function that is handed to it: each is refused by name.

And every operation that is let through is tried on neighbouring batches of people.
"""

import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src import core
from jax._src.interpreters import batching, mlir
from jax._src.lax import lax as internal
from jax._src.lax import linalg, slicing, windowed_reductions
from jax.experimental import pallas
from jax.experimental.compute_on import compute_on
from jax.experimental.hijax import VJPHiPrimitive
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import primitives as jp
from jax.extend.random import threefry_2x32
from jaxtyping import Array

from sotto.keys import new_key
from sotto.privacy.release import primitives, purity
from sotto.privacy.release.purity import ImpureFunction, require_pure

D = 6
VECTOR = jax.ShapeDtypeStruct((D,), jnp.float32)
PRIVATE = np.arange(64, dtype=np.float32)
UNLISTED = "not among the operations known"

# --- what was found ------------------------------------------------------------------------------


def own_primitive(name: str) -> core.Primitive:
    """Somebody's own operation: under `vmap` each person gets the sum of all."""
    mine = core.Primitive(name)
    mine.def_impl(lambda x: x)
    mine.def_abstract_eval(lambda x: x)
    mlir.register_lowering(mine, lambda ctx, x: [x])
    batching.primitive_batchers[mine] = lambda xs, dims: (
        mine.bind(jnp.broadcast_to(xs[0].sum(dims[0], keepdims=True), xs[0].shape)),
        dims[0],
    )
    return mine


class SaysItIsAddition(core.Primitive):
    def __eq__(self, other: object) -> bool:
        return other is jp.add_p or other is self

    def __hash__(self) -> int:
        return hash(jp.add_p)


SAYS_IT_IS_ADDITION = SaysItIsAddition("add")
SAYS_IT_IS_ADDITION.def_abstract_eval(lambda x: x)


class Hidden(np.ndarray):  # JAX takes hashable parameters only
    def __hash__(self) -> int:  # type: ignore[override]
        return 0

    def __eq__(self, other: object) -> bool:  # type: ignore[override]
        return self is other


class High(VJPHiPrimitive):  # type: ignore[misc]
    def __init__(self) -> None:
        aval = jax.typeof(jnp.zeros(D))
        self.in_avals, self.out_aval, self.params = (aval,), aval, {}
        super().__init__()

    def expand(self, x: Array) -> Array:
        return x

    def batch(self, _axis_data: Any, args: Any, dims: Any) -> Any:
        return jnp.broadcast_to(args[0].sum(0), args[0].shape), dims[0]


def kernel_with_scratch(x: Array) -> Array:
    def kernel(x_ref: Any, out_ref: Any, scratch: Any) -> None:
        out_ref[...] = x_ref[...] + scratch[...]
        scratch[...] = x_ref[...]

    call = pallas.pallas_call(
        kernel,
        out_shape=VECTOR,
        scratch_shapes=[pallas.MemoryRef(jax.core.ShapedArray((D,), jnp.float32), pallas.ANY)],
        interpret=True,
    )
    out: Array = call(x)
    return out


def exported(x: Array) -> Array:
    program = jax.export.export(jax.jit(lambda y: y + PRIVATE[:D]))(VECTOR)
    out: Array = program.call(x)
    return out


def random_with(impl: str | None) -> Callable[[Array], Array]:
    def draw(x: Array) -> Array:
        seed = lax.bitcast_convert_type(x[0], jnp.uint32)
        if impl is None:
            with jax.default_prng_impl("rbg"):
                return jax.random.normal(jax.random.PRNGKey(seed), (D,))
        return jax.random.normal(jax.random.key(seed, impl=impl), (D,))

    return draw


def with_metadata(x: Array) -> Array:
    with set_xla_metadata(anything="1"):
        return x + 1


def with_reference(x: Array) -> Array:
    cell = jax.new_ref(x)
    cell[...] = x * 2
    out: Array = cell[...]
    return out


HANDED: list[Any] = []

BYPASSES: dict[str, tuple[Callable[[Array], Any], str]] = {
    "noinline": (eqx.internal.noinline(lambda x: (HANDED.append(x), x)[1]), "`noinline`"),
    "unvmap_max": (lambda x: x * eqx.internal.unvmap_max(x), "`unvmap_max`"),
    "unvmap_any": (lambda x: x * eqx.internal.unvmap_any(x > 0), "`unvmap_any`"),
    "unvmap_all": (lambda x: x * eqx.internal.unvmap_all(x > 0), "`unvmap_all`"),
    "nonbatchable": (eqx.internal.nonbatchable, "`nonbatchable`"),
    "rng_bit_generator": (
        lambda x: lax.rng_bit_generator(lax.bitcast_convert_type(x[:4], jnp.uint32), (D,))[1],
        "`rng_bit_generator`",
    ),
    "rng_uniform": (lambda x: internal.rng_uniform(x[0], x[1], (D,)), "`rng_uniform`"),
    "rbg key": (random_with("rbg"), "threefry2x32"),
    "unsafe_rbg key": (random_with("unsafe_rbg"), "threefry2x32"),
    "rbg by default": (random_with(None), "threefry2x32"),
    "VJPHiPrimitive": (lambda x: High()(x), "`call_hi_primitive"),
    "own primitive": (own_primitive("add").bind, "`add`, which is " + UNLISTED),
    "own primitive, equal": (SAYS_IT_IS_ADDITION.bind, UNLISTED),
    "pallas": (kernel_with_scratch, "`pallas_call`"),
    "export": (exported, "`call_exported`"),
    "reference": (with_reference, "side effect"),
    "incomplete beta": (lambda x: jax.scipy.special.betainc(x, x, x), "`regularized_incomplete"),
    "reduce": (lambda x: lax.reduce(x, 1.0, lambda a, b: a - b, (0,)), "`reduce`"),
    "metadata": (with_metadata, "how"),
    "elsewhere": (compute_on("device_host")(jax.jit(lambda x: x + 1)), "how"),
    "array as parameter": (lambda x: jp.name_p.bind(x, name=PRIVATE.view(Hidden)), "`name` of"),
    "array in parameter": (
        lambda x: jp.name_p.bind(x, name=(0, (PRIVATE.view(Hidden),))),
        "`name`",
    ),
    "function as parameter": (lambda x: jp.name_p.bind(x, name=HANDED.append), "not understood"),
    "number of one's own": (
        lambda x: jp.name_p.bind(x, name=type("N", (int,), {})(3)),
        "of `name`",
    ),
    "policy": (
        lambda x: jax.checkpoint(jnp.sin, policy=lambda *_, **__: HANDED.append(0))(x),
        "`policy` of",
    ),
}


@pytest.mark.parametrize("role", ["local", "server"])
@pytest.mark.parametrize(("function", "why"), BYPASSES.values(), ids=BYPASSES.keys())
@pytest.mark.parametrize("depth", ["bare", "inside"])
def test_a_way_past_the_list_is_refused(
    role: str, function: Callable[[Array], Any], why: str, depth: str
) -> None:
    def inside(x: Array) -> Array:
        body = jax.jit(lambda c, _: (c, function(c)))
        out: Array = lax.cond(x[0] > 0, lambda: lax.scan(body, x, None, length=2)[0], lambda: x)
        return out

    with pytest.raises(ImpureFunction, match=why) as refusal:
        require_pure(role, inside if depth == "inside" else function, VECTOR)
    assert role in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_program_does_not_say_how_it_is_compiled() -> None:
    fast = jax.jit(lambda x: x + 1, compiler_options={"xla_cpu_enable_fast_math": True})
    with pytest.raises(ValueError, match="only be passed to top-level"):  # JAX sees to that
        require_pure("local", fast, VECTOR)


class Axis(np.int64):
    """A number that an operation's batching rule compares with others."""


class Branches(tuple[Any, ...]):
    """A tuple that says of itself that it is JAX's, and may give other programs the second time."""

    __module__ = "jax.branches"


class Context:
    """Takes part in the evaluation of an equation."""

    compute_type = xla_metadata = None
    cur_abstract_mesh = jax.sharding.AbstractMesh((), ())


def of_an_axis(x: Array) -> Array:
    return jp.cumsum_p.bind(x, axis=Axis(0), reverse=False)  # type: ignore[no-any-return]


def of_branches(x: Array) -> Array:
    pure = jax.make_jaxpr(lambda x: x * 1.0)(x)
    (out,) = jp.cond_p.bind(jnp.int32(x[0] > 0), x, branches=Branches((pure, pure)))
    return out  # type: ignore[no-any-return]


def of_a_context(x: Array) -> Array:
    pure = jax.make_jaxpr(lambda x: x * 1.0)(x).jaxpr
    own = core.ClosedJaxpr(pure.replace(eqns=[pure.eqns[0].replace(ctx=Context())]), ())
    (out,) = jp.cond_p.bind(jnp.int32(x[0] > 0), x, branches=(own, own))
    return out  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("function", "holds"),
    [(of_an_axis, "Axis"), (of_branches, "Branches"), (of_a_context, "Context")],
)
def test_a_class_that_stands_in_for_jaxs_is_refused(
    function: Callable[..., Any], holds: str
) -> None:
    """Its methods would run within the program, in view of everybody's data and of the noise."""
    with pytest.raises(ImpureFunction, match=f"local holds a {holds} "):
        require_pure("local", function, VECTOR)


def sums_all(xs: Any, dims: Any, **params: Any) -> Any:
    return jnp.broadcast_to(xs[0].sum(0), xs[0].shape), dims[0]


REPLACED: dict[str, Callable[[], None]] = {
    "batching rule": lambda: batching.primitive_batchers.__setitem__(jp.sin_p, sums_all),
    "batching rule, bare": lambda: batching.fancy_primitive_batchers.__setitem__(
        jp.sin_p, lambda _, xs, dims, **__: sums_all(xs, dims)
    ),
    "batching rule, in a part": lambda: batching.fancy_primitive_batchers.__setitem__(
        jp.sin_p, functools.partial(batching.vectorized_batcher, HANDED.append)
    ),
    "rule of another operation": lambda: batching.fancy_primitive_batchers.__setitem__(
        jp.sin_p, batching.fancy_primitive_batchers[jp.psum_p]
    ),
    "lowering": lambda: mlir.register_lowering(jp.sin_p, lambda ctx, x, **_: [x]),
    "lowering for one platform": lambda: mlir.register_lowering(
        jp.sin_p, lambda ctx, x, **_: [x], platform="cuda"
    ),
}


@pytest.fixture
def rules_put_back() -> Iterator[None]:
    tables: list[Any] = [batching.fancy_primitive_batchers, mlir._lowerings]
    tables += mlir._platform_specific_lowerings.values()
    kept = [table.get(jp.sin_p) for table in tables]
    yield
    for table, rule in zip(tables, kept, strict=True):
        table.pop(jp.sin_p, None)
        if rule is not None:
            table[jp.sin_p] = rule
    for table in mlir._platform_specific_lowerings.values():
        if not any(table is one for one in tables):
            table.pop(jp.sin_p, None)


@pytest.mark.usefixtures("rules_put_back")
@pytest.mark.parametrize("replace", REPLACED.values(), ids=REPLACED.keys())
def test_replaced_rules_are_refused(replace: Callable[[], None]) -> None:
    checked, _ = require_pure("local", lambda x: jax.jit(jnp.sin)(x), VECTOR)
    replace()
    with pytest.raises(ImpureFunction, match="`sin`, for which JAX's rules have been replaced"):
        require_pure("local", lambda x: jax.jit(jnp.sin)(x), VECTOR)
    with pytest.raises(ImpureFunction, match="`sin`, for which"):  # and what was checked before
        jax.jit(jax.vmap(checked))(jnp.ones((3, D)))


def test_a_program_that_is_changed_after_it_was_checked_does_not_run() -> None:
    """Programs of inner calls are shared: whoever traces the same function holds the same one."""
    inner = jax.jit(jnp.sin)
    checked, _ = require_pure("local", lambda x: inner(x), VECTOR)
    (call,) = jax.make_jaxpr(lambda x: inner(x))(VECTOR).jaxpr.eqns
    shared = call.params["jaxpr"].jaxpr
    mixing = own_primitive("sin")
    try:
        shared.eqns[:] = [one.replace(primitive=mixing, params={}) for one in shared.eqns]
        with pytest.raises(ImpureFunction, match=UNLISTED):
            jax.jit(jax.vmap(checked))(jnp.ones((3, D)))
    finally:
        jax.clear_caches()


# --- every operation there is --------------------------------------------------------------------

ALLOWED = {id(one): one for one in primitives.ALLOWED}
EVERY = [one for one in gc.get_objects() if isinstance(one, core.Primitive)]


def test_the_list_holds_each_operation_once_and_all_are_of_jax() -> None:
    assert len(ALLOWED) == len(primitives.ALLOWED)
    names = {one.name for one in primitives.ALLOWED}
    assert len(names) == len(ALLOWED)
    assert all(primitives.has_rules_of_jax(one) for one in primitives.ALLOWED)
    assert jax.__version__ == primitives.REVIEWED_JAX


def test_every_operation_is_listed_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    registered = {*batching.fancy_primitive_batchers, *mlir._lowerings}
    found = {id(one): one for one in [*EVERY, *registered]}
    assert len(found) > 280
    assert ALLOWED.keys() <= found.keys()
    closed, shape = jax.make_jaxpr(jnp.sin, return_shape=True)(VECTOR)
    for primitive in found.values():
        equation = closed.jaxpr.eqns[0].replace(primitive=primitive)
        program = core.ClosedJaxpr(closed.jaxpr.replace(eqns=[equation]), ())
        monkeypatch.setattr(jax, "make_jaxpr", lambda *_, p=program, **__: lambda *_: (p, shape))
        if id(primitive) in ALLOWED:
            require_pure("local", jnp.sin, VECTOR)
        else:
            with pytest.raises(ImpureFunction, match=UNLISTED):
                require_pure("local", jnp.sin, VECTOR)


# Functions of one person's vector, another one, and whole numbers; together they hold the list.


def unary(x: Array, y: Array, n: Array) -> Any:
    small = jnp.tanh(x) * 0.9
    plain = (
        *(jnp.abs, lax.acos, lax.asin, lax.atan, lax.atanh, lax.asinh, lax.cbrt, lax.ceil, lax.cos),
        *(lax.cosh, lax.digamma, lax.erf_inv, lax.erf, lax.erfc, lax.exp2, lax.exp, lax.expm1),
        *(lax.floor, lax.is_finite, lax.lgamma, lax.log1p, lax.log, lax.logistic, lax.neg),
        *(lax.round, lax.rsqrt, lax.sign, lax.sin, lax.sinh, lax.sqrt, lax.square, lax.tan),
        *(lax.tanh, lax.bessel_i0e, lax.bessel_i1e, lax.stop_gradient, jp.copy_p.bind),
        *(lambda v: lax.integer_pow(v, 3), lambda v: lax.reduce_precision(v, 5, 7)),
        lambda v: lax.acosh(1 + lax.abs(v)),
    )
    whole = (lax.clz, lax.bitwise_not, lax.population_count)
    return [one(small) for one in plain], [one(x) for one in plain], [one(n) for one in whole]


def binary(x: Array, y: Array, n: Array) -> Any:
    above = lax.abs(x) + 0.5
    plain = (
        *(lax.add, lax.sub, lax.mul, lax.div, lax.atan2, lax.max, lax.min, lax.rem, lax.nextafter),
        *(lax.eq, lax.ne, lax.ge, lax.gt, lax.le, lax.lt, jp.add_jaxvals_p.bind, jp.eq_to_p.bind),
        *(jp.le_to_p.bind, jp.lt_to_p.bind, lambda a, b: lax.pow(lax.abs(a), b)),
    )
    whole = (
        *(lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor, lax.shift_left, internal.mulhi),
        *(lax.shift_right_arithmetic, lax.shift_right_logical),
    )
    special = (lax.igamma, lax.igammac, lax.igamma_grad_a, lax.polygamma, lax.zeta)
    one_of = lax.select_n(n % 2 == 0, x, y)
    return (
        [one(x, y) for one in plain],
        [one(n, n[::-1]) for one in whole],
        [one(above, lax.abs(y)) for one in special],
        (one_of, lax.clamp(-1.0, x, 1.0), n.astype(jnp.float32)),
        lax.bitcast_convert_type(x, jnp.int32),
    )


def complex_numbers(x: Array, y: Array, n: Array) -> Any:
    z = lax.complex(x, y)
    return lax.real(z * z), lax.imag(lax.conj(z)), jnp.abs(jnp.fft.fft(z)), jnp.fft.irfft(z)


def shapes(x: Array, y: Array, n: Array) -> Any:
    square = jnp.outer(x, y)
    return (
        *(square.T[::-1], jnp.concatenate([x, y])[1:9:2], lax.pad(x, y[0], [(1, 2, 1)])),
        *(square.reshape(4, 9), lax.squeeze(x[None], (0,)), lax.iota(jnp.int32, 3)),
        *(internal.split_p.bind(x, sizes=(2, 4), axis=0), internal.stack_p.bind(x, y, axis=0)),
        *(internal.unstack_p.bind(square, axis=0), internal.tile_p.bind(x, reps=(2,))),
    )


def indices(x: Array, y: Array, n: Array) -> Any:
    """People choose the indices, out of bounds too, under every promise there is."""
    modes = ("clip", "fill", "promise_in_bounds")
    square = jnp.outer(x, y)
    taken = [
        v.at[n].get(mode=m, unique_indices=u, indices_are_sorted=s)
        for v in (x, square)
        for m in modes
        for u, s in ((False, False), (True, True))
    ]
    put = [
        getattr(v.at[n], how)(y, mode=m)
        for v in (x, square)
        for m in modes
        for how in ("set", "add", "subtract", "multiply", "min", "max")
    ]
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    less = slicing.scatter_sub(x, n[:, None], y, numbers)
    moved = lax.dynamic_update_slice(x, y[:2], (n[0],)), lax.dynamic_slice(x, (n[1],), (3,))
    return taken, put, less, moved


def reductions(x: Array, y: Array, n: Array) -> Any:
    square, sure = jnp.outer(x, y), x > 0
    return (
        *(jnp.argmax(square, 0), jnp.argmin(square, 1), jnp.all(sure), jnp.any(sure)),
        *(jnp.max(square, 0), jnp.min(square, 0), jnp.prod(x), jnp.sum(square, 1)),
        *(lax.reduce_xor(n, (0,)), lax.cumlogsumexp(x), lax.cummax(x), lax.cummin(x)),
        *(lax.cumprod(x), lax.cumsum(square, 1), lax.sort((n, x), num_keys=1), lax.top_k(x, 3)),
    )


def windows(x: Array, y: Array, n: Array) -> Any:
    square = jnp.outer(x, y)

    def over(start: float, how: Callable[..., Array]) -> Callable[[Array], Array]:
        return lambda v: lax.reduce_window(v, start, how, (2, 2), (2, 2), "VALID")

    largest = over(-jnp.inf, lax.max)
    _, tangent = jax.jvp(largest, (square,), (square.T,))
    gathered = windowed_reductions._select_and_gather_add(
        square, square.T, lax.ge_p, (2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1), (1, 1)
    )
    return (
        *(largest(square), over(jnp.inf, lax.min)(square), over(0.0, lax.add)(square)),
        *(jax.grad(lambda v: largest(v).sum())(square), tangent, gathered),
    )


def algebra(x: Array, y: Array, n: Array) -> Any:
    square = jnp.outer(x, y)
    definite = jnp.outer(x, x) + jnp.eye(D) * 3
    lower = lax.linalg.cholesky(definite)
    _, pivots, order = lax.linalg.lu(square + jnp.eye(D) * 3)
    reflectors, taus = linalg.geqrf(definite)
    return (
        *(jnp.dot(square, definite, precision="highest"), x @ y, lower, order),
        *(lax.linalg.triangular_solve(lower, x[:, None], left_side=True, lower=True),),
        *(linalg.lu_pivots_to_permutation(pivots, D), jnp.linalg.solve(definite, y)),
        *(lax.linalg.householder_product(reflectors, taus),),
        *(lax.conv(square[None, None], definite[None, None, :2, :3], (1, 1), "SAME"),),
    )


def randomness(x: Array, y: Array, n: Array) -> Any:
    key = jax.random.fold_in(new_key(n[0]), n[1])
    one, two = jax.random.split(key)
    data = jax.random.key_data(jax.random.clone(two))
    again = jax.random.wrap_key_data(data, impl="threefry2x32")
    return (
        *(jax.random.normal(one, (D,)), jax.random.gamma(two, jnp.abs(x) + 0.5), data),
        *(jax.random.categorical(again, x), jax.random.poisson(one, jnp.abs(y)[:2])),
        threefry_2x32(data, n.astype(jnp.uint32)),
    )


@jax.custom_jvp
def with_a_rule(x: Array) -> Array:
    return jnp.sin(x)


@with_a_rule.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return with_a_rule(*primals), tangents[0]


@jax.custom_vjp
def with_two_rules(x: Array) -> Array:
    return jnp.cos(x)


with_two_rules.defvjp(lambda x: (jnp.cos(x), x), lambda kept, g: (g * kept,))


def calls(x: Array, y: Array, n: Array) -> Any:
    """Branches and loops that go on for a person as long as that person's numbers say."""
    kept = jax.checkpoint(
        lambda v: lax.scan(lambda c, _: (jnp.sin(c) * c, ()), v, None, 3)[0].sum()
    )
    slow = lax.while_loop(lambda v: jnp.sum(jnp.abs(v)) > 0.01, lambda v: v * 0.7, jnp.tanh(x))
    return (
        *(lax.cond(x[0] > 0, jnp.sin, jnp.cos, y), slow, with_a_rule(x), with_two_rules(y)),
        *(lax.scan(lambda c, v: (c * 0.5 + v, c), x[0], y), jax.jit(jnp.tanh)(x)),
        *(jax.checkpoint(jnp.sin)(x), jax.grad(lambda v: jax.checkpoint(jnp.sin)(v).sum())(x)),
        *(
            jp.name_p.bind(x, name="x"),
            lax.optimization_barrier((x, y)),
            jax.device_put(x),
            lax.map(jnp.sin, y),
        ),
        *(jax.grad(kept)(x), jax.hessian(kept)(y)),
        lax.fori_loop(0, n[0] % 5, lambda _, v: v + y, x),
    )


EXAMPLES = (
    *(unary, binary, complex_numbers, shapes, indices, reductions, windows, algebra, randomness),
    calls,
)
ONE = (VECTOR, VECTOR, jax.ShapeDtypeStruct((D,), jnp.int32))
PEOPLE = 5


def crowd(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    source = np.random.default_rng(seed)
    x, y = source.normal(size=(2, PEOPLE, D)).astype(np.float32)
    return x, y, source.integers(-2, D + 2, (PEOPLE, D)).astype(np.int32)


def with_first_person(how: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same people but the first: poison, extremes, somebody slow, far out of bounds."""
    x, y, n = crowd(0)
    number = {"nan": np.nan, "infinite": np.inf, "huge": 3e38, "zero": 0.0, "large": 1e4}[how]
    x[0] = y[0] = number
    n[0] = {"nan": 2**31 - 1, "infinite": -(2**31), "huge": D + 1, "zero": 0, "large": -D}[how]
    return x, y, n


def require_alone(function: Callable[..., Any], in_axes: tuple[int | None, ...]) -> None:
    """Nobody's results move, by a bit, when the first person becomes somebody else."""
    program = jax.jit(jax.vmap(function, in_axes=in_axes, axis_size=PEOPLE))

    def run(people: Any) -> list[np.ndarray]:
        given = [
            v if axis == 0 else crowd(0)[i][1]
            for i, (v, axis) in enumerate(zip(people, in_axes, strict=True))
        ]
        return [np.asarray(leaf) for leaf in jax.tree.leaves(program(*given))]

    before = run(crowd(0))
    for how in ("nan", "infinite", "huge", "zero", "large"):
        for old, new in zip(before, run(with_first_person(how)), strict=True):
            assert old[1:].tobytes() == new[1:].tobytes(), how
    alone = jax.jit(function)
    for person in range(1, PEOPLE):
        given = [v[person if axis == 0 else 1] for v, axis in zip(crowd(0), in_axes, strict=True)]
        for old, new in zip(before, jax.tree.leaves(alone(*given)), strict=True):
            np.testing.assert_allclose(old[person], new, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("in_axes", [(0, 0, 0), (0, None, None), (None, 0, None), (None, None, 0)])
@pytest.mark.parametrize("function", EXAMPLES, ids=lambda one: one.__name__)
def test_what_is_listed_treats_every_person_alone(
    function: Callable[..., Any], in_axes: tuple[int | None, ...]
) -> None:
    checked, _ = require_pure("local", function, *ONE)
    require_alone(checked, in_axes)


def test_every_listed_operation_is_tried() -> None:
    tried = set()
    for function in EXAMPLES:
        for program in purity._programs("local", jax.make_jaxpr(function)(*ONE)):
            tried |= {id(equation.primitive) for equation in program.jaxpr.eqns}
    assert [one for one in primitives.ALLOWED if id(one) not in tried] == []


MIXING: dict[str, Callable[..., Any]] = {
    "unvmap_max": lambda x, y, n: x * eqx.internal.unvmap_max(x),
    "rbg": lambda x, y, n: jax.random.normal(jax.random.key(n[0], impl="rbg"), (D,)),
    "own primitive": lambda x, y, n: own_primitive("add").bind(x),
}


@pytest.mark.parametrize("function", MIXING.values(), ids=MIXING.keys())
def test_an_entry_that_mixes_people_would_be_noticed(function: Callable[..., Any]) -> None:
    with pytest.raises(AssertionError):
        require_alone(function, (0, 0, 0))
