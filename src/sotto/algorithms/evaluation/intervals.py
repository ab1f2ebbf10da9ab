"""Values and intervals from released sums. Everything here is post-processing of one release.

A value is a ratio r = E x / E v of means over people. At the true ratio, sum (x - r v) has mean
zero, and its variance is estimated by

    D(r) = [S_xx - 2 r S_xv + r^2 S_vv] + [noise of sum x + r^2 noise of sum v]

where S are released second moments and the variances of the noise are known. The interval holds all
r with |sum x - r sum v| <= k sqrt(D(r)) (Fieller 1954). It needs no small error in sum v. If sum v
cannot be told from zero, it is the whole public range.

The factor k is the quantile of Student's law with f degrees of freedom, where 2 / f is the relative
variance of D(r): that of the noise in S, and 2 / (n - 1) for n people who carry weight
(Satterthwaite 1946). The sum of rho / c is at most the effective sample size of Kish (1965), since
rho^2 <= c rho. Where D(r) is little more than noise, k^2 D(r) is at most k'^2 times an upper
confidence limit of D(r), with a quantile k' for n people, and the two share the level. Several
policies share the level (Bonferroni).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.stats import norm
from scipy.stats import t as student

from sotto.algorithms.evaluation.persons import EXCESS, Bounds, Evaluation

_OF_SUMS = 0.8
"""Share of an interval's tail for the sums, where the rest is for their variance."""
_OF_TABLES = 0.1
"""Share of an interval's tail for the errors of tables, where there are tables."""
_EXACT = {"sums": 0.0, "squares": 0.0}


@dataclass(frozen=True)
class Value:
    """The value of one policy.

    Attributes:
        value: estimate, in units of returns.
        low, high: ends of the interval.
        noise: standard deviation of the noise in the estimate, in units of returns; infinite if
            the sum of weights cannot be told from zero.
        mean_weight: estimated mean of the clipped weights, which is 1 without clipping.
        bias: upper bound on the bias from clipping and from the grid, in units of returns. It holds
            with the probability of the interval.
        tables: how much farther each end of the interval is for errors of tables, in units of
            returns; 0 for estimators without tables.
    """

    value: float
    low: float
    high: float
    noise: float
    mean_weight: float
    bias: float
    tables: float = 0.0


@dataclass(frozen=True)
class Moments:
    """Released sums about one policy, in the units of the ratio x / v.

    Attributes:
        x, v: sums over people.
        noise_x, noise_v: variances of their noise.
        squares: second moments S_xx, S_xv and S_vv.
        noise_squares: variances of their noise.
        effective: lower bound on the effective number of people.
    """

    x: float
    v: float
    noise_x: float
    noise_v: float
    squares: tuple[float, float, float]
    noise_squares: tuple[float, float, float]
    effective: float
    off_x: float = 0.0
    off_v: float = 0.0
    """Distances by which the grid may have brought x and v nearer to zero."""


def values(
    asked: Evaluation,
    bounds: Bounds,
    sums: Float[np.ndarray, " numbers"],
    squares: Float[np.ndarray, " numbers"],
    stddevs: dict[str, float],
    level: float,
    errors: Sequence[float] = (),
    truncations: dict[str, float] = _EXACT,
) -> list[Value]:
    """Returns the value of every policy, with intervals that hold for all of them together.

    Args:
        asked: settings.
        bounds: bounds of contributions.
        sums, squares: released parts, not divided.
        stddevs: standard deviation of the noise in each number of a part.
        level: probability of the intervals, such as 0.95.
        errors: root mean square error of each value by its tables, in units of returns. Intervals
            are then wider on both sides, and a tenth of the tail is for these errors.
        truncations: how much nearer to zero the grid may have brought each number of a part.
    """
    count = len(asked.largest_weights)
    whole = (1 - level) / count
    tail = (1 - _OF_TABLES) * whole if errors else whole
    found = []
    for place, largest in enumerate(asked.largest_weights):
        moments, people, noise_people, weight, noise_weight = _moments(
            asked, bounds, sums, squares, stddevs, truncations, place
        )
        ratio, low, high = interval(moments, tail)
        own = np.sqrt(moments.noise_x + ratio**2 * moments.noise_v) / max(moments.v, 1e-300)
        beyond = bounds.beyond[place]
        factor = float(norm.isf(tail / 2 if beyond else tail))
        mean, error = _mean_weight(largest, weight, noise_weight, people, noise_people, factor)
        lost = float(np.clip(1 - mean + error, 0, 1))
        if asked.estimator == "marginalised" and mean + error >= 1:
            lost = 0.0  # none shows beside clipped weights, which are in the excess below
        bias = lost * bounds.lost[place]
        if asked.estimator == "self-normalised":
            bias += lost * max(abs(low), abs(high))
        if beyond:
            number = 1 + count + sum(1 for one in bounds.beyond[:place] if one)
            total, noise = sums[number] / EXCESS, stddevs["sums"] / EXCESS
            total += truncations["sums"] / EXCESS
            bias += beyond * _largest_mean(total, noise, people, noise_people, factor)
        bias += (moments.off_x + abs(ratio) * moments.off_v) / max(moments.v, 1e-300)
        wider = float(norm.isf(_OF_TABLES * whole / 2)) * errors[place] if errors else 0.0
        low, high = (float(asked.middle + asked.half_width * end) for end in (low, high))
        found.append(
            Value(
                value=float(asked.middle + asked.half_width * ratio),
                low=max(low - wider, asked.returns[0]),
                high=min(high + wider, asked.returns[1]),
                noise=float(asked.half_width * own) if moments.v > 0 else float("inf"),
                mean_weight=float(mean),
                bias=float(asked.half_width * min(2.0, bias)),
                tables=wider,
            )
        )
    return found


def _moments(
    asked: Evaluation,
    bounds: Bounds,
    sums: np.ndarray,
    squares: np.ndarray,
    stddevs: dict[str, float],
    truncations: dict[str, float],
    place: int,
) -> tuple[Moments, float, float, float, float]:
    """Returns the moments of a policy, the number of people, the sum of rho / c, and their noise.

    The noise of the last two is a standard deviation. Second moments are as large as they may be
    without the grid: 1 + 2 |r| + r^2 is at most 2 (1 + r^2), so twice its effect on S_xx and S_vv
    covers that on all three.
    """
    count = len(asked.largest_weights)
    first, second = stddevs["sums"] ** 2, stddevs["squares"] ** 2
    off, off_squares = truncations["sums"], truncations["squares"]
    if asked.estimator == "self-normalised":
        vv, xv, xx = squares[1:].reshape(3, count)[:, place]
        moments = Moments(
            x=sums[count + place],
            v=sums[place],
            noise_x=first,
            noise_v=first,
            squares=(xx + 2 * off_squares, xv, vv + 2 * off_squares),
            noise_squares=(second, second, second),
            effective=sums[place],
            off_x=off,
            off_v=off,
        )
        return moments, squares[0], stddevs["squares"], sums[place], stddevs["sums"]
    scale, share = bounds.scales[place], bounds.share
    people, x, weight = sums[0] / share, scale * sums[1 + place], squares[place]
    moments = Moments(
        x=x,
        v=people,
        noise_x=scale**2 * first,
        noise_v=first / share**2,
        squares=(
            scale**2 * (squares[count + place] + 2 * off_squares) + scale * off,
            x,
            people + off * (scale + 2 / share),
        ),
        noise_squares=(scale**4 * second, scale**2 * first, first / share**2),
        effective=weight,
        off_x=scale * off,
        off_v=off / share,
    )
    return moments, people, stddevs["sums"] / share, weight, stddevs["squares"]


def interval(moments: Moments, tail: float) -> tuple[float, float, float]:
    """Returns the ratio and the ends of its interval, all within [-1, 1].

    Args:
        moments: released sums.
        tail: probability that the interval may miss the ratio.
    """
    whole = (0.0, -1.0, 1.0)
    if moments.v <= 0:
        return whole
    ratio = float(np.clip(moments.x / moments.v, -1, 1))
    xx, xv, vv = _without_negative_parts(*moments.squares)
    xx, vv = xx + moments.noise_x, vv + moments.noise_v
    variance = float(xx - 2 * ratio * xv + ratio**2 * vv)
    noise = np.array([1.0, 4 * ratio**2, ratio**4]) @ np.array(moments.noise_squares)
    if variance <= 0:  # nothing varies, and there is no noise
        return ratio, ratio, ratio
    effective = max(moments.effective - 1, 0.1)
    relative = noise / variance**2 + 2 / effective
    largest = student.isf(_OF_SUMS * tail / 2, effective) ** 2
    largest *= 1 + norm.isf((1 - _OF_SUMS) * tail) * np.sqrt(noise) / variance
    factor = float(np.fmin(student.isf(tail / 2, 2 / relative) ** 2, largest))
    if not np.isfinite(factor):
        return whole
    a = moments.v**2 - factor * vv
    b = moments.x * moments.v - factor * xv
    c = moments.x**2 - factor * xx
    if a <= 0:
        return (ratio, -1.0, 1.0)
    root = np.sqrt(max(b * b - a * c, 0.0))
    low, high = np.clip([(b - root) / a, (b + root) / a], -1, 1)
    return ratio, min(float(low), ratio), max(float(high), ratio)


def _without_negative_parts(xx: float, xv: float, vv: float) -> tuple[float, float, float]:
    """Returns the nearest matrix of second moments without negative eigenvalues."""
    sizes, vectors = np.linalg.eigh(np.array([[xx, xv], [xv, vv]]))
    fixed = (vectors * np.maximum(sizes, 0)) @ vectors.T
    return float(fixed[0, 0]), float(fixed[0, 1]), float(fixed[1, 1])


def _mean_weight(
    largest: float,
    weight: float,
    noise_weight: float,
    people: float,
    noise_people: float,
    factor: float,
) -> tuple[float, float]:
    """Returns the mean of the clipped weights, and how far above it the true mean may be.

    A clipped weight is from 0 to c, so its variance is at most m (c - m) for the mean m.
    """
    if people <= 0:
        return 0.0, float("inf")
    mean = largest * weight / people
    likely = float(np.clip(mean, 0, min(1.0, largest)))
    sampling = likely * (largest - likely) / people
    noise = ((largest * noise_weight) ** 2 + (mean * noise_people) ** 2) / people**2
    return mean, float(factor * np.sqrt(sampling + noise))


def _largest_mean(
    total: float, noise: float, people: float, noise_people: float, factor: float
) -> float:
    """Returns an upper bound on the mean of numbers from 0 to 1, from their noisy sum."""
    if people <= 0:
        return 1.0
    mean = total / people
    likely = float(np.clip(mean, 0, 1))
    spread = likely * (1 - likely) / people + (noise**2 + (mean * noise_people) ** 2) / people**2
    return float(np.clip(mean + factor * np.sqrt(spread), 0, 1))
