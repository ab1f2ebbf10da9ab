"""Finite Markov decision processes, solved exactly: values, optimal policies and regret.

All arrays are numpy arrays in float64. Leading dimensions are mapped over, so that one call
evaluates the policies of a whole training. A policy is a table of action probabilities:
`[..., S, A]` if it is the same at every step, and `[..., H, S, A]` if it depends on the step.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Float64, Int

from sotto.rl.envs.base import Environment, Params, State

_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class FiniteMDP:
    """A finite MDP with a fixed horizon and one first state; rewards depend on state and action.

    Attributes:
        transitions: probability of the next state, for each state and action.
        rewards: expected reward of each state and action.
        horizon: number of steps of an episode (H).
        start: first state.
    """

    transitions: Float64[np.ndarray, "S A S"]
    rewards: Float64[np.ndarray, "S A"]
    horizon: int
    start: int = 0

    def __post_init__(self) -> None:
        """Refuses tables that do not form an MDP."""
        states, actions = self.rewards.shape
        if self.transitions.shape != (states, actions, states):
            raise ValueError(
                f"transitions have shape {self.transitions.shape}; {states} states and {actions} "
                f"actions need ({states}, {actions}, {states})"
            )
        rows = self.transitions
        if (rows < 0).any() or not np.allclose(rows.sum(axis=-1), 1, rtol=0, atol=_TOLERANCE):
            raise ValueError("each row of transitions must be a probability distribution")
        if self.horizon < 1 or not 0 <= self.start < states:
            raise ValueError("the horizon must be positive, and the first state one of the states")


def optimal_values(mdp: FiniteMDP) -> Float64[np.ndarray, "H S A"]:
    """Returns Q*_h(s, a), the best expected return from step h on, by backward induction."""
    values = np.zeros((mdp.horizon, *mdp.rewards.shape))
    following = np.zeros(len(mdp.rewards))
    for h in reversed(range(mdp.horizon)):
        values[h] = mdp.rewards + mdp.transitions @ following
        following = values[h].max(axis=-1)
    return values


def policy_values(
    mdp: FiniteMDP, policies: Float[np.ndarray, "..."]
) -> Float64[np.ndarray, "*batch S"]:
    """Returns the expected return of whole episodes from each first state, under each policy.

    Args:
        mdp: the MDP.
        policies: action probabilities, [..., S, A] or, with the horizon first, [..., H, S, A].
    """
    policies = np.asarray(policies, dtype=np.float64)
    by_step = policies.shape[-3:] == (mdp.horizon, *mdp.rewards.shape)
    _check_policies(mdp, policies)
    batch = policies.shape[: -3 if by_step else -2]
    following = np.zeros((*batch, len(mdp.rewards)))
    for h in reversed(range(mdp.horizon)):
        now = policies[..., h, :, :] if by_step else policies
        ahead = following @ mdp.transitions.reshape(mdp.rewards.size, -1).T
        values = mdp.rewards + ahead.reshape(*batch, *mdp.rewards.shape)
        following = np.sum(now * values, axis=-1)
    return following


def regret(
    mdp: FiniteMDP, policies: Float[np.ndarray, "..."]
) -> np.float64 | Float64[np.ndarray, "*batch"]:
    """Returns V* - V^pi at the first state: the expected loss in one episode of each policy."""
    best = optimal_values(mdp)[0, mdp.start].max()
    losses: Float64[np.ndarray, "*batch"] = best - policy_values(mdp, policies)[..., mdp.start]
    return losses


def softmax(logits: Float[np.ndarray, "*batch A"]) -> Float64[np.ndarray, "*batch A"]:
    """Returns the action probabilities of unnormalised log-probabilities."""
    shifted = np.asarray(logits, dtype=np.float64)
    powers = np.exp(shifted - shifted.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _check_policies(mdp: FiniteMDP, policies: np.ndarray) -> None:
    if policies.shape[-2:] != mdp.rewards.shape:
        raise ValueError(
            f"policies have shape {policies.shape}; they must end with {mdp.rewards.shape}, one "
            "probability for each state and action"
        )
    if (policies < 0).any() or not np.allclose(
        policies.sum(axis=-1), 1, rtol=0, atol=_TOLERANCE * 100
    ):
        raise ValueError("each row of a policy must be a probability distribution over actions")


@dataclass(frozen=True, kw_only=True)
class TabularEnvironment(Environment[State, Params]):
    """An environment with finitely many states, observed one-hot, whose MDP is known.

    Learners get observations and rewards only; the MDP serves to evaluate them.
    """

    @abstractmethod
    def state_index(self, state: State) -> Int[Array, ""]:
        """Returns the number of the state, from 0 to observation_size - 1."""

    @abstractmethod
    def mdp(self, params: Params) -> FiniteMDP:
        """Returns transitions and rewards under these parameters, which must be numbers."""


AnyTabularEnvironment = TabularEnvironment[Any, Any]
