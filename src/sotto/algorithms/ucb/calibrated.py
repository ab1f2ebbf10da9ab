"""UCB-VI and UCB-PO with private counters (Chowdhury and Zhou 2021), and R-MAX, for finite MDPs.

Every episode is one user. Users share counters only: how often each state and action led to each
state, and the sums of rewards. The server makes an optimistic plan from the noisy counters. The
next user follows it, either greedily (UCB-VI) or by a policy of exponential weights over all plans
so far (UCB-PO). R-MAX (`r_max`) has counters of shares, another kind of optimism, and less noise.

The counters are released with the noise that their sensitivity requires. The published code adds
much less; it is in `sotto.algorithms.ucb.published`, and has no guarantee.

Guarantee:
    The stream of noisy counters is Gaussian differentially private for one user's whole episode
    under zero-out adjacency. So is every plan, which is post-processing. See docs/privacy.md,
    section 16.

    `joint` has correlated noise on the sums (section 4), with a square root of the prefix-sum
    workload or a binary tree. The recommendations to all other users are then private even if
    these users collude: this is joint differential privacy (billboard lemma, Hsu et al. 2016).

    `local` has independent noise on each user's counters, which each user could add themselves.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, Int, PRNGKeyArray
from scipy.special import ndtri

from sotto.algorithms.settings import Count, Epsilon, Fraction, Positive, Settings
from sotto.algorithms.ucb import r_max
from sotto.keys import new_key
from sotto.privacy.accounting.composition import Gaussian, calibrate_noise_multiplier
from sotto.privacy.claims import streams as claims
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms import correlated
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Correlation, Once, Part
from sotto.privacy.units import Adjacency, Unit
from sotto.rl.envs.base import Discrete
from sotto.rl.envs.registry import make
from sotto.rl.tabular import AnyTabularEnvironment, TabularEnvironment, regret
from sotto.trees import repeated

CONFIDENCE = 2 * math.log(3)
"""Constant c of the bonus sqrt(c / N), as in the published code. The theory has
2 ln(4 S A T / beta)."""

REWARD_WEIGHT = 0.25
"""Weight of rewards in the counters. An error in a transition costs up to H, and one in a reward
costs 1. So a small weight makes rewards a little less accurate, and it lowers the sensitivity from
1.41 H to 1.03 H."""

_CHUNK = 100
_UNIT = Unit(kind="trajectory", adjacency=Adjacency.ZERO_OUT)

Table = Float[Array, "S A"]
TableByStep = Float[Array, "H S A"]


POLICY_RATE = math.sqrt(2 / 1000)
"""Learning rate of the exponential weights, as in the published code."""

NAMES = {"vi": "UCB-VI", "po": "UCB-PO", "r-max": "R-MAX"}
"""Names of the variants."""


@dataclass(frozen=True)
class UCBConfig(Settings):
    """Settings of UCB-VI, UCB-PO and R-MAX with certified counters."""

    env_id: str = "RiverSwim-v0"
    """Environment with finitely many states, and rewards between 0 and 1."""
    variant: Literal["vi", "po", "r-max"] = "vi"
    """Policy: greedy on a plan with bonuses (vi), exponential weights over such plans (po), or
    greedy on a model in which what noise hides is the best that could be (r-max)."""
    trust: Literal["joint", "local"] = "joint"
    """Place of the noise: a curator adds it to sums (joint), or users to their counters (local)."""
    noise: Literal["prefix-sum", "binary-tree"] = "prefix-sum"
    """Noise over time for trust joint. A binary tree has three times the error."""
    episodes: Count = 2000
    """Number of users, with one episode each. It is the horizon of the noise."""
    target_epsilon: Epsilon = 1.0
    """Epsilon that the certificate must not exceed."""
    delta: Fraction = 1e-5
    """Delta of the guarantee. It must be below 1 / episodes."""
    failure_probability: Fraction = 0.05
    """Probability that the noise in the counters of one state and action exceeds its bound
    (vi and po)."""
    policy_rate: Positive = POLICY_RATE
    """Learning rate of the exponential weights (po), as in the published code."""

    def check(self) -> None:
        """Refuses a delta that would allow one user's data to be published."""
        if self.delta >= 1 / self.episodes:
            raise ValueError(
                f"delta must be below 1 / episodes = {1 / self.episodes:.3g}, got {self.delta:g}"
            )

    @property
    def noise_multiplier(self) -> float:
        """Noise standard deviation over sensitivity; 1/100 of delta is left for the sampler."""
        return calibrate_noise_multiplier(
            lambda z: [Gaussian(noise_multiplier=z)], self.target_epsilon, 0.99 * self.delta
        )

    @property
    def correlation(self) -> Correlation:
        """Correlation of the counters' noise over time."""
        return Correlation(kind="independent" if self.trust == "local" else self.noise)


class Counters(NamedTuple):
    """Counters of one user's episode, or noisy sums of several. R-MAX has shares in them."""

    transitions: Float[Array, "S A S"]
    """Number of times that each state and action led to each state, or the share of times."""
    rewards: Table
    """Sum of rewards times REWARD_WEIGHT, or mean reward times r_max.MEAN_REWARD_WEIGHT."""


class UCBState(NamedTuple):
    """Public state: constants, and functions of releases."""

    counters: Counters
    """Noisy sums over all users so far."""
    policy: TableByStep
    """Action probabilities that the next user follows."""
    episodes: Int[Array, ""]
    """Number of users so far."""
    deviations: Float[Array, " episodes"]
    """Standard deviation of the noise in each counter after 1, 2, ... users, public constants."""


def environment(env_id: str) -> AnyTabularEnvironment:
    """Returns the environment.

    Raises:
        ValueError: its states are not finitely many, or its actions are not discrete.
    """
    env = make(env_id)
    if not (isinstance(env, TabularEnvironment) and isinstance(env.action, Discrete)):
        raise ValueError(
            f"{env_id} has no finite number of states; UCB and R-MAX need one, such as RiverSwim-v0"
        )
    return env


def clip_norm(config: UCBConfig, env: AnyTabularEnvironment) -> float:
    """Returns the bound on the L2 norm of one user's counters.

    For UCB nothing is ever clipped: it is the norm of H visits in one transition counter, and H
    rewards of 1 in one reward counter.
    """
    if config.variant == "r-max":
        return r_max.CLIP_NORM
    return env.max_episode_steps * math.sqrt(1 + REWARD_WEIGHT**2)


def initial_state(config: UCBConfig, env: AnyTabularEnvironment) -> UCBState:
    """Returns the state before the first release: empty counters and uniform actions."""
    assert isinstance(env.action, Discrete)
    shape = (env.observation_size, env.action.n)
    counters = Counters(jnp.zeros((*shape, shape[0])), jnp.zeros(shape))
    policy = jnp.full((env.max_episode_steps, *shape), 1 / shape[1], jnp.float32)
    scale = (
        config.noise_multiplier
        * clip_norm(config, env)
        * correlated.sensitivity(config.correlation, Once(), config.episodes)
    )
    deviations = scale * correlated.prefix_deviations(config.correlation, config.episodes)
    return UCBState(counters, policy, jnp.int32(0), jnp.asarray(deviations, jnp.float32))


def make_release(config: UCBConfig, env: AnyTabularEnvironment) -> Release:
    """Returns the release of one user's counters."""
    return Release(
        name=f"counters of {NAMES[config.variant]}",
        local=partial(_local, config, env),
        server=partial(_server, config),
        unit=_UNIT,
        parts={
            "counters": Part(
                clip_norm=clip_norm(config, env), noise_multiplier=config.noise_multiplier
            )
        },
        slots=1,
        divisor=1.0,
        horizon=config.episodes,
        population="simulated",
        correlation=config.correlation,
        protects=(
            claims.COUNTERS(),
            *((claims.LOCAL_COUNTERS(),) if config.trust == "local" else ()),
        ),
        does_not_protect=(claims.OWN_ACTIONS(), claims.IN_COMMON()),
    )


def play(
    env: AnyTabularEnvironment, policy: TableByStep, key: PRNGKeyArray
) -> tuple[Int[Array, " H"], Int[Array, " H"], Float[Array, " H"], Int[Array, " H"]]:
    """Plays one episode, and returns its states, actions, rewards and next states."""
    reset_key, action_key = jax.random.split(key)
    uniforms = jax.random.uniform(reset_key, (env.reset_size,), jnp.float32)
    first = env.reset(uniforms, env.default_params)

    def step(state: Any, inputs: tuple[Array, Array]) -> tuple[Any, tuple[Array, ...]]:
        probabilities, uniform = inputs
        here = env.state_index(state)
        cumulative = jnp.cumsum(probabilities[here])[:-1]
        action = jnp.sum(uniform >= cumulative, dtype=jnp.int32)
        after, reward, _ = env.step(state, action, env.default_params)
        return after, (here, action, reward, env.state_index(after))

    draws = jax.random.uniform(action_key, (env.max_episode_steps,), jnp.float32)
    here, action, reward, after = jax.lax.scan(step, first, (policy, draws))[1]
    return here, action, reward, after


def _local(
    config: UCBConfig,
    env: AnyTabularEnvironment,
    state: UCBState,
    unit: tuple[()],
    key: PRNGKeyArray,
) -> tuple[dict[str, Counters], dict[str, Array]]:
    """Returns one user's counters, and their return."""
    del unit
    here, action, reward, after = play(env, state.policy, key)
    shape = state.counters.transitions.shape
    if config.variant == "r-max":
        own = Counters(*r_max.shares((shape[0], shape[1]), here, action, reward, after))
        return {"counters": own}, {"reward": jnp.sum(reward)}
    transitions = jnp.zeros(shape, jnp.float32).at[here, action, after].add(1.0)
    rewards = jnp.zeros(shape[:2], jnp.float32).at[here, action].add(REWARD_WEIGHT * reward)
    return {"counters": Counters(transitions, rewards)}, {"reward": jnp.sum(reward)}


def _server(
    config: UCBConfig, state: UCBState, released: dict[str, Counters]
) -> tuple[UCBState, dict[str, Array]]:
    """Returns the next public state, with a new plan and policy. It is post-processing."""
    counters = Counters(*map(jnp.add, state.counters, released["counters"]))
    deviation = state.deviations[state.episodes]
    if config.variant == "r-max":
        rewards, transitions = r_max.model(*counters, deviation)
        bonuses = jnp.zeros_like(state.policy)
    else:
        width = float(ndtri(1 - config.failure_probability / 2))
        rewards, transitions, bonuses = estimates(counters, width * deviation, len(state.policy))
    own = state.policy if config.variant == "po" else None
    left = len(state.policy) - jnp.arange(len(state.policy), dtype=jnp.float32)
    values = plan(rewards, transitions, bonuses, own, jnp.zeros_like(left), left)
    if config.variant == "po":
        policy = reweighted(state.policy, values, config.policy_rate)
    else:
        policy = greedy(values)
    after = UCBState(counters, policy, state.episodes + 1, state.deviations)
    return after, {"policy": policy}


def estimates(
    counters: Counters, error: Float[Array, ""], horizon: int
) -> tuple[Table, Float[Array, "S A S"], TableByStep]:
    """Returns rewards, transitions and bonuses from noisy counters.

    Let e_s' be the noise in N(s, a, s'), let V have values in [0, R], and let N be the sum of
    N(s, a, s') over s'. Then the noise moves the estimate of P V by

        sum over s' of e_s' (V(s') - P V) / N,

    with a standard deviation of at most sqrt(S) R / (2 N) times that of e_s'. This is the second
    term of the bonus. N is taken at the lower end of its bounds.

    Args:
        counters: noisy sums.
        error: bound on the noise of one counter.
        horizon: number of steps of an episode.
    """
    states = counters.transitions.shape[0]
    spread = math.sqrt(states)
    visits = jnp.sum(counters.transitions, axis=-1)
    surely = jnp.maximum(visits - spread * error, 1.0)
    positive = jnp.maximum(counters.transitions, 0.0)
    total = jnp.sum(positive, axis=-1, keepdims=True)
    transitions = jnp.where(total > 0, positive / jnp.maximum(total, 1e-6), 1 / states)
    rewards = jnp.clip(counters.rewards / REWARD_WEIGHT / jnp.maximum(visits, 1.0), 0.0, 1.0)
    remaining = (horizon - 1 - jnp.arange(horizon, dtype=jnp.float32))[:, None, None]
    statistical = jnp.sqrt(CONFIDENCE / surely) * (1 + remaining)
    private = error / surely * (1 / REWARD_WEIGHT + spread * remaining / 2)
    return rewards, transitions, statistical + private


def plan(
    rewards: Table,
    transitions: Float[Array, "S A S"],
    bonuses: TableByStep,
    policy: TableByStep | None,
    lowest: Float[Array, " H"],
    highest: Float[Array, " H"],
) -> TableByStep:
    """Returns optimistic values of each step, state and action, by backward induction.

    Args:
        rewards, transitions: estimates.
        bonuses: bonus that is added at each step.
        policy: policy that is followed after each action. None: the best one.
        lowest, highest: bounds on the values of each step.
    """

    def back(following: Array, inputs: tuple[Array, ...]) -> tuple[Array, Array]:
        bonus, own, low, high = inputs
        values = jnp.clip(rewards + transitions @ following + bonus, low, high)
        before = jnp.max(values, axis=-1) if policy is None else jnp.sum(own * values, axis=-1)
        return before, values

    own = bonuses if policy is None else policy
    last = jnp.zeros(rewards.shape[0], jnp.float32)
    steps = (bonuses, own, lowest, highest)
    values: TableByStep = jax.lax.scan(back, last, steps, reverse=True)[1]
    return values


def greedy(values: TableByStep) -> TableByStep:
    """Returns the policy of best actions. Several best actions are equally likely."""
    best = values >= jnp.max(values, axis=-1, keepdims=True) - 1e-6
    return best / jnp.sum(best, axis=-1, keepdims=True, dtype=jnp.float32)


def reweighted(policy: TableByStep, values: TableByStep, rate: float) -> TableByStep:
    """Returns policy * exp(rate * values), normalised, which is a step of mirror ascent."""
    logits = jnp.log(jnp.maximum(policy, 1e-30)) + rate * values
    return jax.nn.softmax(logits, axis=-1)


def create_ledger(config: UCBConfig, where: Path | str, run_id: str | None = None) -> Ledger:
    """Creates a ledger with the budget and the unit of these settings."""
    budget = Budget(epsilon=config.target_epsilon, delta=config.delta)
    return Ledger.create(where, run_id, unit=_UNIT, budget=budget)


def train(
    config: UCBConfig,
    seeds: Sequence[int],
    ledgers: Sequence[Ledger],
) -> Float64[np.ndarray, "runs episodes"]:
    """Trains with certified counters, several seeds side by side.

    Args:
        config: settings.
        seeds: one per run.
        ledgers: one per run, from `create_ledger`.

    Returns:
        Exact regret of the policy that is played in each episode, V* - V^pi.
    """
    env = environment(config.env_id)
    first = initial_state(config, env)
    states = repeated(first, len(seeds))
    chunk = min(_CHUNK, config.episodes)
    stream = make_release(config, env).open(ledgers, states, chunk=chunk)
    keys = jax.vmap(new_key)(jnp.asarray(seeds, jnp.uint32))
    mdp = env.mdp(env.default_params)
    losses = []
    for start in range(0, config.episodes, chunk):
        count = min(chunk, config.episodes - start)
        people = np.broadcast_to(np.arange(start, start + count)[:, None], (len(seeds), count, 1))
        before = np.asarray(states.policy)[:, None]
        states, log, _ = stream.run(states, keys, people)
        # The policy after a release is the one that the next user follows.
        followed = np.concatenate([before, np.asarray(log["policy"])[:, :-1]], axis=1)
        losses.append(regret(mdp, followed))
    return np.concatenate(losses, axis=1)
