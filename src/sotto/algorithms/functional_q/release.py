"""Q-learning from released rewards: steps are collected without rewards, which the door releases.

The order is the proof. `collect` acts in an environment whose rewards it cannot see (`Dynamics`);
what it logs is public. `reward_release` gives noisy sums of rewards at nodes, and is the only place
where rewards of transitions are evaluated. `released_rewards` and everything after it, any number
of gradient steps of any learner, is post-processing: action values and policies may be published.

Source: Wang and Hegde 2019, whose Algorithm 1 is in `sotto.algorithms.functional_q.paper`; this is
option C of the theory notes, B6.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from sotto.algorithms.baselines.q_learning import EpsilonGreedy
from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.algorithms.functional_q.nodes import by_action, fit
from sotto.privacy.accounting.composition import Gaussian, calibrate_noise_multiplier
from sotto.privacy.claims import rewards as claims
from sotto.privacy.mechanisms import correlated
from sotto.privacy.mechanisms.noise import calibrate_with_sampler, sampler_delta
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Correlation, Once, Part
from sotto.rl.envs.base import AnyEnvironment
from sotto.rl.rollout import EpisodeState, start

_LARGEST_BATCH = 2**22  # numbers of transitions that the door maps at once

PUBLIC = (claims.VISITS(), claims.CURVE())
"""What no mode protects."""


class Logged(NamedTuple):
    """Steps as they were taken, without rewards: all of it is public."""

    states: PyTree
    """The environment's state before each step."""
    actions: Int[Array, " steps"]
    observations: Float[Array, "steps obs"]
    next_observations: Float[Array, "steps obs"]
    """What each step led to, before any reset."""
    terminated: Bool[Array, " steps"]


class Dynamics:
    """An environment without its rewards: whoever acts in it cannot look at them."""

    def __init__(self, env: AnyEnvironment) -> None:
        self.reset_size = env.reset_size
        self.max_episode_steps = env.max_episode_steps
        self.observe = partial(env.observe, params=env.default_params)
        self.reset = partial(env.reset, params=env.default_params)
        self._step = partial(env.step, params=env.default_params)

    def step(self, state: Any, action: Array) -> tuple[Any, Bool[Array, ""]]:
        """The next state, and whether the episode terminated there."""
        following, _, terminated = self._step(state, action)
        return following, terminated


def start_lanes(config: FunctionalQConfig, key: PRNGKeyArray) -> EpisodeState:
    """Environments at the start of an episode, with a leading axis of num_envs."""
    env = config.environment
    keys = jax.random.split(key, config.num_envs)
    return jax.vmap(lambda k: start(env, env.default_params, k))(keys)


def empty_log(config: FunctionalQConfig) -> Logged:
    """Room for all samples."""
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
    dynamics: Dynamics, actor: EpsilonGreedy, lanes: EpisodeState, key: PRNGKeyArray, steps: int
) -> tuple[Logged, EpisodeState]:
    """Every environment takes `steps` steps, reset whenever an episode ends.

    Args:
        dynamics: where to act.
        actor: made of public things only.
        lanes: where each environment is.
        key: randomness of the actions and of the resets.
        steps: of each environment.

    Returns:
        The steps, environment after environment, and where they led.
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

    count = jax.tree.leaves(lanes)[0].shape[0]
    lanes, logged = jax.vmap(one)(lanes, jax.random.split(key, count))
    flat: Logged = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), logged)
    return flat, lanes


# --- the release of transitions' rewards ---------------------------------------------------------


def correlation(config: FunctionalQConfig) -> Correlation:
    """Noise over rounds: what is learned from are sums over all rounds so far."""
    return Correlation(kind="independent" if config.rounds == 1 else "prefix-sum")


def reward_multiplier(config: FunctionalQConfig) -> float:
    """Noise multiplier of reward sums, in zero-out terms: from sigma, or calibrated."""
    if config.sigma is not None:
        spread = correlated.sensitivity(correlation(config), Once(), config.rounds)
        return config.sigma / (config.reward_range / 2 * spread)
    assert config.target_epsilon is not None
    factor = config.privacy_unit.adjacency.sensitivity_factor
    return factor * calibrated(config, config.features * config.rounds)


def calibrated(config: FunctionalQConfig, draws: int) -> float:
    """The least multiplier of one Gaussian mechanism for the target, sampler's delta included."""
    target = config.target_epsilon
    assert target is not None

    def least(delta: float) -> float:
        return calibrate_noise_multiplier(lambda z: [Gaussian(noise_multiplier=z)], target, delta)

    return calibrate_with_sampler(least, lambda z: sampler_delta(z, draws), config.delta)


def reward_release(config: FunctionalQConfig, rounds_left: int) -> Release:
    """The release of reward sums at nodes: each transition adds its reward to the nodes around.

    One transition contributes its reward about the middle of the range, shared out with weights
    that are not negative and sum to 1: a vector of norm at most half the range.
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
    slots = config.round_samples
    return Release(
        name="rewards at nodes",
        local=local,
        server=server,
        unit=config.privacy_unit,
        parts={"rewards": Part(clip_norm=(high - low) / 2, noise_multiplier=multiplier)},
        slots=slots,
        divisor=1.0,
        horizon=rounds_left,
        population=config.population,
        correlation=correlation(config),
        microbatch=_microbatch(slots, config.features),
        protects=(claims.ONE_REWARD(low=f"{low:g}", high=f"{high:g}"),),
        does_not_protect=PUBLIC,
        assumptions=(claims.REWARD_FREE.assumption(),),
    )


def noise_of_sums(config: FunctionalQConfig, rounds: int) -> float:
    """Standard deviation of the noise of sums over the first `rounds` rounds."""
    over_time = correlation(config)
    scale = reward_multiplier(config) * config.reward_range / 2
    scale *= correlated.sensitivity(over_time, Once(), config.rounds)
    if over_time.kind == "independent":
        return scale * math.sqrt(rounds)
    coefficients = correlated.noising_coefficients(over_time, config.rounds)[:rounds]
    return scale * float(np.linalg.norm(np.cumsum(coefficients)))


def reward_weights(config: FunctionalQConfig, logged: Logged, count: int) -> Any:
    """Public weights of the first `count` transitions over the features of a reward release."""
    if config.node_variable == "next-state":
        return config.grid.matrix(np.asarray(logged.next_observations[:count]))
    nodes = config.grid.matrix(np.asarray(logged.observations[:count]))
    return by_action(nodes, np.asarray(logged.actions[:count]), config.actions)


def fit_rewards(
    config: FunctionalQConfig, sums: Float[np.ndarray, " features"], logged: Logged, rounds: int
) -> Float[np.ndarray, " features"]:
    """Rewards at nodes, from the noisy sums of the first `rounds` rounds; post-processing."""
    weights = reward_weights(config, logged, rounds * config.round_samples)
    prior = config.reward_range / math.sqrt(12)
    found = fit(np.asarray(sums, np.float64), weights, noise_of_sums(config, rounds), prior)
    return np.asarray(np.clip(found + config.middle, *config.rewards), np.float32)


def released_rewards(
    config: FunctionalQConfig, rewards: Float[Array, " features"], logged: Logged
) -> Float[Array, " steps"]:
    """The released reward of each transition, linear between nodes; post-processing."""
    grid = config.grid
    if config.node_variable == "next-state":
        return grid.interpolate(rewards[:, None], logged.next_observations)[:, 0]
    table = rewards.reshape(grid.size, config.actions)
    values = grid.interpolate(table, logged.observations)
    return jnp.take_along_axis(values, logged.actions[:, None], axis=1)[:, 0]


def _microbatch(slots: int, features: int) -> int | None:
    """The largest divisor of the slots with which the door's arrays stay small."""
    most = max(1, _LARGEST_BATCH // features)
    if slots <= most:
        return None
    return max(size for size in range(1, most + 1) if slots % size == 0)
