"""Private selection: the best of a secret number of tries, by a score that is private itself.

Guarantee:
    Let one try (draw a candidate by public chance, train it, release its score) have Renyi
    divergences at most e(a) at orders a, for neighbours in both orders, and let K tries be made, K
    drawn in secret and independent of the data. If only the best try's output leaves, selection has
    divergences at most, for geometric K on {1, 2, ...} with mean m,

        e(a) + 2 min over orders b of ((1 - 1/b) e(b) + log(m) / b) + log(m) / (a - 1),

    and for Poisson K with mean m, where one try is also (log(1 + 1/(a - 1)), d)-DP,

        e(a) + m d + log(m) / (a - 1)

    (Papernot and Steinke 2022, Theorem 2 with eta = 1 and Theorem 6, arXiv:2110.03620). Both bounds
    fail for whoever learns K, or what became of a try that lost.
"""

import math

import numpy as np
from jaxtyping import Float

from sotto.privacy.events import Gaussian, Renyi, RepeatAndSelect, SampledGaussian
from sotto.privacy.mechanisms.dirichlet_cost import ORDERS
from sotto.privacy.sampled_gaussian import sampled_gaussian_divergences


def as_renyi(event: RepeatAndSelect) -> Renyi:
    """The Renyi curve of a selection, at the orders of all curves."""
    divergences = selection_divergences(event, np.array(ORDERS))
    return Renyi(orders=ORDERS, divergences=tuple(divergences.tolist()), count=event.count)


def selection_divergences(
    event: RepeatAndSelect, orders: Float[np.ndarray, " orders"]
) -> Float[np.ndarray, " orders"]:
    """Bounds on the Renyi divergences of a selection; those of one try are taken at `orders`."""
    one = _divergences(event.run, orders)
    chosen = one + math.log(event.mean) / (orders - 1)
    if event.tries == "geometric":
        return chosen + 2 * float(np.min((1 - 1 / orders) * one + math.log(event.mean) / orders))
    deltas = [_delta(one, orders, math.log1p(1 / (order - 1))) for order in orders]
    return chosen + event.mean * np.array(deltas)


def draw_tries(event: RepeatAndSelect, generator: np.random.Generator) -> int:
    """How many tries to make, in secret. The generator is used for nothing else."""
    if event.tries == "geometric":
        return int(generator.geometric(1 / event.mean))
    return int(generator.poisson(event.mean))


def selection_sampler_delta(mean: float, one_try: float) -> float:
    """Delta that the sampler adds to a selection, whatever epsilon is: here, of its finite range.

    What its tables cost is less than what `one_try` holds for them (docs/privacy.md, section 17).

    A try fails if its draws leave the sampler's range, or would with the neighbour's shift. Given
    two neighbours that is decided by what the try releases, so that a Gaussian try which releases
    "failed" instead, with the highest of all scores, costs no more than before, and neither does
    its selection S. Any set of outputs but "failed" is at most as likely under S as under the
    sampled selection, where no draw differs unless a try fails; and at most P(some try fails) <=
    mean * P(one fails) more likely under the sampled selection than under S. So that is added
    once, on the side of one neighbour, and never e^epsilon times.

    Args:
        mean: mean number of tries.
        one_try: bound on the probability that one fails (`sotto.privacy.noise.sampler_delta`).
    """
    return mean * one_try


def _divergences(
    run: Gaussian | SampledGaussian, orders: Float[np.ndarray, " orders"]
) -> Float[np.ndarray, " orders"]:
    if isinstance(run, Gaussian):
        return orders / (2 * run.noise_multiplier**2)
    return run.count * sampled_gaussian_divergences(run, orders)


def _delta(
    divergences: Float[np.ndarray, " orders"], orders: Float[np.ndarray, " orders"], epsilon: float
) -> float:
    """Delta at this epsilon, from a Renyi curve (Canonne, Kamath and Steinke 2020, Prop. 12)."""
    exponents = (orders - 1) * (divergences - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    return math.exp(min(0.0, float(exponents.min())))
