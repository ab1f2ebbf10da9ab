"""Direct preference optimisation on people's own completions, without privacy, for comparison.

Each update is a step of Adam on a minibatch of people's best and worst completions. The loss is
-log sigmoid(BETA (log-ratio of the best - log-ratio of the worst)), where log-ratios are to the
base model (Rafailov et al. 2023, equation 7).
"""

from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import Array, Float

from sotto.algorithms.rlhf.config import RLHFConfig
from sotto.algorithms.rlhf.directions import first_adapter
from sotto.algorithms.rlhf.feedback import Rated
from sotto.rl.language import Adapter, Completions, Decoder, log_probabilities
from sotto.trees import flattened

BETA = 0.1
MINIBATCH = 32
"""Number of people whose pairs make one update."""
UPDATES = 96
"""Largest number of updates. They see four fifths of the default number of people."""
_LEARNING_RATE = 3e-4
_OPTIMISER = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(_LEARNING_RATE))


def optimised(config: RLHFConfig, base: Decoder, log: Rated) -> Adapter:
    """Returns low-rank changes after at most `UPDATES` updates, each on people not seen before.

    Args:
        config: settings of the low-rank changes and of the order of people.
        base: the frozen base model.
        log: ratings of all people, leaves of shape [people, rows, ...].
    """
    chosen = np.stack([log.ratings.argmax(axis=1), log.ratings.argmin(axis=1)], axis=1)
    every = np.arange(len(chosen))[:, None]
    pairs = Rated(*(leaf[every, chosen] for leaf in log))
    adapter = first_adapter(config, base.architecture)
    moments = _OPTIMISER.init(adapter)
    order = np.random.default_rng([config.seed, 0]).permutation(len(chosen))
    size = min(MINIBATCH, len(order))
    for number in range(min(UPDATES, len(order) // size)):
        rows = order[number * size :][:size]
        batch = Rated(*(leaf[rows] for leaf in pairs))
        adapter, moments = _update(adapter, moments, base, batch)
    return adapter


@jax.jit
def _update(adapter: Adapter, moments: Any, base: Decoder, batch: Rated) -> tuple[Adapter, Any]:
    gradient = jax.grad(partial(preference_loss, base=base, batch=batch))(adapter)
    step, moments = _OPTIMISER.update(gradient, moments)
    return optax.apply_updates(adapter, step), moments


def preference_loss(adapter: Adapter, base: Decoder, batch: Rated) -> Float[Array, ""]:
    """Returns the loss of direct preference optimisation; leaves are of shape [pairs, 2, ...]."""
    flat = flattened(batch)
    said = Completions(flat.completions, flat.completion_mask)
    given = base, flat.prompts, flat.prompt_mask, said
    ratio = (log_probabilities(*given, adapter) - log_probabilities(*given)).sum(axis=1)
    best, worst = ratio.reshape(-1, 2).T
    return -jax.nn.log_sigmoid(BETA * (best - worst)).mean()
