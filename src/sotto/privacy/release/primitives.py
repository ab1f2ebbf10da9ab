"""The operations of JAX that the door lets through; every other one is refused by name.

An operation is listed if it is pure (it computes its outputs from its inputs, and nothing else
happens), and if under `vmap` it treats every person alone: no number of one person's result
depends on another person's data or on how many others there are. Both were read in the source of
JAX `REVIEWED_JAX`, and `tests/attacks/test_door_functions.py` tries every entry on neighbours.

Left out on purpose, beside callbacks, named axes, references, kernels and random bits that are
drawn for a whole batch:

- `regularized_incomplete_beta` goes on for everybody until the slowest element has converged;
- `eig`, `eigh`, `svd`, `schur`, `hessenberg`, `tridiagonal` and `tridiagonal_solve` are iterations
  or vendors' batched kernels whose source was not read; `approx_top_k` is tuned to batch sizes;
- `reduce`, `reduce_window` and `select_and_scatter` hold Python functions.
"""

import functools
import sys
from types import FunctionType
from typing import Any

from jax._src.interpreters import batching, mlir
from jax._src.lax import lax, linalg, slicing
from jax._src.random import prng
from jax._src.random.core import random_clone_p
from jax.extend import core as jex_core
from jax.extend.core import primitives as jp

REVIEWED_JAX = "0.10.2"
"""Version of JAX whose operations, batching rules and options were reviewed."""

_ELEMENTWISE = (
    *(jp.abs_p, jp.acos_p, jp.acosh_p, jp.asin_p, jp.asinh_p, jp.atan_p, jp.atanh_p, jp.cbrt_p),
    *(jp.ceil_p, jp.clz_p, jp.conj_p, jp.cos_p, jp.cosh_p, jp.digamma_p, jp.erf_inv_p, jp.erf_p),
    *(jp.erfc_p, jp.exp2_p, jp.exp_p, jp.expm1_p, jp.floor_p, jp.imag_p, jp.integer_pow_p),
    *(jp.is_finite_p, jp.lgamma_p, jp.log1p_p, jp.log_p, jp.logistic_p, jp.neg_p, jp.not_p),
    *(jp.population_count_p, jp.real_p, jp.reduce_precision_p, jp.round_p, jp.rsqrt_p, jp.sign_p),
    *(jp.sin_p, jp.sinh_p, jp.sqrt_p, jp.square_p, jp.tan_p, jp.tanh_p, jp.bessel_i0e_p),
    *(jp.bessel_i1e_p, jp.add_p, jp.add_jaxvals_p, jp.and_p, jp.atan2_p, jp.complex_p, jp.div_p),
    *(jp.eq_p, jp.eq_to_p, jp.ge_p, jp.gt_p, jp.le_p, jp.le_to_p, jp.lt_p, jp.lt_to_p, jp.max_p),
    *(jp.min_p, jp.mul_p, lax.mulhi_p, jp.ne_p, jp.nextafter_p, jp.or_p, jp.pow_p, jp.rem_p),
    *(jp.shift_left_p, jp.shift_right_arithmetic_p, jp.shift_right_logical_p, jp.sub_p, jp.xor_p),
    *(jp.clamp_p, jp.select_n_p, jp.convert_element_type_p, jp.bitcast_convert_type_p),
    *(jp.polygamma_p, jp.zeta_p),
    # Series that stop for each element by itself: what has converged is kept as it is.
    *(jp.igamma_p, jp.igammac_p, jp.igamma_grad_a_p),
)
_SHAPES = (
    *(jp.broadcast_in_dim_p, jp.concatenate_p, jp.iota_p, jp.pad_p, jp.reshape_p, jp.rev_p),
    *(jp.squeeze_p, jp.transpose_p, lax.split_p, lax.stack_p, lax.unstack_p, lax.tile_p),
    *(jp.slice_p, jp.dynamic_slice_p, jp.dynamic_update_slice_p),
    # An index out of bounds is clamped or dropped axis by axis: it does not reach another person.
    *(jp.gather_p, jp.scatter_p, jp.scatter_add_p, slicing.scatter_sub_p, jp.scatter_mul_p),
    *(jp.scatter_min_p, jp.scatter_max_p),
)
_REDUCTIONS = (
    *(jp.argmax_p, jp.argmin_p, jp.reduce_and_p, jp.reduce_max_p, jp.reduce_min_p, jp.reduce_or_p),
    *(jp.reduce_prod_p, jp.reduce_sum_p, jp.reduce_xor_p, jp.reduce_window_max_p),
    *(jp.reduce_window_min_p, jp.reduce_window_sum_p, jp.select_and_gather_add_p),
    *(jp.select_and_scatter_add_p, jp.cumlogsumexp_p, jp.cummax_p, jp.cummin_p, jp.cumprod_p),
    *(jp.cumsum_p, jp.sort_p, jp.top_k_p),
)
_ALGEBRA = (
    *(jp.dot_general_p, jp.conv_general_dilated_p, jp.fft_p, jp.cholesky_p, jp.triangular_solve_p),
    *(jp.lu_p, linalg.lu_pivots_to_permutation_p, linalg.geqrf_p, jp.householder_product_p),
)
# Random numbers: functions of a key, which is of the one kind that `keys` makes.
_RANDOM = (
    *(jp.random_bits_p, jp.random_fold_in_p, jp.random_gamma_p, jp.random_seed_p),
    *(jp.random_split_p, jp.threefry2x32_p),
    *(prng.random_unwrap_p, prng.random_wrap_p, random_clone_p),
)
_NOTHING = (jp.copy_p, jp.device_put_p, jp.name_p, jp.stop_gradient_p, lax.optimization_barrier_p)
_CALLS = (
    *(jp.jit_p, jp.closed_call_p, jp.remat_p, jp.custom_jvp_call_p, jp.custom_vjp_call_p),
    *(jp.cond_p, jp.scan_p, jp.while_p, jp.linear_solve_p),
)

ALLOWED: tuple[jex_core.Primitive, ...] = (
    *_ELEMENTWISE,
    *_SHAPES,
    *_REDUCTIONS,
    *_ALGEBRA,
    *_RANDOM,
    *_NOTHING,
    *_CALLS,
)
"""Listed primitives by identity; a foreign one differs, whatever its name, `==` or hash."""

_BATCHING_RULES = {id(one): batching.fancy_primitive_batchers.get(one) for one in ALLOWED}

UNCALLED: dict[int, frozenset[str]] = {
    id(jp.custom_jvp_call_p): frozenset({"jvp_jaxpr_fun"}),
    id(jp.custom_vjp_call_p): frozenset({"fwd_jaxpr_thunk", "bwd", "out_trees"}),
}
"""Parameters that hold rules of differentiation. Programs are checked when all differentiation is
done, and the door does not differentiate them: nothing calls these rules."""


def is_allowed(primitive: Any) -> bool:
    """Whether an operation is on the list."""
    return id(primitive) in _BATCHING_RULES


def has_rules_of_jax(primitive: Any) -> bool:
    """Whether an operation on the list is mapped and compiled by the rules that JAX came with.

    Functions of other modules in their place are noticed, and so is another rule of JAX's once
    this module was imported. Whoever rewrites JAX's modules themselves is not.
    """
    rule = batching.fancy_primitive_batchers.get(primitive)
    tables = (mlir._lowerings, *mlir._platform_specific_lowerings.values())
    lowerings = [table[primitive].rule for table in tables if primitive in table]
    return rule is _BATCHING_RULES[id(primitive)] and all(map(_is_of_jax, (rule, *lowerings)))


def _is_of_jax(value: Any) -> bool:
    """Whether a function and all the functions it is made of are JAX's own."""
    if isinstance(value, functools.partial):
        return all(map(_is_of_jax, (value.func, *value.args, *value.keywords.values())))
    if isinstance(value, FunctionType):
        name = value.__globals__.get("__name__", "")
        module = sys.modules.get(name)
        inner = [cell.cell_contents for cell in value.__closure__ or ()]
        return (
            _root(name) in ("jax", "jaxlib")
            and module is not None
            and vars(module) is value.__globals__
            and all(map(_is_of_jax, inner))
        )
    owner = value if isinstance(value, type) else type(value)
    return not callable(value) or _root(owner.__module__) in ("jax", "jaxlib", "builtins", "numpy")


def _root(module: str) -> str:
    return module.partition(".")[0]
