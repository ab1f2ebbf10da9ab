"""Q-learning from released rewards: collects steps without rewards, and releases the rewards.

The guarantee follows from this order. `collect` acts in an environment whose rewards it cannot see
(`Dynamics`), so its log is public. `reward_release` gives noisy sums of rewards at nodes, and is
the only place where rewards of transitions are evaluated. `released_rewards` and everything after
it is post-processing, with any learner and any number of gradient steps. So action values and
policies may be published (docs/privacy.md, section 13).

Source: Wang and Hegde 2019, whose Algorithm 1 is in `sotto.algorithms.functional_q.paper`.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from sotto.algorithms.baselines.q_learning import EpsilonGreedy
from sotto.algorithms.calibration import gaussian_multiplier
from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.algorithms.functional_q.nodes import by_action, fit
from sotto.privacy.claims import rewards as claims
from sotto.privacy.mechanisms import correlated
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Correlation, Once, Part
from sotto.rl.envs.base import AnyEnvironment
from sotto.rl.rollout import EpisodeState, start_all
from sotto.trees import flattened

_LARGEST_BATCH = 2**22
"""Most numbers that a release computes from transitions at once."""

PUBLIC = (claims.VISITS(), claims.CURVE())
"""Sentences about the facts that no mode protects."""


class Logged(NamedTuple):
    """Steps without their rewards. All fields are public."""

    states: PyTree
    """The environment's state before each step."""
    actions: Int[Array, " steps"]
    observations: Float[Array, "steps obs"]
    next_observations: Float[Array, "steps obs"]
    """Observations after each step, before any reset."""
    terminated: Bool[Array, " steps"]


class Dynamics:
    """An environment without its rewards, so that the actor cannot see them."""

    def __init__(self, env: AnyEnvironment) -> None:
        self.reset_size = env.reset_size
        self.max_episode_steps = env.max_episode_steps
        self.observe = partial(env.observe, params=env.default_params)
        self.reset = partial(env.reset, params=env.default_params)
        self._step = partial(env.step, params=env.default_params)

    def step(self, state: Any, action: Array) -> tuple[Any, Bool[Array, ""]]:
        """Returns the next state and whether the episode terminated there."""
        following, _, terminated = self._step(state, action)
        return following, terminated


def start_lanes(config: FunctionalQConfig, key: PRNGKeyArray) -> EpisodeState:
    """Starts an episode in every parallel environment; leaves have a leading axis of num_envs."""
    env = config.environment
    return start_all(env, env.default_params, key, config.num_envs)


def empty_log(config: FunctionalQConfig) -> Logged:
    """Returns a log of zeros with room for all samples."""
    env, rows = config.environment, config.samples
    state = jax.eval_shape(env.reset, jnp.zeros((env.reset_size,), jnp.float32), env.default_params)
    seen = jnp.zeros((rows, env.observation_size), jnp.float32)
    return Logged(
        states=jax.tree.map(lambda x: jnp.zeros((rows, *x.shape), x.dtype), state),
        actions=jnp.zeros((rows,), jnp.int32),
        observations=seen,
        next_observations=seen,
        terminated=jnp.zeros((rows,), bool),
    )


def collect(
    dynamics: Dynamics, actor: EpsilonGreedy, begin: EpisodeState, key: PRNGKeyArray, steps: int
) -> tuple[Logged, EpisodeState]:
    """Takes `steps` steps in every parallel environment, with a reset after each episode.

    Args:
        dynamics: environment without rewards.
        actor: policy that depends on public data only.
        begin: state of each parallel environment.
        key: randomness of the actions and the resets.
        steps: number of steps of each environment.

    Returns:
        The steps, one environment after the other, and the states after them.
    """

    def one(lane: EpisodeState, key: PRNGKeyArray) -> tuple[EpisodeState, Logged]:
        noise_key, reset_key = jax.random.split(key)
        shape = (steps, dynamics.reset_size)
        fresh = jax.vmap(dynamics.reset)(jax.random.uniform(reset_key, shape, jnp.float32))
        return jax.lax.scan(step, lane, (actor.noise(noise_key, (steps,)), fresh))

    def step(lane: EpisodeState, inputs: tuple[Array, Any]) -> tuple[EpisodeState, Logged]:
        noise, fresh = inputs
        observation = dynamics.observe(lane.state)
        action = actor(observation).sample(noise)
        following, terminated = dynamics.step(lane.state, action)
        seen = Logged(lane.state, action, observation, dynamics.observe(following), terminated)
        ended = terminated | (lane.elapsed + 1 >= dynamics.max_episode_steps)
        state = jax.tree.map(lambda new, old: jnp.where(ended, new, old), fresh, following)
        return EpisodeState(state, jnp.where(ended, 0, lane.elapsed + 1)), seen

    count = jax.tree.leaves(begin)[0].shape[0]
    end, logged = jax.vmap(one)(begin, jax.random.split(key, count))
    return flattened(logged), end


# --- the release of transitions' rewards ---------------------------------------------------------


def correlation(config: FunctionalQConfig) -> Correlation:
    """Returns the correlation of the noise over rounds, for sums over all rounds so far."""
    return Correlation(kind="independent" if config.rounds == 1 else "prefix-sum")


def reward_multiplier(config: FunctionalQConfig) -> float:
    """Returns the noise multiplier of reward sums under zero-out adjacency."""
    if config.sigma is not None:
        spread = correlated.sensitivity(correlation(config), Once(), config.rounds)
        return config.sigma / (config.reward_range / 2 * spread)
    assert config.target_epsilon is not None
    factor = config.privacy_unit.adjacency.sensitivity_factor
    return factor * calibrated(config, config.features * config.rounds)


def calibrated(config: FunctionalQConfig, draws: int) -> float:
    """Returns the least multiplier of one Gaussian mechanism for the target epsilon and delta."""
    target = config.target_epsilon
    assert target is not None
    return gaussian_multiplier(target, config.delta, draws=draws)


def reward_release(config: FunctionalQConfig, rounds_left: int) -> Release:
    """Returns the release of reward sums at nodes.

    A transition adds its reward, minus the middle of the range, to the nodes around its state. The
    weights are not negative and sum to 1, so its contribution has norm at most half the range.
    """
    env, grid, (low, high) = config.environment, config.grid, config.rewards
    by_pair, actions = config.node_variable == "state-action", config.actions

    def local(state: Any, unit: Any, key: PRNGKeyArray) -> tuple[dict[str, Array], tuple[()]]:
        del state, key
        before, action = unit
        following, reward, _ = env.step(before, action, env.default_params)
        about_middle = jnp.clip(reward, low, high) - (low + high) / 2
        if not by_pair:
            return {
                "rewards": grid.spread(env.observe(following, env.default_params), about_middle)
            }, ()
        shares = grid.spread(env.observe(before, env.default_params), about_middle)
        chosen = action == jax.lax.iota(jnp.int32, actions)
        return {"rewards": jnp.where(chosen, shares[:, None], 0.0).reshape(-1)}, ()

    def server(state: Any, released: Any) -> tuple[Any, tuple[()]]:
        return state + released["rewards"], ()

    multiplier = reward_multiplier(config)
    return Release(
        name="rewards at nodes",
        local=local,
        server=server,
        unit=config.privacy_unit,
        parts={"rewards": Part(clip_norm=(high - low) / 2, noise_multiplier=multiplier)},
        slots=config.round_samples,
        divisor=1.0,
        horizon=rounds_left,
        population=config.population,
        correlation=correlation(config),
        microbatch=microbatch(config.features),
        protects=(claims.ONE_REWARD(low=claims.exactly(low), high=claims.exactly(high)),),
        does_not_protect=PUBLIC,
        assumptions=(claims.REWARD_FREE.assumption(),),
    )


def noise_of_sums(config: FunctionalQConfig, rounds: int) -> float:
    """Returns the standard deviation of the noise in sums over the first `rounds` rounds."""
    over_time = correlation(config)
    scale = reward_multiplier(config) * config.reward_range / 2
    scale *= correlated.sensitivity(over_time, Once(), config.rounds)
    if over_time.kind == "independent":
        return scale * math.sqrt(rounds)
    coefficients = correlated.noising_coefficients(over_time, config.rounds)[:rounds]
    return scale * float(np.linalg.norm(np.cumsum(coefficients)))


def reward_weights(config: FunctionalQConfig, logged: Logged, count: int) -> Any:
    """Returns the public weights of the first `count` transitions in each released value."""
    if config.node_variable == "next-state":
        return config.grid.matrix(np.asarray(logged.next_observations[:count]))
    nodes = config.grid.matrix(np.asarray(logged.observations[:count]))
    return by_action(nodes, np.asarray(logged.actions[:count]), config.actions)


def fit_rewards(
    config: FunctionalQConfig, sums: Float[np.ndarray, " features"], logged: Logged, rounds: int
) -> Float[np.ndarray, " features"]:
    """Estimates rewards at nodes from the noisy sums of the first rounds, as post-processing."""
    weights = reward_weights(config, logged, rounds * config.round_samples)
    prior = config.reward_range / math.sqrt(12)
    found = fit(np.asarray(sums, np.float64), weights, noise_of_sums(config, rounds), prior)
    return np.asarray(np.clip(found + config.middle, *config.rewards), np.float32)


def released_rewards(
    config: FunctionalQConfig, rewards: Float[Array, " features"], logged: Logged
) -> Float[Array, " steps"]:
    """Returns the released reward of each transition, interpolated between nodes."""
    grid = config.grid
    if config.node_variable == "next-state":
        return grid.interpolate(rewards[:, None], logged.next_observations)[:, 0]
    table = rewards.reshape(grid.size, config.actions)
    values = grid.interpolate(table, logged.observations)
    return jnp.take_along_axis(values, logged.actions[:, None], axis=1)[:, 0]


def microbatch(size: int) -> int:
    """Returns the number of people with which arrays [people, size] stay small."""
    return max(1, _LARGEST_BATCH // size)
