"""The privacy curve of the Gaussian mechanism, exact for every epsilon.

One Gaussian release of L2 sensitivity 1 at noise multiplier z is the pair N(mu, 1), N(0, 1) with
shift mu = 1/z. Several releases are one with mu^2 = sum mu_i^2. Results are rounded towards safety.
"""

import math
from typing import Any

import numpy as np
from scipy import special

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Returns the least epsilon of one Gaussian release of L2 sensitivity 1 at this delta.

    It is exact to about 1e-11 relative for every epsilon, and never below the truth: the
    hockey-stick divergence at the returned epsilon is at most delta. It is 0 where delta alone
    covers the release.

    Source: Balle and Wang 2018, "Improving the Gaussian Mechanism for Differential Privacy",
    Theorem 8.

    Raises:
        ValueError: if noise_multiplier is not positive and finite, or delta not in (0, 1).
    """
    if not 0 < noise_multiplier < math.inf:
        raise ValueError(
            f"noise_multiplier must be a positive finite number, got {noise_multiplier}"
        )
    return epsilon_of_shift(1 / noise_multiplier, checked_delta(delta))


def _log_delta(mu: float, epsilon: float) -> float:
    """Returns an upper bound, tight up to rounding, on the log of delta(epsilon).

    delta(epsilon) is the hockey-stick divergence of N(mu, 1) and N(0, 1). Let x = epsilon/mu -
    mu/2 and y = x + mu, with density phi and Mills ratio m(t) = Q(t)/phi(t). The identity
    e^epsilon phi(y) = phi(x) gives delta = phi(x) (m(x) - m(y)), in which nothing overflows. For
    small mu the difference is the integral of -m'(t) = 1 - t m(t) over [x, y].
    """
    x, y = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    log_phi = -0.5 * x * x - LOG_SQRT_2PI
    if x > 100:  # delta < e^-5000, so the first term Q(x) < phi(x) / x alone is a good bound
        log_delta = log_phi - math.log(x)
    elif mu <= 1:
        t = (x + y) / 2 + mu / 2 * _NODES
        log_delta = log_phi + math.log(mu / 2 * float(_WEIGHTS @ (1 - t * _mills(t))))
    elif x >= 0:
        log_delta = log_phi + math.log(_mills(x) - _mills(y))
    else:
        log_delta = math.log(special.ndtr(-x) - math.exp(log_phi) * _mills(y))
    rounding = 1e-11 * max(1.0, mu)  # covers the error of x, at most 1e-16 mu, times x < 100
    return min(0.0, log_delta + rounding)


def _mills(t: Any) -> Any:
    """Returns the Mills ratio Q(t) / phi(t) of the normal distribution."""
    return math.sqrt(math.pi / 2) * special.erfcx(t / math.sqrt(2))


def delta_of_shift(mu: float, epsilon: float) -> float:
    """Returns the hockey-stick divergence of N(mu, 1) and N(0, 1); mu may be inf.

    delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), rounded up by about 1e-11
    relative. Source: Balle and Wang 2018, Theorem 8.
    """
    return 0.0 if mu == 0 else math.exp(_log_delta(mu, epsilon))


def epsilon_of_shift(mu: float, delta: float) -> float:
    """Returns the least epsilon with `delta_of_shift(mu, epsilon) <= delta`, rounded up."""
    log_delta = math.log(delta)
    if mu == 0 or _log_delta(mu, 0.0) <= log_delta:
        return 0.0
    # delta(epsilon) < Q(x) = delta at this x; one more standard deviation absorbs rounding.
    upper = mu * (mu / 2 - float(special.ndtri(delta)) + 1)
    lower = 0.0
    while upper - lower > 1e-12 * upper and math.isfinite(upper):
        middle = (lower + upper) / 2
        if _log_delta(mu, middle) <= log_delta:
            upper = middle
        else:
            lower = middle
    return upper


def largest_shift(epsilon: float, delta: float) -> float:
    """Returns the largest shift that costs at most epsilon at this delta, rounded down.

    Raises:
        ValueError: if epsilon is negative, infinite or not a number.
    """
    checked_epsilon(epsilon)
    lower, upper = 0.0, 1.0
    while epsilon_of_shift(upper, delta) <= epsilon:
        lower, upper = upper, 2 * upper
    while upper - lower > 1e-14 * upper:
        middle = (lower + upper) / 2
        if epsilon_of_shift(middle, delta) <= epsilon:
            lower = middle
        else:
            upper = middle
    return lower


def checked_delta(delta: float) -> float:
    """Returns delta if it is strictly between 0 and 1, and raises ValueError otherwise."""
    if not 0 < delta < 1:
        raise ValueError(f"delta must be strictly between 0 and 1, got {delta}")
    return delta


def checked_epsilon(epsilon: float) -> float:
    """Returns epsilon if it is finite and not negative, and raises ValueError otherwise."""
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"epsilon must be a finite number that is not negative, got {epsilon}")
    return epsilon
