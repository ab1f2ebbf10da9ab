"""UCB-VI and UCB-PO as in their authors' code (Chowdhury and Zhou 2021), or without noise.

Rules, constants and noise follow the published code, for figures that compare with it. Counters
start at one, and the transition of the last step is not counted. With c = 2 ln 3,

    Q_h = R + b_R + P V_{h+1} + b_P (H - 1 - h).

Values are clipped to [0, H] for UCB-PO, and are not clipped for UCB-VI.

With joint trust, each counter in episode k gets a fresh sum of floor(ln k) + 1 draws of
Laplace(1 / epsilon). With local trust, there is one draw per user, and the same running sum of
draws is added to the counters of all states and actions.

Guarantee:
    None (`GAP`): neither noise gives this epsilon. `sotto.algorithms.ucb.calibrated` has a proof.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, Int, PRNGKeyArray

from sotto.algorithms.settings import Count, Positive, Settings
from sotto.algorithms.ucb.calibrated import (
    CONFIDENCE,
    POLICY_RATE,
    Table,
    TableByStep,
    environment,
    greedy,
    plan,
    play,
    reweighted,
)
from sotto.keys import new_key
from sotto.privacy.accounting.composition import NoGuarantee
from sotto.privacy.statements import Gap
from sotto.rl.tabular import AnyTabularEnvironment, regret
from sotto.trees import repeated

_CHUNK = 100

GAP = Gap(
    name="noise of the published code",
    why="the noise in a counter is Laplace(1 / epsilon) for each level of a tree, whatever the "
    "horizon and the number of counters (three families of them, H visits and log K levels ask for "
    "3 H log K / epsilon), and it is drawn afresh for every episode, so that averaging the plans "
    "of many episodes removes it",
)


@dataclass(frozen=True)
class OfficialConfig(Settings):
    """Settings of the published code."""

    env_id: str = "RiverSwim-v0"
    """Environment with finitely many states."""
    variant: Literal["vi", "po"] = "vi"
    """Policy: greedy on the plan (vi), or exponential weights over plans (po)."""
    trust: Literal["joint", "local"] = "joint"
    """Noise: that of joint trust, or that of local trust."""
    episodes: Count = 2000
    """Number of users, with one episode each."""
    nominal_epsilon: Positive | None = 1.0
    """Epsilon in the code's formulas, which is not a guarantee. None: there is no noise."""
    policy_rate: Positive = POLICY_RATE
    """Learning rate of the exponential weights (po)."""

    @property
    def event(self) -> NoGuarantee:
        """Cost of a run, for the accountant: nothing is bounded."""
        if self.nominal_epsilon is None:
            return NoGuarantee(reason="there is no noise")
        return NoGuarantee(reason=f"{GAP.name}: {GAP.why}")


class OfficialState(NamedTuple):
    """Counters without noise, policy of exponential weights, and summed noise of local trust."""

    visits: Table
    rewards: Table
    transitions: Float[Array, "S A S"]
    policy: TableByStep
    noise: tuple[Float[Array, ""], Float[Array, ""], Float[Array, " S"]]


def simulate(config: OfficialConfig, seeds: Sequence[int]) -> Float64[np.ndarray, "runs episodes"]:
    """Returns the exact regret of the policy in each episode, V* - V^pi, for several seeds."""
    env = environment(config.env_id)
    mdp = env.mdp(env.default_params)
    states, actions = mdp.rewards.shape
    ones = jnp.ones((states, actions))
    zero = jnp.zeros(())
    uniform = jnp.full((mdp.horizon, states, actions), 1 / actions)
    first = OfficialState(
        ones, ones, jnp.ones((states, actions, states)), uniform, (zero, zero, jnp.zeros(states))
    )
    state = repeated(first, len(seeds))
    keys = jax.vmap(new_key)(jnp.asarray(seeds, jnp.uint32))
    chunk = jax.jit(jax.vmap(partial(_episodes, config, env), in_axes=(0, 0, None)))
    losses = []
    for start in range(0, config.episodes, _CHUNK):
        numbers = jnp.arange(start + 1, start + _CHUNK + 1, dtype=jnp.int32)
        state, policies = chunk(state, keys, numbers)
        count = min(_CHUNK, config.episodes - start)
        losses.append(regret(mdp, np.asarray(policies)[:, :count]))
    return np.concatenate(losses, axis=1)


def _episodes(
    config: OfficialConfig,
    env: AnyTabularEnvironment,
    state: OfficialState,
    key: PRNGKeyArray,
    numbers: Int[Array, " k"],
) -> tuple[OfficialState, Float[Array, "k H S A"]]:
    """Plays episodes, and returns the state after them, and their policies."""

    def episode(state: OfficialState, number: Array) -> tuple[OfficialState, TableByStep]:
        noise_key, play_key = jax.random.split(jax.random.fold_in(key, number))
        visits_noise, rewards_noise, noise, summed = _noise(config, state, noise_key, number)
        values = _optimistic(config, state, visits_noise, rewards_noise, noise, number)
        if config.variant == "vi":
            played = following = greedy(values)
        else:
            played, following = state.policy, reweighted(state.policy, values, config.policy_rate)
        here, action, reward, after = play(env, played, play_key)
        counted = OfficialState(
            state.visits.at[here, action].add(1.0),
            state.rewards.at[here, action].add(reward),
            state.transitions.at[here[:-1], action[:-1], after[:-1]].add(1.0),
            following,
            summed,
        )
        return counted, played

    after, policies = jax.lax.scan(episode, state, numbers)
    return after, policies


def _noise(
    config: OfficialConfig, state: OfficialState, key: PRNGKeyArray, number: Int[Array, ""]
) -> tuple[Array, Array, Array, tuple[Array, Array, Array]]:
    """Draws the noise in visits, rewards and transitions of one episode, and the summed noise."""
    if config.nominal_epsilon is None:
        return jnp.zeros(()), jnp.zeros(()), jnp.zeros(()), state.noise
    keys = jax.random.split(key, 3)
    scale = 1 / config.nominal_epsilon
    if config.trust == "local":
        visits, rewards, transitions = (
            total + scale * jax.random.laplace(k, total.shape)
            for total, k in zip(state.noise, keys, strict=True)
        )
        return visits, rewards, transitions, (visits, rewards, transitions)
    most = math.floor(math.log(config.episodes)) + 1
    levels = (jnp.arange(most) < _levels(number)).astype(jnp.float32)
    shapes = (state.visits.shape, state.rewards.shape, state.transitions.shape)
    visits, rewards, transitions = (
        scale * jnp.tensordot(levels, jax.random.laplace(k, (most, *shape)), 1)
        for k, shape in zip(keys, shapes, strict=True)
    )
    return visits, rewards, transitions, state.noise


def _levels(number: Int[Array, ""]) -> Float[Array, ""]:
    """Returns floor(ln k) + 1, for episodes k = 1, 2, ..."""
    return jnp.floor(jnp.log(number.astype(jnp.float32))) + 1


def _optimistic(
    config: OfficialConfig,
    state: OfficialState,
    visits_noise: Array,
    rewards_noise: Array,
    transitions_noise: Array,
    number: Int[Array, ""],
) -> TableByStep:
    """Returns Q_h of the published code."""
    horizon, states, _ = state.policy.shape
    if config.nominal_epsilon is None:
        error = jnp.zeros(())
    elif config.trust == "joint":
        error = jnp.sqrt(_levels(number)) / config.nominal_epsilon
    else:
        error = jnp.sqrt(number.astype(jnp.float32)) / config.nominal_epsilon
    left = jnp.sum(state.transitions, axis=-1)
    moved = jnp.maximum(1.0, left + visits_noise + error)
    paid = jnp.maximum(1.0, state.visits + visits_noise + error)
    rewards = (state.rewards + rewards_noise) / paid
    transitions = (state.transitions + transitions_noise) / moved[..., None]
    reward_bonus = jnp.sqrt(CONFIDENCE / paid) + error / paid
    bonus = jnp.sqrt(CONFIDENCE / moved)
    if config.trust == "joint":
        bonus = bonus + states * error / moved
    remaining = (horizon - 1 - jnp.arange(horizon, dtype=jnp.float32))[:, None, None]
    bonuses = reward_bonus + bonus * remaining
    own, reach = (None, math.inf) if config.variant == "vi" else (state.policy, float(horizon))
    highest = jnp.full(horizon, reach)
    lowest = jnp.full(horizon, -reach if config.variant == "vi" else 0.0)
    return plan(rewards, transitions, bonuses, own, lowest, highest)
