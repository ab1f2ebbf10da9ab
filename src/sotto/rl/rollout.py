"""One user's interaction with an environment, as a `lax.scan`; `vmap` it over users.

Everything random in a rollout (actions, resets) is drawn before the loop. A lane is one user's
place in the environment: the state and the steps since the last reset.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from sotto.rl.distributions import Distribution
from sotto.rl.envs.base import AnyEnvironment


class Actor(Protocol):
    """Anything that acts: a policy, or epsilon-greedy action values."""

    def __call__(self, observation: Float[Array, "*batch obs"], /) -> Distribution:
        """The distribution of the action at each observation."""

    def noise(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*shape n"]:
        """Noise that `Distribution.sample` turns into `shape` actions."""


class Trajectory(NamedTuple):
    """What one user contributed, T steps (or a batch of users, with leading dimensions)."""

    observations: Float[Array, "*users T obs"]
    """What the policy saw (not scaled)."""
    actions: Array
    """What the policy chose, before any clipping to a box: [*users, T] or [*users, T, a]; zero
    where not `alive`."""
    rewards: Float[Array, "*users T"]
    next_observations: Float[Array, "*users T obs"]
    """What each step led to, before any reset: where to bootstrap from."""
    terminated: Bool[Array, "*users T"]
    """The episode ended here: nothing follows, the value beyond is zero."""
    truncated: Bool[Array, "*users T"]
    """The time limit was reached here without termination: bootstrap from next_observations."""
    alive: Bool[Array, "*users T"]
    """The step counts. False after the end of the episode when only one episode is wanted."""


class Lane(NamedTuple):
    """Where a user is: the environment's state and the steps since its last reset."""

    state: Any
    elapsed: Int[Array, ""]


def start(env: AnyEnvironment, params: Any, key: PRNGKeyArray) -> Lane:
    """A lane at the start of an episode."""
    uniforms = jax.random.uniform(key, (env.reset_size,), jnp.float32)
    return Lane(env.reset(uniforms, params), jnp.zeros((), jnp.int32))


def rollout(
    env: AnyEnvironment,
    params: Any,
    policy: Actor,
    key: PRNGKeyArray,
    num_steps: int,
    one_episode: bool,
    greedy: bool = False,
) -> Trajectory:
    """`num_steps` steps of one user, from a reset.

    With `one_episode` the user's data ends with the first episode (or after `num_steps`): later
    steps repeat the last state with action and reward zero and `alive` False. Without, the lane is
    reset whenever an episode terminates or reaches the time limit. `greedy`, which goes with
    `one_episode`, takes the mode of the policy, otherwise actions are sampled.
    """
    start_key, key = jax.random.split(key)
    lane = start(env, params, start_key)
    if not one_episode:
        if greedy:
            raise ValueError("a greedy rollout is of one episode; set one_episode")
        trajectory, _ = continue_rollout(env, params, policy, key, lane, num_steps)
        return trajectory

    def step(carry: tuple[Lane, Array], noise: Array) -> tuple[tuple[Lane, Array], Trajectory]:
        lane, alive = carry
        after, seen = _step(env, params, policy, lane, noise, greedy)
        after = _where(alive, after, lane)
        seen = seen._replace(
            actions=jnp.where(alive, seen.actions, 0),
            rewards=jnp.where(alive, seen.rewards, 0.0),
            terminated=seen.terminated & alive,
            truncated=seen.truncated & alive,
            alive=alive,
        )
        return (after, alive & ~(seen.terminated | seen.truncated)), seen

    noise = policy.noise(key, (num_steps,))
    _, trajectory = jax.lax.scan(step, (lane, jnp.ones((), bool)), noise)
    return trajectory


def continue_rollout(
    env: AnyEnvironment,
    params: Any,
    policy: Actor,
    key: PRNGKeyArray,
    lane: Lane,
    num_steps: int,
) -> tuple[Trajectory, Lane]:
    """`num_steps` more steps in a lane, reset whenever an episode ends, and where that led."""
    noise_key, reset_key = jax.random.split(key)
    noise = policy.noise(noise_key, (num_steps,))
    uniforms = jax.random.uniform(reset_key, (num_steps, env.reset_size), jnp.float32)
    fresh = jax.vmap(env.reset, in_axes=(0, None))(uniforms, params)

    def step(lane: Lane, inputs: tuple[Array, Any]) -> tuple[Lane, Trajectory]:
        noise, fresh = inputs
        after, seen = _step(env, params, policy, lane, noise)
        ended = seen.terminated | seen.truncated
        return _where(ended, Lane(fresh, jnp.zeros_like(after.elapsed)), after), seen

    lane, trajectory = jax.lax.scan(step, lane, (noise, fresh))
    return trajectory, lane


def evaluate(
    env: AnyEnvironment,
    params: Any,
    policy: Actor,
    key: PRNGKeyArray,
    episodes: int,
    greedy: bool,
) -> Float[Array, " episodes"]:
    """Undiscounted returns of whole episodes, each from its own reset up to the time limit.

    `greedy` takes the mode of the policy, otherwise actions are sampled.
    """
    noise_key, reset_key = jax.random.split(key)
    noise = policy.noise(noise_key, (env.max_episode_steps, episodes))
    lanes = jax.vmap(lambda k: start(env, params, k))(jax.random.split(reset_key, episodes))

    def advance(lane: Lane, noise: Float[Array, " n"]) -> tuple[Lane, Trajectory]:
        return _step(env, params, policy, lane, noise, greedy)

    def running(carry: tuple[Any, Array, Array, Array]) -> Bool[Array, ""]:
        _, alive, _, t = carry
        return jnp.any(alive) & (t < env.max_episode_steps)

    def step(carry: tuple[Any, Array, Array, Array]) -> tuple[Any, Array, Array, Array]:
        lanes, alive, returns, t = carry
        lanes, seen = jax.vmap(advance)(lanes, noise[t])
        returns = returns + jnp.where(alive, seen.rewards, 0.0)
        return lanes, alive & ~(seen.terminated | seen.truncated), returns, t + 1

    begin = (lanes, jnp.ones((episodes,), bool), jnp.zeros((episodes,), jnp.float32), jnp.int32(0))
    # Stops as soon as every episode has ended, which for good Acrobot policies is early.
    return jax.lax.while_loop(running, step, begin)[2]


def _step(
    env: AnyEnvironment,
    params: Any,
    policy: Actor,
    lane: Lane,
    noise: Float[Array, " n"],
    greedy: bool = False,
) -> tuple[Lane, Trajectory]:
    """One decision: where it led (before any reset), and what was seen."""
    observation = env.observe(lane.state, params)
    distribution = policy(observation)
    action = distribution.mode() if greedy else distribution.sample(noise)
    state, reward, terminated = env.step(lane.state, env.action.clip(action), params)
    elapsed = lane.elapsed + 1
    seen = Trajectory(
        observations=observation,
        actions=action,
        rewards=reward,
        next_observations=env.observe(state, params),
        terminated=terminated,
        truncated=(elapsed >= env.max_episode_steps) & ~terminated,
        alive=jnp.ones_like(terminated),
    )
    return Lane(state, elapsed), seen


def _where(condition: Bool[Array, ""], yes: Lane, no: Lane) -> Lane:
    chosen: Lane = jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
    return chosen
