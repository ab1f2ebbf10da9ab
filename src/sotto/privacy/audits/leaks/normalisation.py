"""Normalisation by statistics of several people: of observations over time, or of advantages.

Both rescale the contributions of *other* people. Clipping each contribution then no longer bounds
the effect of one person. PPO normalises advantages over a minibatch (`norm_adv` of CleanRL), and
trainings from human feedback whiten them (`masked_whiten` of TRL). Both are the same leak.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sotto.privacy.audits.audit import ReleaseTrials
from sotto.privacy.audits.leaks.leak import (
    CLAIMED,
    SMALL_CLIP,
    USERS,
    Leak,
    Training,
    against,
    against_certificate,
    enrolled,
    updates,
)
from sotto.privacy.statements import Gap

# --- running statistics of observations ----------------------------------------------------------

_OBS_RELEASES, _OBS_RATE = 12, 0.1


def _observation_local(state: Any, unit: Any, key: Array) -> tuple[Any, Any]:
    """Simulates one step of an honest person; the person under test observes an outlier."""
    observation_key, action_key, reward_key = jax.random.split(key, 3)
    observation = jnp.where(unit, 1000.0, jax.random.normal(observation_key))
    deviation = observation - state["mean"]
    seen = jnp.clip(deviation / jnp.sqrt(state["variance"]), -10, 10)
    probability = jax.nn.sigmoid(state["theta"] * seen)
    action = unit | jax.random.bernoulli(action_key, probability)
    right = 0.2 * (2 * action - 1) * jnp.sign(observation)
    reward = jnp.where(unit, 1.0, 0.5 + right + 0.1 * jax.random.normal(reward_key))
    gradient = 100 * (action - probability) * seen * (jnp.clip(reward, 0, 1) - 0.5)
    return {
        "policy": jnp.clip(gradient, -SMALL_CLIP, SMALL_CLIP),
        "statistic": jnp.stack([deviation, deviation**2 - state["variance"]]),
    }, ()


def _observation_server(state: Any, released: Any) -> tuple[Any, Any]:
    mean_step, variance_step = _OBS_RATE * released["statistic"]
    return {
        "theta": state["theta"] + released["policy"],
        "mean": state["mean"] + mean_step,
        "variance": jnp.maximum(state["variance"] + variance_step, 0.1),
    }, released["policy"]


def _observation_inputs(present: bool) -> tuple[np.ndarray, np.ndarray]:
    return enrolled(present, releases=_OBS_RELEASES), enrolled(True, releases=_OBS_RELEASES) == 0


def _with_squares(increments: Float[np.ndarray, "samples n"]) -> Float[np.ndarray, "samples 2*n"]:
    """Returns scaled increments and their squares, which show that a policy stopped learning."""
    scaled = increments * USERS / SMALL_CLIP
    return np.concatenate([scaled, scaled**2], axis=1)


OBSERVATION_NORMALISER = Training(
    gap=Gap(name="observation normaliser", why="its statistics have no noise"),
    local=_observation_local,
    server=_observation_server,
    state={"theta": 2.0, "mean": 0.0, "variance": 1.0},
    inputs=_observation_inputs,
    releases=_OBS_RELEASES,
    clip_norm=5.0,
    observe=_with_squares,
).leak(
    "observation-normaliser",
    claim="Running statistics of observations are preprocessing and need no noise.",
    why="One outlier rescales all later inputs of all people.",
    remedy="the statistics are a part of the same release, or public ranges replace them",
)

# --- advantages normalised over a batch of people ------------------------------------------------

# Two steps each. Everybody else's returns are almost equal, and the person's are far above.
_ACTIONS = np.array([[1, 0]] + [[1, 1]] * (USERS - 1), dtype=np.float32)
_RETURNS = np.array(
    [[1.0, 0.9]] + [[0.501, 0.501]] * (USERS - 2) + [[0.494, 0.494]], dtype=np.float32
)


def _normalised_within(state: Any, unit: Any, _key: Array) -> Array:
    """Returns one person's gradient, from returns normalised within the person."""
    returns = unit["returns"]
    advantages = (returns - jnp.mean(returns)) / (jnp.std(returns) + 1e-6)
    return _policy_gradient(state, unit["actions"], advantages)


def _normalised_outside(state: Any, unit: Any, _key: Array) -> Array:
    """Returns one person's gradient, from advantages that were normalised before."""
    return _policy_gradient(state, unit["actions"], unit["advantages"])


def _policy_gradient(state: Array, actions: Array, advantages: Array) -> Array:
    return 100 * jnp.mean((actions - jax.nn.sigmoid(state)) * advantages)


def _raw_inputs(present: bool) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    return enrolled(present), {"actions": _ACTIONS[None], "returns": _RETURNS[None]}


def _normalised_inputs(present: bool) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns advantages that a pipeline before the door normalised (whitened) over the batch."""
    persons = enrolled(present)
    batch = _RETURNS[persons[0] >= 0]
    advantages = (_RETURNS - batch.mean()) / (batch.std() + 1e-6)
    return persons, {"actions": _ACTIONS[None], "advantages": advantages[None]}


def _advantage_trials(within_person: bool) -> ReleaseTrials:
    contribution = _normalised_within if within_person else _normalised_outside
    inputs = _raw_inputs if within_person else _normalised_inputs
    return updates(inputs, contribution, clip_norm=SMALL_CLIP)


ADVANTAGE_NORMALISATION = Leak(
    name="advantage-normalisation",
    claim="Advantages may be normalised (PPO) or whitened (RLHF) over the batch, since every "
    "update is clipped afterwards.",
    why="One high return makes all other advantages negative: the sum moves by up to 2K-1 clips.",
    remedy="advantages are normalised within each person",
    claimed_epsilon=CLAIMED,
    leaky=against(CLAIMED, _advantage_trials(within_person=False)),
    sound=against_certificate(_advantage_trials(within_person=True)),
)
