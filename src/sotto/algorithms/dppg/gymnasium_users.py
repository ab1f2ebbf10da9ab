"""Users of DPPG in Gymnasium environments, who are collected outside JAX for the release."""

import warnings
from contextlib import suppress
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sotto import cluster
from sotto.algorithms.dppg import exploration
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.exploration import Explored
from sotto.privacy.units import PopulationKind, whose_people
from sotto.rl.envs.base import AnyEnvironment
from sotto.rl.envs.gymnasium import bridge
from sotto.rl.envs.gymnasium.blocks import BLOCK, Block, blocks_of
from sotto.rl.envs.gymnasium.bridge import GymnasiumUsers, processes_for, tell_first_update
from sotto.rl.envs.gymnasium.described import Described
from sotto.rl.envs.gymnasium.unseen import UnseenError
from sotto.rl.networks import Policy
from sotto.rl.rollout import Actor, Trajectory
from sotto.trees import flattened


def people(config: DPPGConfig, env: AnyEnvironment) -> PopulationKind:
    """Returns whether users are simulated or real, as the settings or the environment say.

    Raises:
        ValueError: neither says it, or they disagree.
    """
    simulator = env.simulator if isinstance(env, Described) else True  # JAX reaches nobody
    known: PopulationKind | None = "simulated" if simulator else None
    return whose_people(f"in {config.env_id}", known, config.population)


def require_numbered(config: DPPGConfig, env: AnyEnvironment, setting: str) -> None:
    """Refuses a setting for which the environment must know whom it meets, if it does not.

    Raises:
        ValueError: real people are met, and nobody tells the environment their numbers.
    """
    if config.population == "real" and isinstance(env, Described) and not env.meets_person:
        raise ValueError(
            f"{setting} counts people by their enrolment numbers, so {config.env_id} must meet the "
            "person whose number a reset gives it (options['person']); let it say so with "
            f"metadata['meets_person'] = True, or leave {setting} out"
        )


def require_collectable(config: DPPGConfig, env: AnyEnvironment) -> None:
    """Refuses to meet real people again in an environment that does not know whom it meets.

    Raises:
        ValueError: it does not.
    """
    if config.participations > 1:
        require_numbered(config, env, "participations")
    if config.local_update == "parameter-exploration":  # a person plays twice in a release
        require_numbered(config, env, "parameter-exploration")


class Collector:
    """Collector of the users of one release after the other.

    Every user starts from a reset with their own seed. Only the environments themselves are kept,
    and the certificate states the assumption that they remember nothing of earlier users. On a
    cluster, blocks of users are tasks of its nodes. The result does not depend on which node
    collects a block. The caller must call `close`.

    Raises:
        ValueError: the environment has a wrapper that keeps statistics of earlier users, or real
            people are met on a cluster.
    """

    def __init__(self, config: DPPGConfig) -> None:
        if cluster.connected() and config.population == "real":
            raise ValueError("Ray may write people's data to disks; meet real people without it")
        self._config = config
        copies = _environments(config, config.users_per_update)
        tell_first_update(config.env_id, copies, config.steps_per_user)
        self._users = None if cluster.connected() else _users(config, config.users_per_update)
        # An environment that is not told whom it meets may choose by the seed. Drawn seeds can be
        # equal, so real people's are their enrolment numbers.
        self._meets_by_seed = (
            self._users is not None
            and config.population == "real"
            and not self._users.described().meets_person
        )

    def collect(self, policy: Actor, key: PRNGKeyArray, persons: Int[np.ndarray, " users"]) -> Any:
        """Collects one release's unit data, leaves of shape [users, ...].

        Args:
            policy: the policy that the users follow.
            key: the users' randomness.
            persons: enrolment numbers of the users, who are charged next. An environment that
                asks for them meets these people, also if an earlier attempt has failed.

        Raises:
            UnseenError: something failed with real people. The kind of failure and its message may
                be about them, and are not shown.
        """
        if self._config.population != "real":
            return self._collect(policy, key, persons)
        # A warning or an exception could quote the people's data.
        with warnings.catch_warnings(), np.errstate(all="ignore"), suppress(Exception):
            warnings.simplefilter("ignore")
            return self._collect(policy, key, persons)
        raise UnseenError(self._config.env_id)  # outside the handler, so without a context

    def _collect(self, policy: Actor, key: PRNGKeyArray, persons: Int[np.ndarray, " users"]) -> Any:
        seed_key, act_key = jax.random.split(key)
        count = _environments(self._config, self._config.users_per_update)
        met = np.repeat(persons, _environments(self._config, 1)).tolist()
        drawn = jax.random.randint(seed_key, (count,), 0, 2**31 - 1, jnp.int32)
        seeds = [int(seed) + int(persons[0]) for seed in np.asarray(drawn)]
        if self._users is not None:
            given = met if self._meets_by_seed else seeds
            return _collected(self._config, self._users, policy, act_key, given, met)
        blocks = blocks_of(act_key, seeds, _environments(self._config, BLOCK), met)
        found = cluster.ordered(partial(collect_block, self._config, policy), blocks)
        return jax.tree.map(lambda *leaves: jnp.asarray(np.concatenate(leaves)), *found)

    def close(self) -> None:
        """Closes the environments."""
        if self._users is not None:
            self._users.close()


def collect_block(config: DPPGConfig, policy: Actor, block: Block) -> Any:
    """Collects a block of users on a node, leaves of shape [users, ...]."""
    users = _kept_users(config, len(block.seeds))
    found = _collected(config, users, policy, block.key, block.seeds, block.persons)
    return jax.tree.map(np.asarray, found)


@cache
def _kept_users(config: DPPGConfig, environments: int) -> GymnasiumUsers:
    """Returns environments that this process keeps for later blocks."""
    return _users(config, environments // _environments(config, 1), 1)


def _users(config: DPPGConfig, users: int, processes: int | None = None) -> GymnasiumUsers:
    """Makes the environments of some users."""
    count = _environments(config, users)
    made = GymnasiumUsers(
        config.env_id,
        count,
        processes or processes_for(count),
        action_repeat=config.action_repeat,
        unseen=config.population == "real",
    )
    try:
        without_memory(made.described())
    except ValueError:
        made.close()
        raise
    return made


def _environments(config: DPPGConfig, users: int) -> int:
    """Returns the number of environments of some users."""
    return users * (2 if config.local_update == "parameter-exploration" else 1)


def _collected(
    config: DPPGConfig,
    users: GymnasiumUsers,
    policy: Actor,
    key: PRNGKeyArray,
    seeds: list[int],
    persons: list[int],
) -> Any:
    """Collects the users with these seeds and numbers, one of each for every environment."""
    if config.local_update != "parameter-exploration":
        act = partial(bridge.sampled, policy)
        return users.collect(act, key, seeds, config.steps_per_user, config.one_episode, persons)
    assert isinstance(policy, Policy)
    directions, pairs = _pairs(config, len(seeds) // 2, policy, key)
    returns, steps, ended = users.returns(
        partial(_greedy_each, pairs), key, seeds, config.steps_per_user // 2, persons
    )
    by_user = (jnp.asarray(x.reshape(-1, 2), jnp.float32) for x in (returns, steps, ended))
    return Explored(directions, *by_user)


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


@partial(jax.jit, static_argnums=(0, 1))
def _pairs(
    config: DPPGConfig, users: int, policy: Policy, key: PRNGKeyArray
) -> tuple[Policy, Policy]:
    """Draws every user's direction, [users, ...], and returns it with their two policies."""
    keys = jax.random.split(key, users)
    directions = jax.vmap(lambda k: exploration.direction(policy, k))(keys)
    pairs = jax.vmap(lambda d: exploration.both_ways(config, policy, d))(directions)
    return directions, flattened(pairs)


@jax.jit
def _greedy_each(
    policies: Policy, observations: Float[Array, "episodes obs"], key: PRNGKeyArray
) -> Array:
    del key
    actions: Array = jax.vmap(lambda policy, seen: policy(seen).mode())(policies, observations)
    return actions
