"""Private selection: the best of a secret number of tries, by a score that is private itself.

One try draws a candidate by public chance, trains it and releases its score. The number of tries K
is drawn in secret and independently of the data, with mean m. Only the best try's output is
released. P and P' are the laws of one try for two neighbours, in either order. Let

* delta(e) bound sup P(S) - exp(e) P'(S) over all S, and delta'(e) bound sup P'(S) - exp(e) P(S),
* T(g) be the minimum of exp(e) g + delta'(e) over e, at most 1,
* w(g) = m / (1 + (m - 1) g)^2 for geometric K on {1, 2, ...}, and m exp(-m g) for Poisson K.

Guarantee:
    The unit and the adjacency are those of one try.

    `selection_curve`: for every epsilon >= 0 the selection is (epsilon, d)-DP with

        d = E_P sup over g in [0, 1] of (w(g) - exp(epsilon) w(T(g)) dP'/dP)_+

    The proof is Theorem 10 of docs/privacy.md, section 17. It sharpens Koskela, Redberg and Wang
    2024.

    `selection_divergences` serves selections that are composed with other releases, or were stated
    before `accounting=2`. Let one try have Renyi divergences e(a). With geometric K the selection
    has at most

        e(a) + 2 min over orders b of ((1 - 1/b) e(b) + log(m) / b) + log(m) / (a - 1).

    With Poisson K, if one try is also (log(1 + 1/(a - 1)), d)-DP, it has at most

        e(a) + m d + log(m) / (a - 1)

    (Papernot and Steinke 2022, Theorem 2 with eta = 1 and Theorem 6, arXiv:2110.03620).

    These bounds do not hold against somebody who learns K or the output of a try that lost.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64

from sotto.privacy.accounting.curves import PrivacyCurve
from sotto.privacy.accounting.events import Gaussian, Renyi, RepeatAndSelect, SampledGaussian
from sotto.privacy.accounting.sampled_gaussian import sampled_gaussian_divergences
from sotto.privacy.mechanisms.dirichlet.cost import ORDERS

_EPSILONS = 4000  # table entries of one try
_CELLS = 4000  # cells of g
_KNOTS = 400  # knots of the integrand as a function of dP'/dP
_ROUNDING = 1e-9  # a relative bound on the rounding errors of the sums in this file


def selection_curve(
    event: RepeatAndSelect, one_try: PrivacyCurve, as_renyi: PrivacyCurve
) -> PrivacyCurve:
    """Returns the privacy curve of one selection.

    Args:
        event: the selection; its count is 1.
        one_try: the curve of its run.
        as_renyi: the curve by `selection_divergences`. It takes over where delta is finer than
            the curve of one try resolves.
    """
    tables = _tables(one_try)
    with np.errstate(over="ignore", invalid="ignore"):
        mixtures = [_mixture(event, table) for table in tables]
    if not all(np.isfinite(weights).all() for _, weights in mixtures):
        return as_renyi  # floats cannot hold so many tries

    def profile(epsilon: float) -> float:
        deltas = [
            float(weights @ table.delta(epsilon - logs))
            for table, (logs, weights) in zip(tables, mixtures, strict=True)
        ]
        return max(deltas) * (1 + _ROUNDING)

    def epsilon_at(delta: float) -> float:
        # Tries of two neighbours can be coupled so that any differ with probability m delta(0).
        if event.mean * max(float(table.there[0]) for table in tables) <= delta:
            return 0.0
        low, high = 0.0, float(tables[0].epsilons[-1] + max(logs[-1] for logs, _ in mixtures))
        if profile(high) > delta:
            return as_renyi.epsilon(delta)
        while high - low > 1e-10 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if profile(middle) <= delta else (middle, high)
        return min(high, as_renyi.epsilon(delta))

    return PrivacyCurve(
        f"privacy profile of the best of several tries ({one_try.method})",
        epsilon_at,
        lambda epsilon: min(profile(epsilon), as_renyi.delta(epsilon)),
    )


@dataclass(frozen=True)
class _Table:
    """Upper bounds on delta (`there`) and delta' (`back`) of one try, tabulated from epsilon 0."""

    epsilons: Float64[np.ndarray, " n"]
    there: Float64[np.ndarray, " n"]
    back: Float64[np.ndarray, " n"]

    def delta(self, epsilon: Float64[np.ndarray, " k"]) -> Float64[np.ndarray, " k"]:
        """Returns delta at any epsilon, by delta(-e) = 1 - exp(-e) + exp(-e) delta'(e)."""
        below = np.minimum(epsilon, 0.0)
        negative = np.exp(below) * self._chord(self.back, -below) - np.expm1(below)
        return np.where(epsilon < 0, negative, self._chord(self.there, np.maximum(epsilon, 0.0)))

    def _chord(
        self, values: Float64[np.ndarray, " n"], epsilon: Float64[np.ndarray, " k"]
    ) -> Float64[np.ndarray, " k"]:
        """Returns chords of a table, above delta because it is convex in exp(epsilon)."""
        at = np.minimum(epsilon, self.epsilons[-1])
        cell = np.clip(np.searchsorted(self.epsilons, at) - 1, 0, len(self.epsilons) - 2)
        start, stop = self.epsilons[cell], self.epsilons[cell + 1]
        share = np.clip(np.expm1(at - start) / np.expm1(stop - start), 0.0, 1.0)
        return np.asarray((1 - share) * values[cell] + share * values[cell + 1])


def _tables(curve: PrivacyCurve) -> list[_Table]:
    """Returns a table for each order of the neighbours, up to where delta stops falling."""
    trial = 2.0 ** np.arange(-1000, 9.5, 0.5)
    largest = curve.deltas(trial).max(axis=0)
    end = trial[np.argmax(largest <= 2 * largest[-1] + 1e-18)]
    epsilons = np.linspace(0.0, end, _EPSILONS + 1)
    one, other = curve.deltas(epsilons)
    return [_Table(epsilons, one, other), _Table(epsilons, other, one)]


def _mixture(
    event: RepeatAndSelect, table: _Table
) -> tuple[Float64[np.ndarray, " k"], Float64[np.ndarray, " k"]]:
    """Returns log v_k, from 0 upwards, and weights c_k that bound delta of the selection.

    For every epsilon, delta of the selection is at most the sum of c_k delta(epsilon - log v_k).

    With v = exp(epsilon) dP'/dP, the supremum over g is at most H(v), the largest value of
    w (1 - v / r)_+ over the cells of g. There w(g) is largest at the cell's start, and r bounds
    w(g) / w(T(g)) on the cell. T is at most 1 and at most any line exp(e) g + delta'(e). For a line
    that ratio is largest at an end of the cell.

    H is convex, so chords between the v_k lie above it. They are a sum of c_k / v_k (v_k - v)_+,
    and the mean of (v_k - exp(epsilon) dP'/dP)_+ over P is v_k delta(epsilon - log v_k).
    """
    m = event.mean
    if event.tries == "geometric":
        scale = np.exp(np.linspace(0.0, math.log(m), _CELLS + 1))
        g = np.clip((scale - 1) / max(m - 1, 1e-300), 0.0, 1.0)
        w = m / scale[:-1] ** 2
    else:
        g = np.append(np.linspace(0.0, min(1.0, 50 / m), _CELLS), 1.0)
        w = m * np.exp(-m * g[:-1])

    def log_ratio(
        excess: Float64[np.ndarray, " cells"], at: Float64[np.ndarray, " cells"]
    ) -> Float64[np.ndarray, " cells"]:
        """Returns log(w(g) / w(T)) where T - g = excess."""
        if event.tries == "poisson":
            return m * excess
        return np.asarray(2 * np.log1p((m - 1) * excess / (1 + (m - 1) * at)))

    # Every line bounds T. The line that is lowest in the middle of the cell bounds it best.
    rise = np.expm1(table.epsilons)
    meet = -np.diff(table.back) / np.maximum(np.diff(rise), 1e-300)
    line = np.searchsorted(-np.maximum.accumulate(meet[::-1])[::-1], -(g[:-1] + g[1:]) / 2)
    ends = [log_ratio(rise[line] * at + table.back[line], at) for at in (g[:-1], g[1:])]
    log_r = np.minimum(np.maximum(*ends), log_ratio(1 - g[:-1], g[:-1]))

    logs = np.linspace(0.0, max(float(log_r.max()), 1e-15), _KNOTS)
    values = np.array([(w * np.maximum(-np.expm1(one - log_r), 0.0)).max() for one in logs])
    values[-1] = 0.0
    steps = np.exp(logs[:-1]) * np.expm1(np.diff(logs))
    slopes = np.append(np.append(m - values[0], -np.diff(values) / steps), 0.0)
    return logs, np.maximum(-np.diff(slopes), 0.0) * np.exp(logs)


def as_renyi(event: RepeatAndSelect) -> Renyi:
    """Returns the Renyi curve of a selection at `ORDERS`, which all curves share."""
    divergences = selection_divergences(event, np.array(ORDERS))
    return Renyi(orders=ORDERS, divergences=tuple(divergences.tolist()), count=event.count)


def selection_divergences(
    event: RepeatAndSelect, orders: Float[np.ndarray, " orders"]
) -> Float[np.ndarray, " orders"]:
    """Returns bounds on the Renyi divergences of a selection, from those of one try at `orders`."""
    one = _divergences(event.run, orders)
    chosen = one + math.log(event.mean) / (orders - 1)
    if event.tries == "geometric":
        return chosen + 2 * float(np.min((1 - 1 / orders) * one + math.log(event.mean) / orders))
    deltas = [_delta(one, orders, math.log1p(1 / (order - 1))) for order in orders]
    return chosen + event.mean * np.array(deltas)


def draw_tries(event: RepeatAndSelect, generator: np.random.Generator) -> int:
    """Returns a secret number of tries. The generator must be used for nothing else."""
    if event.tries == "geometric":
        return int(generator.geometric(1 / event.mean))
    return int(generator.poisson(event.mean))


def selection_sampler_delta(mean: float, one_try: float) -> float:
    """Returns the delta that the sampler's finite range adds to a selection, at any epsilon.

    The error of its tables costs less than `one_try` holds for them (docs/privacy.md, section 17).

    A try fails if its draws leave the sampler's range, or would leave it with the neighbour's
    shift. Given two neighbours, the try's release determines whether it fails. So a Gaussian try
    that releases "failed" instead, with the highest of all scores, costs no more than before.
    Neither does its selection S. Take any set of outputs without "failed". It is at most as
    likely under S as under the sampled selection, because draws differ only if a try fails. It is
    more likely under the sampled selection by at most P(some try fails) <= mean * P(one fails).
    So that is added once, on the side of one neighbour, and not multiplied by e^epsilon.

    Args:
        mean: mean number of tries.
        one_try: bound on the probability that one try fails (`mechanisms.noise.sampler_delta`).
    """
    return mean * one_try


def _divergences(
    run: Gaussian | SampledGaussian, orders: Float[np.ndarray, " orders"]
) -> Float[np.ndarray, " orders"]:
    if isinstance(run, Gaussian):
        shift = max(1 / run.noise_multiplier, 1e-150)  # its square is no zero
        return orders * (shift * shift / 2)
    return run.count * sampled_gaussian_divergences(run, orders)


def _delta(
    divergences: Float[np.ndarray, " orders"], orders: Float[np.ndarray, " orders"], epsilon: float
) -> float:
    """Returns delta at epsilon from a Renyi curve (Canonne, Kamath and Steinke 2020, Prop. 12)."""
    exponents = (orders - 1) * (divergences - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    return math.exp(min(0.0, float(exponents.min())))
