"""Gaussian noise on a policy, then the nearest policy: a baseline that Gohari et al. do not have.

Guarantee:
    The unit and the adjacency are those of the stated distance (`answers.distances`). For
    restricted rows at L2 distance at most c, one answer is Gaussian with multiplier
    noise_stddev / (c + 2^-40 sqrt(m)), if that is at least 0.2; no floor is needed. The second term
    pays for rounding rows to the grid on which noise is drawn. The sampler's finite range and its
    tables cost less than 1e-25, which is left out. Projection is post-processing. The proof is in
    docs/privacy.md, section 12, "Gaussian".
"""

import math
from typing import Literal

import numpy as np
from jaxtyping import Float, Float64
from pydantic import Field

from sotto.privacy.accounting.events import Event, Gaussian, NoGuarantee
from sotto.privacy.mechanisms.dirichlet import simplex
from sotto.privacy.mechanisms.dirichlet.mechanism import RestrictingMechanism
from sotto.privacy.mechanisms.noise import rounded_normal

_LEAST_MULTIPLIER = 0.2
"""Least multiplier of one answer. There a row moves by five standard deviations and is 12.3 away
from the end of the sampler's range, which a million answers reach with less than `LEFT_OUT`."""

LEFT_OUT = 1e-25
"""More delta than the sampler's range and precision cost for a million answers; it is left out."""


class GaussianPolicy(RestrictingMechanism):
    """The nearest policy to row + N(0, noise_stddev^2 I).

    Guarantee:
        `events(distance, count)` is the analytic Gaussian mechanism (docs/privacy.md, section 12).

    Attributes:
        actions: length m of a row.
        noise_stddev: standard deviation of the noise in each probability.
        floor: rows are mixed with the uniform row to (1 - m floor) pi + floor; 0 leaves them.
    """

    kind: Literal["gaussian-policy"] = "gaussian-policy"
    actions: int = Field(ge=2)
    noise_stddev: float = Field(gt=0, allow_inf_nan=False)
    floor: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    @property
    def spacing(self) -> float:
        """Spacing of the grid on which noise is added to rows: 2^-40, or 2^-40 of large noise."""
        return 2.0 ** (math.ceil(math.log2(max(1.0, self.noise_stddev))) - 40)

    def answer(
        self, policies: Float[np.ndarray, "rows actions"], generator: np.random.Generator
    ) -> Float64[np.ndarray, "rows actions"]:
        """Returns one private answer per row. It restricts the rows itself.

        Args:
            policies: the teacher's rows, unrestricted.
            generator: fresh, from `noise.GeneratorSource`.

        Returns:
            Rows on the public grid, each summing to 1 exactly; entries may be 0.
        """
        rows = self.restrict(simplex.checked(policies, self.actions))
        drawn = rounded_normal(generator, rows.shape, self.noise_stddev / self.spacing)
        noisy = np.rint(rows / self.spacing) + drawn
        return simplex.to_grid(simplex.project(noisy * self.spacing))

    def events(self, distance: float, count: int, l1: float = math.inf) -> tuple[Event, ...]:
        """Returns the cost of `count` answers, for restricted rows `distance` apart.

        Args:
            distance: L2 distance c of neighbouring *restricted* rows (`Distance.between`); capped
                at the diameter sqrt(2) (1 - m floor). There is no cost where it is 0.
            count: number of answers, at least 1.
            l1: bound on their L1 distance, which does not change the cost.
        """
        del l1
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}; leave out what never ran")
        capped = simplex.capped_distance(distance, self.actions, self.floor)
        if capped == 0:
            return ()
        multiplier = self.noise_stddev / (capped + self.spacing * math.sqrt(self.actions))
        if multiplier < _LEAST_MULTIPLIER:
            return (NoGuarantee(reason="so little noise that the sampler's finite range shows"),)
        return (Gaussian(noise_multiplier=multiplier / math.sqrt(count)),)
