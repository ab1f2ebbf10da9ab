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

from sotto.privacy.audits.audit import ReleaseTrials
from sotto.privacy.audits.leaks.leak import (
    CLAIMED,
    PERSON,
    SMALL_CLIP,
    USERS,
    Leak,
    Z,
    against,
    against_certificate,
    enrolled,
)
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Gap, Part

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
        "value": _VALUE_RATE * advantage,
    }, ()


def _server(state: Any, released: Any) -> tuple[Any, Any]:
    theta = state["theta"] + released["policy"]
    value = jnp.clip(state["value"] + released["value"], 0, 1)
    return {"theta": theta, "value": value}, released["policy"]


def _inputs(present: bool) -> tuple[np.ndarray, np.ndarray]:
    return enrolled(present, releases=_RELEASES), enrolled(True, releases=_RELEASES) == 0


def _trials(private_critic: bool) -> ReleaseTrials:
    policy = {"policy": Part(clip_norm=SMALL_CLIP, noise_multiplier=Z)}
    value = {"value": Part(clip_norm=_VALUE_RATE, noise_multiplier=Z)}
    gap = Gap(name="critic", why="it is fitted to everybody's returns without noise")
    release = Release(
        name="policy and critic",
        local=_local,
        server=_server,
        unit=PERSON,
        parts=policy | value if private_critic else policy,
        unprotected={} if private_critic else {"value": gap},
        clipping="joint",
        slots=USERS,
        divisor=USERS,
        horizon=_RELEASES,
        population="simulated",
    )
    state = {"theta": jnp.float32(2.0), "value": jnp.float32(0.5)}
    return ReleaseTrials(release, state, _inputs, np.asarray)


CRITIC = Leak(
    name="non-private-critic",
    claim="The critic needs no noise, since only policy updates are released.",
    why="The critic outlives its users, and its shift flips the clipped updates of later users.",
    remedy="the critic's update is a part of the same release, clipped jointly with the policy's",
    claimed_epsilon=CLAIMED,
    leaky=against(CLAIMED, _trials(private_critic=False)),
    sound=against_certificate(_trials(private_critic=True)),
)
