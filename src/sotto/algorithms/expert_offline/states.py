"""The sources, states and policies of a training from private experts."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from sotto.algorithms.expert_offline import dp_sgd
from sotto.algorithms.expert_offline.clones import CloneConfig, Clones, ballot_weights
from sotto.algorithms.expert_offline.config import ExpertOfflineConfig
from sotto.algorithms.expert_offline.dp_sgd import DPSGDExpertsConfig, DPSGDState
from sotto.algorithms.expert_offline.presets import DataFacts
from sotto.algorithms.offline import learner as offline
from sotto.algorithms.offline.learner import OfflineState
from sotto.algorithms.settings import known
from sotto.data.trajectories import ExpertLog, Transitions
from sotto.keys import keys_of, new_key
from sotto.privacy.claims.logs import NOT_IMPORTED, AboutLog
from sotto.rl.envs.base import Discrete
from sotto.rl.envs.gymnasium import bridge
from sotto.rl.envs.gymnasium.bridge import GymnasiumUsers
from sotto.rl.envs.registry import is_native, make
from sotto.rl.evaluation import returns_in_jax
from sotto.rl.networks import Policy
from sotto.rl.policy_files import as_policy, read
from sotto.trees import at

INITIAL, GATHERING, LEARNING = range(3)
"""Purposes of random keys."""

_CLONES = CloneConfig()


class Sources:
    """The policies of the experts and their log, which are both private.

    Args:
        experts: policies with a leading axis of experts; None if only the log is known.
        log: episodes of the experts; the log's expert i has policy i.
        env_id: environment of the experts, if known.
        actions: number of actions, if known.
        about: sentences of certificates about an imported log.

    Attributes:
        facts: public facts, from which settings are completed.

    Raises:
        ValueError: neither policies nor a log are given, or their numbers of experts differ.
    """

    def __init__(
        self,
        experts: Policy | None = None,
        log: ExpertLog | None = None,
        env_id: str | None = None,
        actions: int | None = None,
        about: AboutLog = NOT_IMPORTED,
    ) -> None:
        if experts is not None:
            count, size = experts.network.weights[0].shape[:2]
            actions = experts.network.biases[-1].shape[-1]
        elif log is not None:
            count, size = log.experts, log.observation_size
        else:
            raise ValueError("there are neither experts nor a log; give one of them")
        if log is not None and (log.experts, log.observation_size) != (count, size):
            raise ValueError(
                f"there are {count} experts with observations of {size} numbers, but the log is of "
                f"{log.experts} experts with {log.observation_size}; give the log of these experts"
            )
        self.experts, self.log, self.about = experts, log, about
        self.facts = DataFacts(env_id, count, size, actions)
        self._clones: dict[tuple[object, ...], Clones] = {}
        self._transitions: Transitions | None = None

    def voters(self, config: ExpertOfflineConfig) -> Policy | Clones:
        """Returns the experts or clones that vote; clones are fitted once for all seeds."""
        if config.voters == "experts":
            assert self.experts is not None
            return self.experts
        assert self.log is not None
        actions, scale = known(config.actions), known(config.observation_scale)
        how = (actions, scale, config.least_return)
        if how not in self._clones:
            self._clones[how] = Clones(
                _CLONES, self.log, actions, scale, new_key(0), config.least_return
            )
        return self._clones[how]

    def weights(self, config: ExpertOfflineConfig) -> Float[np.ndarray, " experts"] | None:
        """Returns the weights of the experts' votes; None if all are 1, or if clones vote."""
        if config.voters == "clones" or config.least_return is None:
            return None
        assert self.log is not None
        return ballot_weights(self.log, config.least_return)

    @property
    def transitions(self) -> Transitions:
        """All transitions of the log, as JAX arrays."""
        assert self.log is not None
        if self._transitions is None:
            self._transitions = jax.tree.map(jnp.asarray, self.log.transitions)
        return self._transitions


class StudentState(NamedTuple):
    """The state of a student that learns from votes."""

    student: Policy


class LearnerState(NamedTuple):
    """The state of a learner that makes steps without noise on transitions."""

    learner: OfflineState
    average: Policy
    """Moving average of its networks."""
    transitions: Transitions | tuple[()]
    """Released transitions, repeated to the capacity; empty for a learner from the log."""


State = StudentState | LearnerState | DPSGDState


def dp_sgd_config(config: ExpertOfflineConfig) -> DPSGDExpertsConfig:
    """Returns the settings of DP-SGD that follow from completed settings."""
    return DPSGDExpertsConfig(
        experts=known(config.expert_count),
        epsilon=known(config.target_epsilon),
        delta=known(config.delta),
        steps=config.noisy_steps,
        batch=config.batch,
        clip_norm=config.clip_norm,
        public_steps=config.public_steps,
        population=known(config.population),
    )


def initial_states(config: ExpertOfflineConfig, seeds: Sequence[int]) -> State:
    """Returns the states before training, with leaves of shape [runs, ...].

    Args:
        config: completed settings.
        seeds: seeds, one for each run.
    """
    states: State = jax.jit(jax.vmap(partial(_initial_state, config)))(keys_of(seeds, INITIAL))
    return states


def first_policy(config: ExpertOfflineConfig) -> Policy | None:
    """Returns the public policy from which students of votes start, or None.

    Raises:
        ValueError: the file is not a policy of the student's shape.
    """
    if config.first_policy is None:
        return None
    like = _student(config, new_key(0))
    return as_policy(read(Path(config.first_policy)), like, config.first_policy, "student_hidden")


def _student(config: ExpertOfflineConfig, key: PRNGKeyArray) -> Policy:
    """Returns a student of votes with random weights."""
    scale, actions = known(config.observation_scale), known(config.actions)
    return Policy(
        len(scale), Discrete(actions), config.student_hidden, key, observation_scale=scale
    )


def _initial_state(config: ExpertOfflineConfig, key: PRNGKeyArray) -> State:
    if config.learner == "distillation":
        return StudentState(_student(config, key))
    if config.uses_dp_sgd:
        public = _no_transitions(config) if config.public_steps else ()
        return dp_sgd.initial_state(dp_sgd_config(config), config.offline, key, public)
    learner = offline.initial_state(config.offline, key)
    data = _no_transitions(config) if capacity(config) else ()
    return LearnerState(learner, learner.network, data)


def _no_transitions(config: ExpertOfflineConfig) -> Transitions:
    """Returns zeros with room for all transitions that can be released."""
    size, scale = capacity(config), known(config.observation_scale)
    return Transitions(
        observations=jnp.zeros((size, len(scale)), jnp.float32),
        actions=jnp.zeros((size,), jnp.int32),
        rewards=jnp.zeros((size,), jnp.float32),
        next_observations=jnp.zeros((size, len(scale)), jnp.float32),
        terminated=jnp.zeros((size,), bool),
    )


def capacity(config: ExpertOfflineConfig) -> int:
    """Returns the largest number of transitions that can be released."""
    if config.uses_votes:
        return int(known(config.queries) * known(config.rounds))
    if config.uses_prefixes:
        return int(config.releases * known(config.rollout_cap))
    return 0


def policies(states: State) -> dict[str, Policy]:
    """Returns the policies, with a leading axis of runs; for private methods they are public.

    `ema` is a moving average of `last`. A student of votes is fitted once and is both.
    """
    if isinstance(states, StudentState):
        return {"ema": states.student, "last": states.student}
    return {"ema": states.average, "last": states.learner.network}


def evaluate(
    config: ExpertOfflineConfig, policy: Policy, key: PRNGKeyArray, episodes: int, greedy: bool
) -> Float[np.ndarray, "runs episodes"]:
    """Returns undiscounted returns in the default environment, up to the evaluation cap.

    Raises:
        ValueError: there is no environment.
    """
    if not config.has_environment:
        raise ValueError("this run has no environment to be evaluated in; train it with --env-id")
    env_id, cap = known(config.env_id), known(config.evaluation_cap)
    if is_native(env_id):
        env = replace(make(env_id), max_episode_steps=cap)
        return np.asarray(returns_in_jax(env, policy, key, episodes, greedy))
    seed = int(jax.random.randint(key, (), 0, 2**31 - 1))
    drawn = np.random.SeedSequence(seed).spawn(episodes)
    seeds = [int(one.generate_state(1)[0]) for one in drawn]
    act = bridge.greedy if greedy else bridge.sampled
    with GymnasiumUsers(env_id, episodes, max_episode_steps=cap) as users:
        runs = range(jax.tree.leaves(policy)[0].shape[0])
        played = [users.returns(partial(act, at(policy, run)), key, seeds, cap) for run in runs]
    return np.stack([returns for returns, _, _ in played])
