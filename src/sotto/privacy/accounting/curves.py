"""Privacy curves: epsilon as a function of delta, and delta as a function of epsilon."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from sotto.privacy.accounting.gaussian import checked_delta, checked_epsilon


@dataclass(frozen=True)
class PrivacyCurve:
    """The joint cost of a collection of releases, as a function.

    Attributes:
        method: name of the accountant that computed it, in plain words.
    """

    method: str
    _epsilon_at: Callable[[float], float]
    _delta_at: Callable[[float], float]
    _deltas_at: Callable[[Float64[np.ndarray, " k"]], Float64[np.ndarray, "2 k"]] | None = None

    def epsilon(self, delta: float) -> float:
        """Returns an epsilon, maybe infinite, at which all releases are (epsilon, delta)-DP.

        Raises:
            ValueError: if delta is not strictly between 0 and 1, or is finer than a PLD resolves.
                Also if the accountant's result is not a number, which no budget would refuse.
        """
        found = float(self._epsilon_at(checked_delta(delta)))
        if math.isnan(found):
            raise ValueError(f"the epsilon at delta {delta} is not a number: {self.method}")
        return found

    def delta(self, epsilon: float) -> float:
        """Returns a delta, at most 1, at which all releases are (epsilon, delta)-DP.

        Raises:
            ValueError: if epsilon is negative, infinite or not a number.
        """
        return min(1.0, float(self._delta_at(checked_epsilon(epsilon))))

    def deltas(self, epsilons: Float64[np.ndarray, " k"]) -> Float64[np.ndarray, "2 k"]:
        """Returns delta at each epsilon, for each order of two neighbours.

        `delta` is the larger of the two. Where the accountant does not tell the orders apart, both
        are `delta`.

        Raises:
            ValueError: as for `delta`.
        """
        for epsilon in epsilons.tolist():
            checked_epsilon(epsilon)
        if self._deltas_at is None:
            either = [self.delta(epsilon) for epsilon in epsilons.tolist()]
            return np.array([either, either])
        both = np.minimum(1.0, self._deltas_at(epsilons))
        return np.asarray(both)
