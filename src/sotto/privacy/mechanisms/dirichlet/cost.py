"""Cost of an answer of the Dirichlet mechanism, as certified Renyi divergences.

Notation: m actions, concentration k, floor eta, and L2 distance c between neighbouring restricted
rows pi and pi'. The two answers have Dirichlet parameters a = k pi and b = k pi'. Let d = a - b.
Then sum d = 0, |d|_2 <= k c, and |d_i| <= k c_inf with c_inf = min(c sqrt((m-1)/m), 1 - m eta).
With LG = log Gamma,

    (alpha - 1) D_alpha = sum_i phi(a_i, d_i),
    phi(x, d) = LG(x + (alpha-1) d) - alpha LG(x) + (alpha-1) LG(x - d).

It is infinite as soon as some a_i + (alpha-1) d_i <= 0, so only orders below 1 + eta / c_inf are
finite.

Guarantee:
    The unit and the adjacency are those of the distance c (`answers.distances`). `renyi_curve`
    bounds D_alpha from above for every admissible pair, in both directions and in floating point.
    The proofs are Theorems 3 and 4 of docs/privacy.md, section 12, "Dirichlet".
"""

import functools
import math

import numpy as np
from jaxtyping import Float64
from scipy import optimize, special

from sotto.privacy.mechanisms.dirichlet.simplex import capped_distance

ORDERS: tuple[float, ...] = tuple(1 + float(f"{2 ** (j / 10):.4g}") for j in range(-66, 134))
"""Renyi orders of every curve, from 1.0103 to 10089; curves compose only at shared orders."""

_CELLS = 96  # cells on each side of zero, for the certified maximum over d
_ROUNDING = 2.0**-46  # a relative bound on the errors of scipy's log-gamma and of the sums here


def renyi_curve(
    actions: int, concentration: float, floor: float, distance: float, l1: float = math.inf
) -> tuple[float, ...]:
    """Returns upper bounds on D_alpha at all `ORDERS`, for all neighbouring restricted rows.

    Args:
        actions: m.
        concentration: k.
        floor: eta.
        distance: c, capped at the diameter of the restricted simplex.
        l1: bound on the L1 distance, if a smaller one is known than follows from c.

    Returns:
        One divergence per order, in nats, not decreasing; `inf` from order 1 + eta / c_inf on.
    """
    return _curve(actions, concentration, floor, capped_distance(distance, actions, floor), l1)


@functools.lru_cache(maxsize=256)
def _curve(
    actions: int, concentration: float, floor: float, distance: float, l1: float
) -> tuple[float, ...]:
    bounds = np.full(len(ORDERS), math.inf)
    if distance == 0:
        return (0.0,) * len(ORDERS)
    for i, order in enumerate(ORDERS):
        closed = closed_form(order, actions, concentration, floor, distance, l1)
        if not math.isfinite(closed):
            break  # all higher orders are infinite too
        certified = _dual(order, actions, concentration, floor, distance, l1)
        bounds[i] = min(closed, certified) if certified > 0 else closed
    # D_alpha does not decrease with alpha, so a bound at a higher order holds at a lower order.
    bounds = np.minimum.accumulate(bounds[::-1])[::-1]
    return tuple(float(bound) for bound in bounds)


def largest_shift(actions: int, floor: float, distance: float, l1: float = math.inf) -> float:
    """Returns c_inf, the most that one probability can move, rounded up.

    The others together move as much in the other direction, so it is at most half of the L1
    distance.
    """
    most = min(distance * math.sqrt((actions - 1) / actions), 1 - actions * floor, l1 / 2)
    return most * (1 + _ROUNDING)


def largest_l1(actions: int, floor: float, distance: float, l1: float = math.inf) -> float:
    """Returns the largest L1 distance of neighbouring restricted rows, rounded up.

    Let p entries rise and q fall, by S in all each. Then |d|_2^2 >= S^2 (1/p + 1/q), so S is
    largest if half of the entries rise.
    """
    up = actions // 2
    most = 2 * distance * math.sqrt(up * (actions - up) / actions)
    return min(most, 2 * (1 - actions * floor), l1) * (1 + _ROUNDING)


def closed_form(
    order: float,
    actions: int,
    concentration: float,
    floor: float,
    distance: float,
    l1: float = math.inf,
) -> float:
    """Returns (alpha/2) k^2 c^2 trigamma(k (eta - (alpha-1) c_inf)), coarse at high orders."""
    room = floor * (1 - _ROUNDING) - (order - 1) * largest_shift(actions, floor, distance, l1)
    if room <= 1e-9 * floor:  # closer to the pole, rounding would decide
        return math.inf
    squared = (concentration * distance) ** 2
    return float(order / 2 * squared * special.polygamma(1, concentration * room)) * (1 + _ROUNDING)


def _dual(
    order: float, actions: int, concentration: float, floor: float, distance: float, l1: float
) -> float:
    """Returns the certified bound by weak duality; NaN or not positive where it has none.

    Let l be the bound on |d|_1 and g(d) = lambda d^2 + mu d + nu |d|. For every lambda >= 0, mu and
    nu >= 0,

        (alpha-1) D_alpha <= lambda k^2 c^2 + nu l + (m-1) max_d [h(x, d) - g(d)]
                                                   +       max_d [h(x_s, d) - g(d)]

    with h(x, d) = phi(x + max(d, 0), d), x = k eta, and x_s for the one entry that is large. The
    multipliers come from a linear program over grid points. Each maximum is then bounded rigorously
    on every cell between them (docs/privacy.md, section 12, Theorem 4).
    """
    m, k, radius = actions, concentration, concentration * distance
    largest = concentration * largest_shift(m, floor, distance, l1)
    x = k * floor * (1 - _ROUNDING)
    moved = largest_l1(m, floor, distance, l1) / 2  # the most that all entries together can gain
    large = max(k / m, k * (1 - (m - 1) * floor - moved)) - k * _ROUNDING - largest

    # Cells shrink towards -largest, where h is steepest.
    steps = np.linspace(0.0, 1.0, _CELLS + 1)
    d = largest * np.concatenate([steps[::-1] * (steps[::-1] - 2), steps[1:]])
    near_floor = _Envelope.of(x, d, order)
    slack = _Envelope.of(max(x, large), d, order)
    total = k * l1 if 2 * moved == l1 * (1 + _ROUNDING) else None  # else c gives the same bound
    multipliers = _multipliers(near_floor, slack, m, radius, total)
    if multipliers is None:
        return math.nan
    lam, mu, nu = multipliers
    log_moment = lam * radius**2 + (0.0 if total is None else nu * total)
    log_moment += (m - 1) * near_floor.largest(lam, mu, nu) + slack.largest(lam, mu, nu)
    return log_moment * (1 + _ROUNDING) / (order - 1)


class _Envelope:
    """Upper bound on d -> h(x, d): a chord plus a constant on each cell."""

    def __init__(self, d: Float64[np.ndarray, " n"], values: np.ndarray, bulge: np.ndarray) -> None:
        self.d, self.values, self.bulge = d, values, bulge

    @classmethod
    def of(cls, x: float, d: Float64[np.ndarray, " n"], order: float) -> "_Envelope":
        """Returns chords of h(x, .) between the points d.

        For d < 0, h'' >= 0, so h is below its chords. For d > 0, h'' = alpha^2 psi1(x + alpha d) -
        alpha psi1(x + d) is at least -alpha psi1(x + d). There h exceeds its chord over
        [d_0, d_0 + w] by at most w^2/8 alpha psi1(x + d_0).
        """
        a = x + np.maximum(d, 0.0)
        parts = (a + (order - 1) * d, a, a - d)
        logs = [special.gammaln(part) for part in parts]
        values = logs[0] - order * logs[1] + (order - 1) * logs[2]
        # The rounding errors of the values, and of the arguments of log-gamma.
        weights = (1.0, order, order - 1)
        error = sum(w * np.abs(log) for w, log in zip(weights, logs, strict=True)) + (
            a + order * np.abs(d)
        ) * sum(w * np.abs(special.digamma(part)) for w, part in zip(weights, parts, strict=True))
        left = np.maximum(d[:-1], 0.0)
        bulge = np.where(
            d[:-1] < 0, 0.0, np.diff(d) ** 2 / 8 * order * special.polygamma(1, x + left)
        )
        return cls(d, values + _ROUNDING * error, bulge)

    def largest(self, lam: float, mu: float, nu: float = 0.0) -> float:
        """Returns a bound on max_d [h(x, d) - lam d^2 - mu d - nu |d|], a parabola on each cell."""
        start, stop = self.d[:-1], self.d[1:]
        slope = np.diff(self.values) / np.diff(self.d)
        tilt = mu + np.where(start < 0, -nu, nu)  # no cell has zero inside
        with np.errstate(over="ignore"):  # without curvature the peak is at an end
            peak = np.clip((slope - tilt) / max(2 * lam, 1e-300), start, stop)
        bounds = [
            self.values[:-1] + slope * (at - start) - lam * at**2 - tilt * at
            for at in (start, peak, stop)
        ]
        return float((np.max(bounds, axis=0) + self.bulge).max())


def _multipliers(
    near_floor: _Envelope, slack: _Envelope, actions: int, radius: float, total: float | None
) -> tuple[float, float, float] | None:
    """Returns nearly the best (lambda, mu, nu), by a linear program over the grid points.

    It minimises lambda radius^2 + nu total + (m-1) s + t, with s and t above the two functions at
    every point. Without a total nu is 0.
    """
    unit = float(-near_floor.d[0])
    height = float(near_floor.values.max())
    if not height > 0:
        return None
    u = near_floor.d / unit
    one, zero = np.ones_like(u), np.zeros_like(u)
    found = optimize.linprog(
        [(radius / unit) ** 2, 0.0, (total or 0.0) / unit, actions - 1.0, 1.0],
        A_ub=-np.vstack(
            [
                np.column_stack([u**2, u, np.abs(u), one, zero]),
                np.column_stack([u**2, u, np.abs(u), zero, one]),
            ]
        ),
        b_ub=-np.concatenate([near_floor.values, slack.values]) / height,
        bounds=[
            (0, None),
            (None, None),
            (0, 0 if total is None else None),
            (None, None),
            (None, None),
        ],
        method="highs",
    )
    if found.x is None:
        return None
    scale = height / unit
    lam, mu, nu = max(0.0, found.x[0]) / unit, found.x[1], max(0.0, found.x[2])
    return lam * scale, mu * scale, nu * scale
