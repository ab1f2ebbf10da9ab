"""The release of an evaluation on resampled people, many times, for coverage and width.

People are drawn with replacement, so that the whole log is the population whose values are known.
Contributions come from the function that the door runs, sums are exact, and noise has the standard
deviation of the door's. No ledger is charged: the people are drawn anew each time, and the log is
public. `tests/algorithms/test_evaluation.py` compares these releases with the door's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from sotto.algorithms.evaluation import learning
from sotto.algorithms.evaluation.intervals import Value, values
from sotto.algorithms.evaluation.persons import (
    Bounds,
    Evaluation,
    PersonLog,
    Public,
    contribution,
)
from sotto.algorithms.evaluation.policies import Linear
from sotto.algorithms.evaluation.release import Spending, made, multipliers, stddevs
from sotto.data.imports.declaration import Declaration
from sotto.keys import new_key

Parts = dict[str, Float[np.ndarray, "people numbers"]]


@dataclass(frozen=True)
class Mechanism:
    """An evaluation with its noise.

    Attributes:
        asked: settings.
        bounds: bounds of contributions.
        noise: standard deviation of the noise in each part.
    """

    asked: Evaluation
    bounds: Bounds
    noise: dict[str, float]

    @classmethod
    def of(
        cls,
        asked: Evaluation,
        public: Public,
        declaration: Declaration,
        people: int,
        spending: Spending,
    ) -> "Mechanism":
        """Returns the mechanism that `analysis.evaluate` uses for these settings."""
        assert declaration.propensity is not None
        assert declaration.discrete
        actions = int(declaration.action_space.n)
        bounds = Bounds.of(asked, public, declaration.propensity.low, actions)
        noise = multipliers(spending, 1 + 5 * len(public.policies))
        release = made(asked, bounds, declaration, people, noise)
        return cls(asked, bounds, stddevs(release))

    @cached_property
    def _program(self) -> Callable[..., Any]:
        return jax.jit(jax.vmap(partial(contribution, self.asked, self.bounds), (None, 0, None)))

    def parts(self, public: Public, people: PersonLog) -> Parts:
        """Returns the contribution of every person."""
        found, _ = self._program(public, people, new_key(0))
        return {name: np.asarray(part, np.float64) for name, part in found.items()}

    def private(
        self,
        parts: Parts,
        counts: Float[np.ndarray, " people"],
        rng: np.random.Generator,
        level: float,
    ) -> list[Value]:
        """Returns values from noisy sums over people, each as often as counted."""
        noisy = {
            name: counts @ part + rng.normal(0, self.noise[name], part.shape[1])
            for name, part in parts.items()
        }
        return values(self.asked, self.bounds, noisy["sums"], noisy["squares"], self.noise, level)

    def exact(
        self, parts: Parts, counts: Float[np.ndarray, " people"], level: float
    ) -> list[Value]:
        """Returns values from exact sums, which nobody is protected by."""
        sums = {name: counts @ part for name, part in parts.items()}
        silent = dict.fromkeys(self.noise, 0.0)
        return values(self.asked, self.bounds, sums["sums"], sums["squares"], silent, level)


def drawn(rng: np.random.Generator, people: int) -> Float[np.ndarray, " people"]:
    """Returns how often each person is drawn, with replacement, in as many draws as people."""
    return np.bincount(rng.integers(0, people, people), minlength=people).astype(np.float64)


@dataclass(frozen=True)
class LinearLearner:
    """Learning of a linear policy, with its noise."""

    declaration: Declaration
    tables: Float[np.ndarray, "people actions upper"]
    targets: Float[np.ndarray, "people actions features"]

    @classmethod
    def of(cls, declaration: Declaration, people: PersonLog) -> "LinearLearner":
        """Computes the contribution of every person."""
        program = jax.jit(jax.vmap(learning.contribution_for(declaration), (None, 0, None)))
        found, _ = program(learning.Scaling.of(declaration), people, new_key(0))
        tables, targets = (np.asarray(found[name], np.float64) for name in ("tables", "targets"))
        return cls(declaration, tables, targets)

    def learnt(
        self, chosen: np.ndarray, spending: Spending | None, rng: np.random.Generator
    ) -> Linear:
        """Returns the policy that the chosen people give; without noise if nothing is spent."""
        tables, targets = self.tables[chosen].sum(axis=0), self.targets[chosen].sum(axis=0)
        noise = 0.0 if spending is None else learning.multiplier(self.declaration, spending)
        tables = tables + rng.normal(0, 1, tables.shape) * noise
        targets = targets + rng.normal(0, 1, targets.shape) * noise
        ridge = learning.ridge(self.declaration, noise) + 1e-6
        return learning.solved(self.declaration, tables, targets, ridge)
