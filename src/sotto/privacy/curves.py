"""A privacy curve: epsilon as a function of delta, and the other way round."""

from collections.abc import Callable
from dataclasses import dataclass

from sotto.privacy.analytic_gaussian import checked_delta, checked_epsilon


@dataclass(frozen=True)
class PrivacyCurve:
    """The joint cost of a collection of releases, as a function.

    Attributes:
        method: which accountant computed it, in plain words.
    """

    method: str
    _epsilon_at: Callable[[float], float]
    _delta_at: Callable[[float], float]

    def epsilon(self, delta: float) -> float:
        """An epsilon such that all releases together are (epsilon, delta)-DP; may be infinite.

        Raises:
            ValueError: if delta is not strictly between 0 and 1, or is finer than a PLD resolves.
        """
        return float(self._epsilon_at(checked_delta(delta)))

    def delta(self, epsilon: float) -> float:
        """A delta such that all releases together are (epsilon, delta)-DP; at most 1.

        Raises:
            ValueError: if epsilon is negative, infinite or not a number.
        """
        return min(1.0, float(self._delta_at(checked_epsilon(epsilon))))
