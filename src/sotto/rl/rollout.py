"""One user's interaction with an environment in JAX, as a `lax.scan`; apply `vmap` for users.

All randomness of a rollout (actions and resets) is drawn before the loop.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from sotto.rl.distributions import Distribution
from sotto.rl.envs.base import AnyEnvironment


class Actor(Protocol):
    """A policy, or anything else that chooses actions, such as epsilon-greedy action values."""

    def __call__(self, observation: Float[Array, "*batch obs"], /) -> Distribution:
        """Returns the distribution of the action at each observation."""

    def noise(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*shape n"]:
        """Draws the noise that `Distribution.sample` turns into `shape` actions."""


class Trajectory(NamedTuple):
    """T steps of one user, or of a batch of users with leading dimensions."""

    observations: Float[Array, "*users T obs"]
    """Observations before each step, not scaled."""
    actions: Array
    """Actions as the policy chose them, before clipping to a box: [*users, T] or [*users, T, a];
    zero where not `alive`."""
    rewards: Float[Array, "*users T"]
    next_observations: Float[Array, "*users T obs"]
    """Observations after each step, before any reset; their values are used for bootstrapping."""
    terminated: Bool[Array, "*users T"]
    """Whether the episode ended with this step; the value beyond is zero."""
    truncated: Bool[Array, "*users T"]
    """Whether the time limit was reached without termination; bootstrap from next_observations."""
    alive: Bool[Array, "*users T"]
    """Whether the step counts; False after the end of a user's only episode."""


class EpisodeState(NamedTuple):
    """State of one user's environment, and the number of steps since its last reset."""

    state: Any
    elapsed: Int[Array, ""]


def start(env: AnyEnvironment, params: Any, key: PRNGKeyArray) -> EpisodeState:
    """Resets an environment."""
    uniforms = jax.random.uniform(key, (env.reset_size,), jnp.float32)
    return EpisodeState(env.reset(uniforms, params), jnp.zeros((), jnp.int32))


def start_all(env: AnyEnvironment, params: Any, key: PRNGKeyArray, count: int) -> EpisodeState:
    """Resets as many copies of an environment; all leaves have a leading axis of them."""
    return jax.vmap(lambda one: start(env, params, one))(jax.random.split(key, count))


def rollout(
    env: AnyEnvironment,
    params: Any,
    policy: Actor,
    key: PRNGKeyArray,
    num_steps: int,
    one_episode: bool,
    greedy: bool = False,
) -> Trajectory:
    """Collects `num_steps` steps of one user, from a reset.

    With `one_episode`, the user's data end with the first episode: later steps repeat the last
    state, with action and reward zero and `alive` False. Otherwise the environment is reset
    whenever an episode terminates or reaches the time limit. With `greedy`, which needs
    `one_episode`, actions are the policy's mode; otherwise they are sampled.
    """
    start_key, key = jax.random.split(key)
    now = start(env, params, start_key)
    if not one_episode:
        if greedy:
            raise ValueError("a greedy rollout has one episode; set one_episode")
        trajectory, _ = continue_rollout(env, params, policy, key, now, num_steps)
        return trajectory

    def step(
        carry: tuple[EpisodeState, Array], noise: Array
    ) -> tuple[tuple[EpisodeState, Array], Trajectory]:
        now, alive = carry
        after, seen = _step(env, params, policy, now, noise, greedy)
        after = _where(alive, after, now)
        seen = seen._replace(
            actions=jnp.where(alive, seen.actions, 0),
            rewards=jnp.where(alive, seen.rewards, 0.0),
            terminated=seen.terminated & alive,
            truncated=seen.truncated & alive,
            alive=alive,
        )
        return (after, alive & ~(seen.terminated | seen.truncated)), seen

    noise = policy.noise(key, (num_steps,))
    _, trajectory = jax.lax.scan(step, (now, jnp.ones((), bool)), noise)
    return trajectory


def continue_rollout(
    env: AnyEnvironment,
    params: Any,
    policy: Actor,
    key: PRNGKeyArray,
    now: EpisodeState,
    num_steps: int,
) -> tuple[Trajectory, EpisodeState]:
    """Collects `num_steps` more steps, with a reset whenever an episode ends.

    Returns:
        The steps, and the state from which the next call continues.
    """
    noise_key, reset_key = jax.random.split(key)
    noise = policy.noise(noise_key, (num_steps,))
    uniforms = jax.random.uniform(reset_key, (num_steps, env.reset_size), jnp.float32)
    fresh = jax.vmap(env.reset, in_axes=(0, None))(uniforms, params)

    def step(now: EpisodeState, inputs: tuple[Array, Any]) -> tuple[EpisodeState, Trajectory]:
        noise, fresh = inputs
        after, seen = _step(env, params, policy, now, noise)
        ended = seen.terminated | seen.truncated
        return _where(ended, EpisodeState(fresh, jnp.zeros_like(after.elapsed)), after), seen

    now, trajectory = jax.lax.scan(step, now, (noise, fresh))
    return trajectory, now


def evaluate(
    env: AnyEnvironment,
    params: Any,
    policy: Actor,
    key: PRNGKeyArray,
    episodes: int,
    greedy: bool,
) -> Float[Array, " episodes"]:
    """Returns undiscounted returns of whole episodes, each from a reset up to the time limit.

    With `greedy`, actions are the policy's mode; otherwise they are sampled.
    """
    noise_key, reset_key = jax.random.split(key)
    noise = policy.noise(noise_key, (env.max_episode_steps, episodes))
    all_now = start_all(env, params, reset_key, episodes)

    def advance(now: EpisodeState, noise: Float[Array, " n"]) -> tuple[EpisodeState, Trajectory]:
        return _step(env, params, policy, now, noise, greedy)

    def running(carry: tuple[Any, Array, Array, Array]) -> Bool[Array, ""]:
        _, alive, _, t = carry
        return jnp.any(alive) & (t < env.max_episode_steps)

    def step(carry: tuple[Any, Array, Array, Array]) -> tuple[Any, Array, Array, Array]:
        all_now, alive, returns, t = carry
        all_now, seen = jax.vmap(advance)(all_now, noise[t])
        returns = returns + jnp.where(alive, seen.rewards, 0.0)
        return all_now, alive & ~(seen.terminated | seen.truncated), returns, t + 1

    begin = (
        all_now,
        jnp.ones((episodes,), bool),
        jnp.zeros((episodes,), jnp.float32),
        jnp.int32(0),
    )
    # The loop stops when every episode has ended, which is early for good Acrobot policies.
    return jax.lax.while_loop(running, step, begin)[2]


def _step(
    env: AnyEnvironment,
    params: Any,
    policy: Actor,
    now: EpisodeState,
    noise: Float[Array, " n"],
    greedy: bool = False,
) -> tuple[EpisodeState, Trajectory]:
    """Takes one step; returns the state after it (before any reset), and what was observed."""
    observation = env.observe(now.state, params)
    distribution = policy(observation)
    action = distribution.mode() if greedy else distribution.sample(noise)
    state, reward, terminated = env.step(now.state, env.action.clip(action), params)
    reward, terminated = jnp.asarray(reward), jnp.asarray(terminated)  # a user's may be constants
    elapsed = now.elapsed + 1
    seen = Trajectory(
        observations=observation,
        actions=action,
        rewards=reward,
        next_observations=env.observe(state, params),
        terminated=terminated,
        truncated=(elapsed >= env.time_limit(params)) & ~terminated,
        alive=jnp.ones_like(terminated),
    )
    return EpisodeState(state, elapsed), seen


def _where(condition: Bool[Array, ""], yes: EpisodeState, no: EpisodeState) -> EpisodeState:
    chosen: EpisodeState = jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
    return chosen
