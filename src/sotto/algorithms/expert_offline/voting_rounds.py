"""Chooses the states of the votes: along rollouts in a simulator, or in a public box.

The states of a round are functions of earlier rounds and of public randomness, so choosing them is
post-processing of the votes. A simulator is a `World`. It must be public, or a model fitted to
public data, since votes must not be asked at private states of real people.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from sotto.algorithms.expert_offline.distillation import DistillationConfig, distil
from sotto.algorithms.expert_offline.voting import Asked, Votes, shrink
from sotto.algorithms.settings import Count, Probability, Settings
from sotto.data.trajectories import Transitions
from sotto.rl.envs.base import Discrete
from sotto.rl.networks import Policy
from sotto.rl.world import World

_STUDENT = DistillationConfig()


@dataclass(frozen=True)
class DaggerConfig(Settings):
    """Settings of the rollouts that find the states of the next round.

    Attributes:
        rollouts: number of parallel rollouts of the student before each round.
        exploration: probability of a uniform action at each step. Before the first round there is
            no student, and all actions are uniform, unless there is a first policy.
        distillation: settings of the student, which is fitted again after each round.
    """

    rollouts: Count = 32
    exploration: Probability = 0.1
    distillation: DistillationConfig = _STUDENT


def ask_along_students(
    votes: Votes,
    world: World,
    config: DaggerConfig,
    observation_scale: tuple[float, ...],
    key: PRNGKeyArray,
    first: Policy | None = None,
) -> tuple[list[Policy], Asked]:
    """Asks all rounds, each at states along rollouts of the student of the earlier rounds.

    Args:
        votes: poll, whose remaining rounds are used up.
        world: public simulator.
        config: settings.
        observation_scale: observation scale of the student.
        key: randomness of states and students.
        first: public policy from which students start; None draws their weights.

    Returns:
        The student after each round, and the states and votes to which the last one was fitted.

    Source: Ross, Gordon and Bagnell 2011, "A Reduction of Imitation Learning and Structured
    Prediction to No-Regret Online Learning" (DAgger).
    """
    rounds = votes.rounds_left
    size = world.observation_size
    observations = np.zeros((rounds * votes.queries, size), np.float32)
    counts = np.zeros((rounds * votes.queries, votes.actions))
    asked = Asked(observations, counts)
    nobody = Policy(
        size,
        Discrete(votes.actions),
        config.distillation.hidden,
        key,
        observation_scale=observation_scale,
    )
    students: list[Policy] = []
    for number in range(rounds):
        meet_key, choose_key, fit_key = jax.random.split(jax.random.fold_in(key, number), 3)
        exploration = config.exploration if number or first is not None else 1.0
        guide = students[-1] if students else first or nobody
        met = _states_met(world, guide, config.rollouts, exploration, meet_key)
        # Draws with replacement only if the rollouts have fewer states than the round asks.
        chosen = jax.random.choice(
            choose_key, len(met), (votes.queries,), replace=len(met) < votes.queries
        )
        done, filled = number * votes.queries, (number + 1) * votes.queries
        observations[done:filled] = met[np.asarray(chosen)]
        counts[done:filled] = votes.ask(observations[done:filled])
        students.append(
            fit_student(
                votes, asked, config.distillation, observation_scale, fit_key, filled, first
            )
        )
    return students, asked


def ask_in_box(
    votes: Votes,
    low: Float[np.ndarray, " obs"],
    high: Float[np.ndarray, " obs"],
    key: PRNGKeyArray,
) -> Asked:
    """Asks all rounds at states drawn uniformly from a public box, without a simulator.

    Args:
        votes: poll, whose remaining rounds are used up.
        low, high: bounds that do not come from the experts' data.
        key: randomness of the states.
    """
    shape = (votes.rounds_left, votes.queries, len(low))
    asked = np.asarray(
        jax.random.uniform(key, shape, jnp.float32, jnp.asarray(low), jnp.asarray(high))
    )
    counts = [votes.ask(states) for states in asked]
    return Asked(asked.reshape(-1, len(low)), np.concatenate(counts))


def vote_rollouts(votes: Votes, world: World) -> tuple[Transitions, Asked]:
    """Plays parallel rollouts that take the action with most noisy votes at every step.

    A round of votes has one state for each rollout, and each step uses one round. When all rollouts
    have ended, new ones begin, until no round is left. The transitions suit any offline learner.

    Args:
        votes: poll, whose remaining rounds are used up.
        world: public simulator.

    Returns:
        The transitions, ordered by rollout and time, and the states of rollouts that had not ended
        with their noisy votes, in the order of asking.
    """
    steps: list[tuple[np.ndarray, ...]] = []
    rollout, elapsed = 0, 0
    observations = world.reset(votes.queries)
    alive = np.ones(votes.queries, bool)
    while votes.rounds_left:
        if not alive.any() or elapsed == world.cap:
            observations = world.reset(votes.queries)
            alive = np.ones(votes.queries, bool)
            rollout, elapsed = rollout + votes.queries, 0
        counts = votes.ask(observations)
        actions = np.argmax(counts, axis=-1)
        following, rewards, terminated = world.step(actions)
        rows = np.flatnonzero(alive)
        seen = (observations, actions, rewards, following, terminated, counts)
        steps.append((rollout + rows, *(np.asarray(array)[rows] for array in seen)))
        observations, alive, elapsed = following, alive & ~terminated, elapsed + 1
    owner, met, taken, earned, after, ended, answered = (
        np.concatenate(column) for column in zip(*steps, strict=True)
    )
    order = np.argsort(owner, kind="stable")
    transitions = Transitions(
        observations=jnp.asarray(met[order]),
        actions=jnp.asarray(taken[order], jnp.int32),
        rewards=jnp.asarray(earned[order], jnp.float32),
        next_observations=jnp.asarray(after[order]),
        terminated=jnp.asarray(ended[order]),
    )
    return transitions, Asked(met, answered)


def fit_student(
    votes: Votes,
    asked: Asked,
    config: DistillationConfig,
    observation_scale: tuple[float, ...],
    key: PRNGKeyArray,
    filled: int | None = None,
    first: Policy | None = None,
) -> Policy:
    """Fits a student to the shares of votes after shrinking (`voting.shrink`).

    Args:
        votes: poll that gave the votes; only its public numbers are read.
        asked: states and noisy votes.
        config: settings.
        observation_scale: observation scale of the student.
        key: randomness of the initial weights and of the minibatches.
        filled: number of rows in use; None uses all.
        first: public policy from which the student starts, and whose probabilities are the expected
            shares of votes. None draws the weights and expects every action equally often.
    """
    filled = len(asked.counts) if filled is None else filled
    labels = np.zeros(asked.counts.shape, np.float32)
    observations = jnp.asarray(asked.observations)
    expected = None
    if first is not None:
        logits = first(observations[:filled]).logits  # type: ignore[union-attr]
        expected = np.asarray(jax.nn.softmax(logits), np.float64)
    labels[:filled] = shrink(asked.counts[:filled], votes.sigma, votes.experts, expected).shares
    student: Policy = distil(
        config, observation_scale, observations, jnp.asarray(labels), filled, key, first
    )
    return student


def _states_met(
    world: World, student: Policy, rollouts: int, exploration: float, key: PRNGKeyArray
) -> Float[np.ndarray, "met obs"]:
    """Returns the observations at which the student acts, in rollouts up to the end or the cap."""
    observations, alive = world.reset(rollouts), np.ones(rollouts, bool)
    met = []
    for step in range(world.cap):
        met.append(observations[alive])
        actions = _explore(student, observations, exploration, jax.random.fold_in(key, step))
        observations, _, terminated = world.step(np.asarray(actions))
        alive = alive & ~terminated
        if not alive.any():
            break
    return np.concatenate(met)


@jax.jit
def _explore(
    student: Policy, observations: Float[Array, "n obs"], exploration: float, key: PRNGKeyArray
) -> Int[Array, " n"]:
    """Returns the student's greedy action, or with probability `exploration` a uniform one."""
    distribution = student(observations)
    count = distribution.logits.shape[-1]  # type: ignore[union-attr]
    coin_key, action_key = jax.random.split(key)
    shape = observations.shape[:1]
    coins: Bool[Array, " n"] = jax.random.uniform(coin_key, shape) < exploration
    return jnp.where(coins, jax.random.randint(action_key, shape, 0, count), distribution.mode())
