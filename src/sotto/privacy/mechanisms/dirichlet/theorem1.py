"""Theorem 1 of Gohari et al. 2021, as the paper states it and in a repaired form.

Both say that an answer is (epsilon, delta)-DP, where delta is the probability that some entry of
the answer is below a threshold tau. The ledger charges neither of them. It charges the tighter
curve of `dirichlet.cost`, and these two are shown beside it.

* The paper's: equation (12) with delta from (6). It is sound only if the log-concavity behind (6)
  holds, which is not verified. It does not vanish with the distance, although (7) says so.
* Repaired: the two log-gamma terms are bounded for neighbours instead of for any two rows, and
  delta for every row instead of one vertex. It vanishes with the distance.
"""

import math

from scipy import optimize, special

from sotto.privacy.accounting.composition import compose
from sotto.privacy.accounting.events import ApproximateDP
from sotto.privacy.mechanisms.dirichlet.cost import largest_l1
from sotto.privacy.mechanisms.dirichlet.sampling import below_threshold
from sotto.privacy.mechanisms.dirichlet.simplex import capped_distance

PAPER_NOTE = (
    "the paper's claim, equation (12) with delta from (6), over all queries by basic composition; "
    "not certified here"
)

_LEAST_LOG = -690.0  # log of the smallest threshold that float64 distinguishes from zero


def threshold_for(actions: int, concentration: float, floor: float, delta: float) -> float:
    """Returns the largest tau with P(some entry of an answer < tau) <= delta for every row.

    It uses exact Beta distribution functions. It is 0 where tau would be below e^-690.
    """

    def excess(log_threshold: float) -> float:
        return below_threshold(actions, concentration, floor, math.exp(log_threshold)) - delta

    if excess(_LEAST_LOG) > 0:
        return 0.0
    highest = -math.log(actions)
    if excess(highest) <= 0:
        return 1.0 / actions
    return math.exp(optimize.brentq(excess, _LEAST_LOG, highest) - 1e-9)


def repaired_theorem1(
    actions: int, concentration: float, floor: float, distance: float, delta: float
) -> float:
    """Returns epsilon of one answer at delta, by the repaired Theorem 1.

    The proof is in docs/privacy.md, section 12, "Theorem 1 repaired". On z with entries in
    [tau, 1 - (m-1) tau] the log likelihood ratio of parameters a and b is
    sum_i d_i log z_i + sum_i LG(b_i) - LG(a_i) with d = a - b. As sum d = 0, the first sum is at
    most |d|_1 / 2 times the spread of log z. LG is convex, so the second is at most
    -sum_i d_i psi(b_i), which is at most |d|_1 / 2 times the spread of psi.

    Returns:
        The epsilon; infinity where the threshold is too small for float64.
    """
    k, m = concentration, actions
    tau = threshold_for(m, k, floor, delta)
    moved = largest_l1(m, floor, capped_distance(distance, m, floor)) / 2
    if moved == 0:
        return 0.0
    if tau == 0:
        return math.inf
    spread = math.log1p(-(m - 1) * tau) - math.log(tau)
    slopes = special.digamma(k * (1 - (m - 1) * floor)) - special.digamma(k * floor)
    return k * moved * (spread + float(slopes)) * (1 + 1e-12)


def repaired_epsilon(
    actions: int, concentration: float, floor: float, distance: float, delta: float, queries: int
) -> float:
    """Returns epsilon of `queries` answers at delta: the repaired Theorem 1, composed.

    It is the smaller of two: basic composition, which gives the answers all of delta, and PLD
    composition, which gives them half.
    """
    arguments = (actions, concentration, floor, distance)
    basic = queries * repaired_theorem1(*arguments, delta / queries)
    share = delta / (2 * queries)
    one = repaired_theorem1(*arguments, share)
    if queries == 1 or not math.isfinite(one):
        return basic
    composed = compose([ApproximateDP(epsilon=one, delta=share, count=queries)]).epsilon(delta)
    return min(basic, composed)


def paper_theorem1(
    actions: int, concentration: float, floor: float, distance: float, delta: float
) -> float:
    """Returns epsilon of one answer at delta as in the paper's equation (12); it is not certified.

    Args:
        distance: the paper's L b.
        delta: the paper's (6). `below_threshold` bounds it, closely where delta is small.
    """
    k, m = concentration, actions
    tau = threshold_for(m, k, floor, delta)
    if tau == 0:
        return math.inf
    unrelated = (
        (m - 1) * math.lgamma(k * floor)
        + math.lgamma(k * (1 - (m - 1) * floor))
        - m * math.lgamma(k / m)
    )
    return math.sqrt(m) * distance * k * math.log(1 / tau) + unrelated


def paper_epsilon(
    actions: int, concentration: float, floor: float, distance: float, delta: float, queries: int
) -> float:
    """Returns the paper's epsilon for `queries` answers: basic composition, delta split evenly."""
    return queries * paper_theorem1(actions, concentration, floor, distance, delta / queries)
