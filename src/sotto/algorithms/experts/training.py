"""Trains thousands of experts with PPO on variants of an environment (Sharma et al. 2024).

An expert is a function of a public seed and of its number. They fix its variant of the physics, its
learning rate, the update after which it stops, and all randomness. Experts of environments written
in JAX are trained in one compiled program; `experts.gymnasium` trains the others.

Experts are judged, logged and later asked in the default environment. Nothing here is private.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from sotto.algorithms.baselines import ppo
from sotto.algorithms.baselines.ppo import Networks, PPOConfig, PPOState
from sotto.data.trajectories import ExpertLog, Transitions
from sotto.keys import new_key
from sotto.rl.distributions import Categorical
from sotto.rl.envs.base import AnyEnvironment, Discrete
from sotto.rl.envs.registry import make
from sotto.rl.envs.variants import Variants, variants
from sotto.rl.envs.wrappers import LogReward
from sotto.rl.networks import Policy
from sotto.rl.rollout import Trajectory, evaluate, rollout, start_all
from sotto.trees import at, repeated


@dataclass(frozen=True)
class Recipe:
    """Settings by which the experts of an environment are trained.

    Attributes:
        ppo: settings of PPO. Each expert has its own learning rate, which stays constant.
        learning_rates: learning rates from which each expert's is drawn uniformly.
        stops: numbers of updates from which each expert's last update is drawn uniformly.
        time_limit: most steps of an episode during training.
        cap: most steps of an episode that is logged or judged, in the default environment.
        base: settings of PPO for one policy from which all experts start. None gives every expert
            its own fresh networks.
        log_reward: scale of the logarithmic rewards from which experts learn. None keeps the
            environment's rewards.
    """

    ppo: PPOConfig
    learning_rates: tuple[float, ...]
    stops: tuple[int, ...]
    time_limit: int
    cap: int
    base: PPOConfig | None = None
    log_reward: float | None = None


class ExpertPlan(NamedTuple):
    """The numbers, variants and settings of the experts."""

    numbers: Int[np.ndarray, " experts"]
    variants: Variants
    learning_rates: Float[np.ndarray, " experts"]
    stops: Int[np.ndarray, " experts"]
    """Number of updates after which each expert stops."""

    def select(self, rows: Int[np.ndarray, " n"]) -> "ExpertPlan":
        """Returns the plan of the experts in these rows."""
        return ExpertPlan(
            self.numbers[rows],
            self.variants.select(rows),
            self.learning_rates[rows],
            self.stops[rows],
        )


def plan(env_id: str, recipe: Recipe, experts: int, seed: int) -> ExpertPlan:
    """Returns the first experts of a seed; a larger number does not change the first ones.

    The experts take the variants in a random order, so that a few experts spread over the whole
    grid. The order repeats when there are more experts than variants.

    Raises:
        ValueError: `experts` is below 1, or the environment has no variants.
    """
    if experts < 1:
        raise ValueError(f"experts must be at least 1, got {experts}")
    grid = variants(env_id)
    orders, rates, stops = (np.random.default_rng([seed, purpose]) for purpose in range(3))
    order = orders.permutation(len(grid.values))
    numbers = np.arange(experts)
    return ExpertPlan(
        numbers,
        grid.select(order[numbers % len(order)]),
        np.asarray(recipe.learning_rates)[rates.integers(len(recipe.learning_rates), size=experts)],
        np.asarray(recipe.stops)[stops.integers(len(recipe.stops), size=experts)],
    )


class _Learner(NamedTuple):
    """The inputs of one expert's training."""

    params: Any
    learning_rate: Float[Array, ""]
    stop: Int[Array, ""]
    key: PRNGKeyArray


def train_base(
    env_id: str, recipe: Recipe, seed: int, report: Callable[[float, float], None]
) -> Networks:
    """Trains the base policy and critic in the default environment.

    Args:
        env_id: name of an environment written in JAX.
        recipe: recipe with a base.
        seed: seed of the networks and the episodes.
        report: function of the share of the training that is done and of the greedy return.
    """
    assert recipe.base is not None
    env = learning_environment(env_id, recipe)
    alone = replace(recipe, ppo=recipe.base)
    defaults = type(env.default_params)(
        **{
            name: jnp.full(1, value, jnp.float32)
            for name, value in vars(env.default_params).items()
        }
    )
    learner = _Learner(
        defaults,
        jnp.full(1, recipe.base.learning_rate, jnp.float32),
        jnp.full(1, recipe.base.num_updates, jnp.int32),
        new_key(seed)[None],
    )
    state = _begin(env, alone, learner)
    share = math.ceil(recipe.base.num_updates / 5)
    for done in range(share, recipe.base.num_updates + share, share):  # the learner stops in time
        state = _advance(env, alone, learner, state, share)
        mean = judge(env_id, state.networks.policy, np.zeros(1, int), seed, recipe.cap, 1).mean()
        report(min(1.0, done / recipe.base.num_updates), float(mean))
    base: Networks = at(state.networks, 0)
    return base


def learning_environment(env_id: str, recipe: Recipe) -> AnyEnvironment:
    """Returns the environment in which experts learn."""
    env: AnyEnvironment = replace(make(env_id), max_episode_steps=recipe.time_limit)
    return env if recipe.log_reward is None else LogReward.of(env, recipe.log_reward)


def train(
    env_id: str, recipe: Recipe, chosen: ExpertPlan, seed: int, base: Networks | None = None
) -> Policy:
    """Trains these experts in parallel.

    One compiled program makes a few updates and is called until all experts have stopped. It is
    fastest to train experts together that stop together.

    Args:
        env_id: name of an environment written in JAX.
        recipe: settings of the training.
        chosen: experts to train.
        seed: seed of the plan.
        base: networks from which all experts start. None gives every expert its own fresh networks.

    Returns:
        The policies; every leaf has a leading axis of experts.
    """
    env = learning_environment(env_id, recipe)
    learners = _Learner(
        chosen.variants.params(),
        jnp.asarray(chosen.learning_rates, jnp.float32),
        jnp.asarray(chosen.stops, jnp.int32),
        expert_keys(seed, 0, chosen.numbers),
    )
    states = _begin(env, recipe, learners)
    if base is not None:
        states = states._replace(networks=repeated(base, len(chosen.numbers)))
    common = int(np.gcd.reduce(recipe.stops))
    for _ in range(int(chosen.stops.max()) // common):
        states = _advance(env, recipe, learners, states, common)
    policies: Policy = states.networks.policy
    return policies


def expert_keys(seed: int, purpose: int, numbers: Int[np.ndarray, " n"]) -> PRNGKeyArray:
    """Returns a key for each expert. Purposes are 0 (training), 1 (judging) and 2 (logging)."""
    key = jax.random.fold_in(new_key(seed), purpose)
    return jax.vmap(partial(jax.random.fold_in, key))(jnp.asarray(numbers, jnp.uint32))


@partial(jax.jit, static_argnames=("env", "recipe"))
def _begin(env: AnyEnvironment, recipe: Recipe, learners: _Learner) -> PPOState:
    def one(learner: _Learner) -> PPOState:
        network_key, lane_key, _ = jax.random.split(learner.key, 3)
        lanes = start_all(env, learner.params, lane_key, recipe.ppo.num_envs)
        return ppo.begin(recipe.ppo, env, network_key, lanes)

    return jax.vmap(one)(learners)


@partial(jax.jit, static_argnames=("env", "recipe", "updates"))
def _advance(
    env: AnyEnvironment, recipe: Recipe, learners: _Learner, states: PPOState, updates: int
) -> PPOState:
    """Makes `updates` more updates of every expert that has not stopped."""

    def one(learner: _Learner, state: PPOState) -> PPOState:
        # PPO reads its settings while JAX traces this function, so the learning rate may be traced.
        rate: Any = learner.learning_rate
        config = replace(recipe.ppo, learning_rate=rate)
        training_key = jax.random.split(learner.key, 3)[2]

        def step(state: PPOState, _: None) -> tuple[PPOState, None]:
            key = jax.random.fold_in(training_key, state.updates)
            after = ppo.update_in(env, learner.params, config, state, key)[0]
            going = state.updates < learner.stop
            return jax.tree.map(lambda new, old: jnp.where(going, new, old), after, state), None

        return jax.lax.scan(step, state, None, length=updates)[0]

    return jax.vmap(one)(learners, states)


def judge(
    env_id: str,
    policies: Policy,
    numbers: Int[np.ndarray, " experts"],
    seed: int,
    cap: int,
    episodes: int,
) -> Float[np.ndarray, "experts episodes"]:
    """Returns the undiscounted returns of greedy experts in the default environment.

    Episodes have at most `cap` steps.
    """
    env = replace(make(env_id), max_episode_steps=cap)
    returns: np.ndarray = np.asarray(_judge(env, policies, expert_keys(seed, 1, numbers), episodes))
    return returns


@partial(jax.jit, static_argnames=("env", "episodes"))
def _judge(
    env: AnyEnvironment, policies: Policy, keys: PRNGKeyArray, episodes: int
) -> Float[Array, "experts episodes"]:
    def one(policy: Policy, key: PRNGKeyArray) -> Float[Array, " episodes"]:
        return evaluate(env, env.default_params, policy, key, episodes, greedy=True)

    return jax.vmap(one)(policies, keys)


class Floored(eqx.Module):
    """A policy that takes the greedy action with probability 1 - (A - 1) floor.

    It takes each of the other A - 1 actions with probability `floor`.
    """

    policy: Policy
    floor: float = eqx.field(static=True)

    def __call__(self, observation: Float[Array, "*batch obs"]) -> Categorical:
        """Returns the distribution of the action; it depends on the greedy action alone."""
        distribution = self.policy(observation)
        if not isinstance(distribution, Categorical):
            raise TypeError("a floor needs a policy with discrete actions")
        actions = distribution.logits.shape[-1]
        best = distribution.mode()[..., None] == jax.lax.iota(jnp.int32, actions)
        return Categorical(jnp.log(jnp.where(best, 1 - (actions - 1) * self.floor, self.floor)))

    def noise(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*shape 1"]:
        """Draws the uniform numbers that `Categorical.sample` turns into `shape` actions."""
        return self.policy.noise(key, shape)


def blank(env: AnyEnvironment, config: PPOConfig) -> Networks:
    """Returns networks of the shapes and scales that an environment and PPO's settings give.

    Args:
        env: environment in which experts learn, see `learning_environment`.
        config: settings of PPO.
    """
    return ppo.begin(config, env, new_key(0), ()).networks


def actions_of(env: AnyEnvironment) -> int:
    """Returns the number of actions.

    Raises:
        ValueError: the actions are not discrete.
    """
    if not isinstance(env.action, Discrete):
        raise ValueError(f"experts need discrete actions, and those of {env.id} are not")
    return env.action.n


def check_floor(floor: float, actions: int) -> None:
    """Refuses a floor that makes the greedy action less likely than another.

    Raises:
        ValueError: the floor is below 0, or not below 1 / actions.
    """
    if not 0 <= floor < 1 / actions:
        raise ValueError(
            f"floor must be at least 0 and below 1/{actions}, one over the number of actions; got "
            f"{floor:g}"
        )


Play = Callable[[str, Floored, PRNGKeyArray, int, int], Trajectory]
"""Function that plays episodes, with the arguments of `play`."""


def play(env_id: str, policies: Floored, keys: PRNGKeyArray, cap: int, episodes: int) -> Trajectory:
    """Plays episodes of at most `cap` steps in the default environment, which is written in JAX.

    Returns trajectories of shape [experts, episodes, cap, ...].
    """
    env = replace(make(env_id), max_episode_steps=cap)
    played: Trajectory = jax.tree.map(np.asarray, _play(env, policies, keys, episodes))
    return played


def logs(
    env_id: str,
    policies: Policy,
    numbers: Int[np.ndarray, " experts"],
    seed: int,
    floor: float,
    cap: int,
    episodes: int,
    play: Play = play,
) -> ExpertLog:
    """Returns a log of floored experts in the default environment.

    Args:
        env_id: name of the environment.
        policies: policies of the experts.
        numbers: numbers of the experts in the population.
        seed: seed of the episodes.
        floor: least probability of every action.
        cap: most steps of an episode.
        episodes: number of episodes of each expert.
        play: function that plays the episodes.

    Raises:
        ValueError: the floor is not below one over the number of actions.
    """
    check_floor(floor, policies.network.biases[-1].shape[-1])
    keys = expert_keys(seed, 2, numbers)
    return _as_log(play(env_id, Floored(policies, floor), keys, cap, episodes))


@partial(jax.jit, static_argnames=("env", "episodes"))
def _play(env: AnyEnvironment, policies: Floored, keys: PRNGKeyArray, episodes: int) -> Trajectory:
    def one(policy: Floored, key: PRNGKeyArray) -> Trajectory:
        def episode(key: PRNGKeyArray) -> Trajectory:
            return rollout(
                env, env.default_params, policy, key, env.max_episode_steps, one_episode=True
            )

        return jax.vmap(episode)(jax.random.split(key, episodes))

    return jax.vmap(one)(policies, keys)


def _as_log(played: Trajectory) -> ExpertLog:
    """Returns episodes [experts, episodes, T] as a log; nothing after an episode's end is kept."""
    alive: Bool[np.ndarray, "experts episodes T"] = np.asarray(played.alive)
    lengths = alive.sum(axis=-1, keepdims=True)
    lasts = np.arange(1, alive.shape[-1] + 1) == lengths

    found = Transitions(
        played.observations.astype(np.float32),
        played.actions.astype(np.int32),
        played.rewards.astype(np.float32),
        played.next_observations.astype(np.float32),
        played.terminated,
    )
    transitions = Transitions(*(np.asarray(array)[alive] for array in found))
    return ExpertLog(transitions, lasts[alive], lengths.sum(axis=(1, 2)))
