"""A critic that is not private: the value function is fitted to returns without noise.

The task is a policy gradient on one state, two actions and one step. The adversary sees only the
released policies. One person's high return moves the critic, and thereby the sign of the tiny
advantages of all later people. Each of their clipped updates then changes by 2 S.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sotto.privacy.audits.leaks.leak import SMALL_CLIP, Training, enrolled
from sotto.privacy.statements import Gap

_RELEASES, _VALUE_RATE = 6, 0.5


def _local(state: Any, unit: Any, key: Array) -> tuple[Any, Any]:
    """Simulates one honest person; the person under test takes action 1 and gets reward 1."""
    action_key, reward_key = jax.random.split(key)
    probability = jax.nn.sigmoid(state["theta"])
    action = unit | jax.random.bernoulli(action_key, probability)
    reward = jnp.where(unit, 1.0, 0.5 + 0.02 * jax.random.normal(reward_key))
    advantage = jnp.clip(reward, 0, 1) - state["value"]
    gradient = 100 * (action - probability) * advantage
    return {
        "policy": jnp.clip(gradient, -SMALL_CLIP, SMALL_CLIP),
        "statistic": _VALUE_RATE * advantage,
    }, ()


def _server(state: Any, released: Any) -> tuple[Any, Any]:
    theta = state["theta"] + released["policy"]
    value = jnp.clip(state["value"] + released["statistic"], 0, 1)
    return {"theta": theta, "value": value}, released["policy"]


def _inputs(present: bool) -> tuple[np.ndarray, np.ndarray]:
    return enrolled(present, releases=_RELEASES), enrolled(True, releases=_RELEASES) == 0


_TRAINING = Training(
    gap=Gap(name="critic", why="it is fitted to everybody's returns without noise"),
    local=_local,
    server=_server,
    state={"theta": 2.0, "value": 0.5},
    inputs=_inputs,
    releases=_RELEASES,
    clip_norm=_VALUE_RATE,
    clipping="joint",
)

CRITIC = _TRAINING.leak(
    "non-private-critic",
    claim="The critic needs no noise, since only policy updates are released.",
    why="The critic outlives its users, and its shift flips the clipped updates of later users.",
    remedy="the critic's update is a part of the same release, clipped jointly with the policy's",
)
