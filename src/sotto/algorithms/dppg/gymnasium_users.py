"""Users of DPPG in Gymnasium environments, which are collected outside JAX for the release."""

import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.algorithms.dppg import exploration
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.exploration import Explored
from sotto.rl.envs.base import AnyEnvironment
from sotto.rl.envs.gymnasium import bridge
from sotto.rl.envs.gymnasium.bridge import Described, GymnasiumUsers, processes_for
from sotto.rl.envs.gymnasium.unseen import UnseenError
from sotto.rl.networks import Policy
from sotto.rl.rollout import Actor, Trajectory


class Collector:
    """Parallel environments for the users of one release, which later releases use again.

    Every user starts from a reset with their own seed. Only the environments themselves are kept,
    and the certificate states the assumption that they remember nothing of earlier users. The
    caller must call `close`.

    Raises:
        ValueError: the environment has a wrapper that keeps statistics of earlier users.
    """

    def __init__(self, config: DPPGConfig) -> None:
        self._config = config
        self._exploring = config.local_update == "parameter-exploration"
        count = config.users_per_update * (2 if self._exploring else 1)
        self._users = GymnasiumUsers(
            config.env_id,
            count,
            processes_for(count),
            action_repeat=config.action_repeat,
            unseen=config.population == "real",
        )
        try:
            without_memory(self._users.described())
        except ValueError:
            self.close()
            raise

    def collect(self, policy: Actor, key: PRNGKeyArray, first_person: int) -> Any:
        """Collects one release's unit data, leaves of shape [users, ...].

        Args:
            policy: the policy that the users follow.
            key: the users' randomness.
            first_person: enrolment number of the first user. No earlier release had these users.

        Raises:
            UnseenError: something failed with real people. The kind of failure and its message may
                be about them, and are not shown.
        """
        if self._config.population == "simulated":
            return self._collect(policy, key, first_person)
        # A warning or an exception could quote the people's data.
        with warnings.catch_warnings(), np.errstate(all="ignore"), suppress(Exception):
            warnings.simplefilter("ignore")
            return self._collect(policy, key, first_person)
        raise UnseenError(self._config.env_id)  # outside the handler, so without a context

    def _collect(self, policy: Actor, key: PRNGKeyArray, first_person: int) -> Any:
        seed_key, act_key = jax.random.split(key)
        drawn = jax.random.randint(seed_key, (self._users.num_users,), 0, 2**31 - 1, jnp.int32)
        seeds = [int(seed) + first_person for seed in np.asarray(drawn)]
        if self._exploring:
            assert isinstance(policy, Policy)
            return self._explore(policy, act_key, seeds)
        config = self._config
        return self._users.collect(
            partial(bridge.sampled, policy),
            act_key,
            seeds,
            config.steps_per_user,
            config.one_episode,
        )

    def _explore(self, policy: Policy, key: PRNGKeyArray, seeds: Sequence[int]) -> Explored:
        directions, pairs = _pairs(self._config, policy, key)
        returns, steps, ended = self._users.returns(
            partial(_greedy_each, pairs), key, seeds, self._config.steps_per_user // 2
        )
        by_user = (jnp.asarray(x.reshape(-1, 2), jnp.float32) for x in (returns, steps, ended))
        return Explored(directions, *by_user)

    def close(self) -> None:
        """Closes the environments."""
        self._users.close()


def without_memory(env: Described) -> Described:
    """Returns the environment, if none of its wrappers keeps statistics of earlier users.

    Raises:
        ValueError: one of its wrappers keeps running statistics.
    """
    if env.normalisers:
        raise ValueError(
            f"{env.id} is wrapped in {env.normalisers[0]}, whose statistics are made of earlier "
            "users; leave it out, and use --observation-statistics, which are released with noise"
        )
    return env


def nothing_collected(config: DPPGConfig, env: AnyEnvironment, policy: Policy) -> Any:
    """Returns empty unit data of one release, with which the release checks `local`.

    Args:
        config: settings.
        env: the training environment.
        policy: a policy of the right shapes.
    """
    users, steps = config.users_per_update, config.steps_per_user
    if config.local_update == "parameter-exploration":
        pair = jnp.zeros((users, 2), jnp.float32)
        directions = jax.tree.map(lambda x: jnp.zeros((users, *x.shape), x.dtype), policy)
        return Explored(directions, pair, pair, pair)
    seen = jnp.zeros((users, steps, env.observation_size), jnp.float32)
    flags = jnp.zeros((users, steps), bool)
    rewards = jnp.zeros((users, steps), jnp.float32)
    shape = getattr(env.action, "shape", ())
    actions = jnp.zeros((users, steps, *shape), jnp.float32 if shape else jnp.int32)
    return Trajectory(seen, actions, rewards, seen, flags, flags, flags)


@partial(jax.jit, static_argnums=0)
def _pairs(config: DPPGConfig, policy: Policy, key: PRNGKeyArray) -> tuple[Policy, Policy]:
    """Draws every user's direction, [users, ...], and returns it with their two policies."""
    keys = jax.random.split(key, config.users_per_update)
    directions = jax.vmap(lambda k: exploration.direction(policy, k))(keys)
    pairs = jax.vmap(lambda d: exploration.both_ways(config, policy, d))(directions)
    flat: Policy = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), pairs)
    return directions, flat


@jax.jit
def _greedy_each(
    policies: Policy, observations: Float[Array, "episodes obs"], key: PRNGKeyArray
) -> Array:
    del key
    actions: Array = jax.vmap(lambda policy, seen: policy(seen).mode())(policies, observations)
    return actions
