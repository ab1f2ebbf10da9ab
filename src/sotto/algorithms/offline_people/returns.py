"""Expected returns of a policy in the learned models, for the doubly-robust values of policies.

Everything here is post-processing of releases: fitted Q evaluation (Le, Voloshin and Yue 2019,
"Batch Policy Learning under Constraints", algorithm 3) with the mean of the learned models in place
of logged rows, backwards from the last step.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sotto.algorithms.evaluation.models import ReturnModel, factors
from sotto.algorithms.evaluation.policies import Probabilities
from sotto.algorithms.offline_people.config import OfflinePeopleConfig
from sotto.algorithms.offline_people.model import Model, in_units
from sotto.algorithms.offline_people.moments import FAR, inputs, monomials, products
from sotto.algorithms.settings import known

_DEGREE = 2


def expected_returns(
    config: OfflinePeopleConfig, model: Model, policy: Probabilities, steps: int, discount: float
) -> ReturnModel:
    """Returns the returns that the models expect of a policy, from each step on.

    Args:
        config: settings of the training.
        model: what it learned.
        policy: a policy for categories of actions.
        steps: number of steps of a person.
        discount: factor of later rewards.
    """
    actions = known(config.actions)
    low, high = known(config.reward_bounds)
    blank = ReturnModel(
        jnp.zeros((actions, len(factors(len(config.centre), _DEGREE)))),
        jnp.asarray(config.centre, jnp.float32),
        jnp.asarray(config.scale, jnp.float32),
        _DEGREE,
    )
    weights = jnp.mean(model.weights, axis=0)

    @jax.jit
    def targets(later: Float[Array, "actions f"]) -> Float[Array, "particles actions"]:
        """Returns reward and later return of each action, at every logged state."""
        found = []
        for action in range(actions):
            acted = jnp.full(len(model.starts), action)
            psi = monomials(inputs(config, model.starts, acted, model.scales), products(config))
            mean = psi @ weights[action]
            ends = jnp.clip(mean[:, -1:], 0, 1)
            change = jnp.clip(mean[:, :-2] / jnp.maximum(1 - ends, 0.5), -FAR, FAR)
            x = jnp.clip(model.starts + change * model.scales.spread, -1, 1)
            seen = in_units(config, x)
            after = jnp.sum(policy(seen) * (blank.features(seen) @ later.T), axis=-1)
            reward = low + (high - low) * jnp.clip(mean[:, -2], 0, 1)
            found.append(reward + discount * (1 - ends[:, 0]) * after)
        return jnp.stack(found, axis=-1)

    features = np.asarray(blank.features(in_units(config, model.starts)), np.float64)
    solve = np.linalg.pinv(features, rcond=1e-3)
    every = [blank.weights]
    for _ in range(steps):
        found = solve @ np.asarray(targets(every[0]), np.float64)
        every.insert(0, jnp.asarray(found.T, jnp.float32))
    return ReturnModel(jnp.stack(every[:-1]), blank.centre, blank.scale, _DEGREE)
