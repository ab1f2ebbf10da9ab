"""Contributions that a compiler computes twice: once for the norm, and once more for the sum.

XLA repeats cheap operations where they are used, and a product that is added may be rounded once in
one copy and twice in the other. Where large numbers cancel, the norm of one copy says nothing about
the other one. `test_optimised.py` runs these tests with the code that users run, too.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sotto.keys import new_key
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms import gaussian
from sotto.privacy.release.factored import Factored
from sotto.privacy.release.release import Release
from sotto.privacy.settings import COMPILER_OPTIONS
from sotto.privacy.statements import Part
from sotto.privacy.units import EXPERT

Unit = dict[str, Any]


def people(count: int, rows: tuple[int, ...], columns: tuple[int, ...]) -> Unit:
    """Everybody has x w = y up to rounding, and so x w - y is zero or the rounding error of x w."""
    x = np.float32(1 + 2**-12) * np.float32(2.0) ** 17
    whole = np.broadcast_shapes(rows, columns)
    return {
        "x": np.full((count, *rows), x),
        "w": np.full((count, *columns), x),
        "y": np.full((count, *whole), x * x),
    }


def residuals(unit: Unit) -> Unit:
    product = unit["x"] * unit["w"]
    return {"residual": product - unit["y"], "seen": jnp.clip(product, -1, 1)}


def scaled(unit: Unit) -> Unit:
    product = unit["x"] * unit["w"]
    return {"residual": product - unit["y"], "seen": 0.0 * product}


def bounded_below(unit: Unit) -> Unit:
    return {"residual": jnp.maximum(unit["x"] * unit["w"] - unit["y"], -1e30)}


def factors(unit: Unit) -> Unit:
    found = (unit["x"] * unit["w"] - unit["y"]).reshape(-1)
    return {"residual": Factored(found, jnp.ones(2)), "seen": 0.0 * (unit["x"] * unit["w"])}


ONE, FOUR, MANY = (1, (), ()), (4, (), ()), (16, (), ())
SMALL, LONG = (3, (3, 1), (1, 7)), (2, (1, 200), (100, 200))
"""Number of people, and shapes of the two factors of their products; LONG ones are added up one by
one."""
CASES = [
    *((local, shape, "joint", 1) for local in (residuals, factors) for shape in (ONE, MANY, SMALL)),
    *((residuals, shape, "separate", 1) for shape in (ONE, MANY, LONG)),
    (residuals, LONG, "joint", 1),
    (residuals, FOUR, "joint", 2),
    (scaled, FOUR, "joint", 1),
    (bounded_below, SMALL, "separate", 1),
    (factors, SMALL, "separate", 1),
]
"""Function, people, clipping, and number of runs side by side."""


def released_norms(
    local: Callable[[Unit], Unit], units: Unit, clipping: Any, runs: int, where: Path
) -> dict[str, float]:
    """The norm of each part of a release with hardly any noise, to which one person contributes.

    With several runs side by side, it is the largest of them.
    """
    slots = len(units["x"])
    shapes = jax.eval_shape(local, jax.tree.map(lambda x: x[0], units))
    release = Release(
        name="update",
        local=lambda state, unit, key: (local(unit), ()),
        server=lambda state, released: (state, released),
        unit=EXPERT,
        clipping=clipping,
        parts={name: Part(clip_norm=1.0, noise_multiplier=1e-6) for name in shapes},
        slots=slots,
        divisor=1.0,
        horizon=1,
        population="real",
    )
    budget = Budget(epsilon=np.inf, delta=1e-3)
    ledgers = [Ledger.create(where / f"{run}", unit=EXPERT, budget=budget) for run in range(runs)]
    stream = release.open(ledgers, jnp.zeros(runs), units, noise_seed=0)
    persons = np.full((runs, 1, slots), -1)
    persons[:, 0, 0] = 0
    given = jax.tree.map(lambda x: np.broadcast_to(x, (runs, 1, *x.shape)), units)
    _, log, _ = stream.run(jnp.zeros(runs), jax.random.split(new_key(0), runs), persons, given)
    flat = {name: np.asarray(part).reshape(runs, -1) for name, part in log.items()}
    return {name: float(np.linalg.norm(part, axis=1).max()) for name, part in flat.items()}


@pytest.mark.parametrize(("local", "shape", "clipping", "runs"), CASES)
def test_one_person_moves_a_release_by_the_clip_norm_also_where_numbers_cancel(
    local: Callable[[Unit], Unit], shape: Any, clipping: str, runs: int, tmp_path: Path
) -> None:
    norms = released_norms(local, people(*shape), clipping, runs, tmp_path)
    assert all(norm < 1.001 for norm in norms.values()), norms  # the noise adds a little
    if clipping == "joint":
        assert sum(norm**2 for norm in norms.values()) < 1.001


def test_the_door_keeps_contributions_in_memory() -> None:
    """The loop that makes no turn is in the optimised program, whatever XLA knows about it."""

    def total(units: Unit, present: Any) -> Any:
        return gaussian.materialised(jax.vmap(residuals)(units), present)

    units, present = people(4, (), ()), np.array([True, False, True, False])
    program = jax.jit(total, compiler_options=COMPILER_OPTIONS).lower(units, present).compile()
    assert " while(" in program.as_text()
    for here in (present, ~present, present | True, present & False):
        kept = program(units, here)
        for name, exact in jax.jit(jax.vmap(residuals))(units).items():
            np.testing.assert_array_equal(kept[name], exact)


@pytest.mark.skipif(
    "SOTTO_OPTIMISED_TESTS" not in os.environ or jax.default_backend() != "cpu",
    reason="code that is not optimised, or a GPU, which rounds both copies alike here",
)
def test_without_memory_a_person_moves_the_sum_by_more() -> None:
    """The attack works on the clip alone, so the tests above can fail."""
    names = ("residual", "seen")
    norms, grids = dict.fromkeys(names, 1.0), dict.fromkeys(names, gaussian.Grid(2.0**-20))

    def total(units: Unit, present: Any) -> Any:
        return gaussian.sum_people(jax.vmap(residuals)(units), norms, "joint", grids, present)

    program = jax.jit(total, compiler_options=COMPILER_OPTIONS)
    moved = program(people(16, (), ()), np.arange(16) == 0)["residual"]
    assert abs(float(moved[0, 0])) * 2.0**-20 > 2
