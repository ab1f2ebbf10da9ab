"""Calibrates the noise that hides rewards from Q-learning, exactly and as one paper prints it.

`paper_noise` is Theorem 5 of Wang and Hegde 2019 as printed, which is not a certificate
(`PAPER_GAPS`). The other calibrations are exact: one Gaussian mechanism with its analytic epsilon.

Guarantee:
    The unit is one reward or the reward function, within a stated radius (docs/privacy.md, section
    13). A function or vector of sensitivity D that is released K times with fresh noise
    sigma = z D sqrt(K) is Gaussian with multiplier z (Theorem 6 there). Computing from it costs
    nothing more.
"""

import math
from dataclasses import dataclass

from sotto.privacy.accounting.composition import Gaussian, calibrate_noise_multiplier
from sotto.privacy.accounting.gaussian import checked_delta, checked_epsilon
from sotto.privacy.statements import Gap

# --- exact noise ---------------------------------------------------------------------------------


def multiplier_for(epsilon: float, delta: float) -> float:
    """Returns the least noise multiplier of one Gaussian mechanism; 3.497 for (0.9, 1e-4)."""
    return calibrate_noise_multiplier(lambda z: [Gaussian(noise_multiplier=z)], epsilon, delta)


def averager_factor(discount: float, iterations: int) -> float:
    """Returns a bound on how far averager fitted Q-iteration moves if each reward moves by 1.

    It is (1 - discount^K) / (1 - discount). An averager does not expand distances, so each
    iteration adds 1 to discount times the distance before. It is attained where all rewards move
    by 1.
    """
    if not 0 <= discount <= 1 or iterations < 1:
        raise ValueError(
            f"discount must be in [0, 1] and iterations at least 1, got {discount}, {iterations}"
        )
    return math.fsum(discount**k for k in range(iterations))


# --- limits of every learner ---------------------------------------------------------------------


def largest_success(epsilon: float, delta: float, steps: int = 1) -> float:
    """Returns a bound on the probability of learning well under a reward and its mirror image.

    No behaviour is good under both r and (low + high) - r. Let neighbours reach from one to the
    other in k steps. Then a learner that succeeds on both with probability p has
    p <= e^(k epsilon) (1 - p) + delta_k, delta_k = delta (1 + e^epsilon + ... + e^((k-1) epsilon)).

    Returns:
        The bound; 1 where privacy does not limit learning.
    """
    checked_epsilon(epsilon)
    checked_delta(delta)
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if steps * epsilon > 700:
        return 1.0
    grown = delta * math.fsum(math.exp(k * epsilon) for k in range(steps))
    odds = math.exp(steps * epsilon)
    return min(1.0, (odds + grown) / (1 + odds))


def impossibility(epsilon: float, delta: float, radius: float, reward_range: float) -> str | None:
    """Returns a sentence if privacy makes reliable learning impossible, and None otherwise.

    Args:
        epsilon: of the whole training.
        delta: of the whole training.
        radius: of neighbouring reward functions.
        reward_range: largest minus smallest reward.
    """
    steps = math.ceil(reward_range / radius - 1e-9)
    success = largest_success(epsilon, delta, max(1, steps))
    if success > 0.95:
        return None
    return (
        f"the radius {radius:g} is {radius / reward_range:.3g} times the reward range "
        f"{reward_range:g}, so a reward function and its mirror image are "
        + ("neighbours" if steps <= 1 else f"{steps} neighbours apart")
        + f": no learner with epsilon {epsilon:g} and delta {delta:g} does well on both with "
        f"probability above {success:.3f}"
    )


# --- the paper -----------------------------------------------------------------------------------

PAPER_GAPS = (
    Gap(name="returned function", why="Q itself is returned, without noise"),
    Gap(
        name="unreleased parameters",
        why="each step starts from parameters that were never released, so changes accumulate",
    ),
    Gap(
        name="batch size",
        why="all rewards of a batch differ between neighbours, so nothing is divided by it",
    ),
    Gap(
        name="Lipschitz constant",
        why="the one that matters is in the parameters, and nothing bounds it",
    ),
    Gap(name="difference", why="the slope of a difference is up to 2 L, not L"),
    Gap(name="actions", why="one path for each action, and sensitivity counts one of them"),
    Gap(name="reused path", why="two releases under one path differ by an update without noise"),
    Gap(name="tail", why="the bound on the path's maximum does not hold for sigma above 1"),
    Gap(name="rewards", why="temporal differences are taken to be at most 2, and are not bounded"),
)
"""Reasons why Theorem 5 is not a guarantee (docs/privacy.md, section 13)."""

PAPER_AUDITED_EPSILON = 4.39
"""Lower bound on epsilon of Algorithm 1 at the noise of Theorem 5 for 0.9, at 95% confidence.

It comes from 300 trials each of two rewards. `sotto audit --leaks functional-noise` runs more of
them (docs/privacy.md, section 13).
"""


@dataclass(frozen=True)
class PaperNoise:
    """The noise that Theorem 5 of Wang and Hegde 2019 asks for.

    Attributes:
        sigma: standard deviation of the paths.
        beta: of their kernel.
        k: constant of the theorem, which assumes that noise stays below it.
        resets: the reset factor J, which is the number of fresh paths.
    """

    sigma: float
    beta: float
    k: float
    resets: float


def paper_noise(
    steps: int,
    batch: int,
    lipschitz: float,
    learning_rate: float,
    epsilon: float,
    delta: float,
    resets: float | None = None,
) -> PaperNoise:
    """Returns the noise of Theorem 5 as printed, with equality; it is not a guarantee.

    v = 4 alpha (k+1) / B, beta = 1 / v, sigma^2 = 2 (T/B) ln(e + epsilon/d) (v^2 + v) L^2 /
    epsilon^2, 2k = 8.68 sqrt(beta) sigma + sqrt(2 ln(J/d)), with d = delta / 2 in both places.

    Args:
        steps: number of samples T.
        batch: B.
        lipschitz: L of the function approximation.
        learning_rate: alpha.
        epsilon: claimed epsilon.
        delta: claimed delta; half of it is for the tail.
        resets: J (default: T/B, a fresh path at every step).
    """
    resets = steps / batch if resets is None else resets
    settings = (steps, batch, lipschitz, learning_rate, epsilon, resets)
    if not all(0 < value < math.inf for value in settings):
        raise ValueError("steps, batch, lipschitz, learning_rate and epsilon must all be positive")
    half = checked_delta(delta) / 2
    tail = math.sqrt(2 * math.log(max(1.0, resets / half)))
    noise = 2 * (steps / batch) * math.log(math.e + epsilon / half) / epsilon**2 * lipschitz**2
    # 2k - tail = 8.68 sqrt(noise (1 + rate (k + 1))), whose larger root in k is taken.
    rate = 4 * learning_rate / batch
    push = 8.68**2 * noise
    linear = 4 * tail + push * rate
    constant = tail**2 - push * (1 + rate)
    k = (linear + math.sqrt(linear**2 - 16 * constant)) / 8
    v = rate * (k + 1)
    return PaperNoise(math.sqrt(noise * (v * v + v)), 1 / v, k, resets)
