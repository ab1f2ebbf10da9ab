"""Mode policy-choice: releases which of many public policies is best, and no number.

The logged steps are public, so a model of the environment at nodes is public. Candidates are the
greedy policies of random smooth reward functions, planned in this model; they depend on a public
seed and not on rewards. A candidate's value is its mean reward over an episode in the model: public
weights of the logged steps times their secret rewards. The winner leaves through a `ChoiceRelease`
(docs/privacy.md, section 13, Theorem 6b).

For a whole reward function, noise in n numbers at nodes grows with sqrt(n). The noise of a choice
does not depend on the number of nodes, and hardly on the number of candidates.

A choice that an earlier, killed training wrote to its file is read from there at no cost.
"""

from dataclasses import dataclass
from typing import Any, Self

import jax
import numpy as np
import scipy.sparse
from jaxtyping import Bool, Float, PRNGKeyArray

from sotto.algorithms.functional_q.accounts import RunAccount, explaining
from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.algorithms.functional_q.functions import (
    assumptions,
    protects,
    reward_change,
    secret_rewards,
)
from sotto.algorithms.functional_q.nodes import by_action
from sotto.algorithms.functional_q.release import PUBLIC, Logged
from sotto.algorithms.functional_q.states import PLANNING
from sotto.keys import keys_of
from sotto.privacy.claims import rewards as claims
from sotto.privacy.errors import PrivacyError
from sotto.privacy.mechanisms.noisy_max import NoisyMax, largest_error
from sotto.privacy.release.choices import ChoiceRelease
from sotto.privacy.release.released import ReleasedValues

_LENGTH_SCALE = 0.5
"""Length over which random reward functions vary, as a share of each side of the box of nodes."""

Tables = Float[np.ndarray, "candidates size actions"]


def check(config: FunctionalQConfig) -> None:
    """Refuses what no choice can do, before any step is collected.

    Raises:
        ValueError: the learner is not planned with, or epsilon or the radius is too small.
    """
    if config.learner != "dqn":
        raise ValueError("--mode policy-choice plans with tables; leave out --learner")
    assert config.target_epsilon is not None
    most = NoisyMax.calibrated(2, 2 * reward_change(config), config.target_epsilon)
    if not most.resolves(largest_error(np.ones((1, 1)), max(map(abs, config.rewards)))):
        raise ValueError(
            f"--reward-radius {reward_change(config):g} is below what float64 resolves in the sum "
            "of rewards; give a larger one"
        )


def release_choice(
    config: FunctionalQConfig, logged: Logged, account: RunAccount
) -> Float[np.ndarray, "size actions"]:
    """Releases the action values of the candidate that wins by noisy maximum."""
    file = account.place(0).file
    if file is not None:
        values = ReleasedValues.open(file).values
        if values.shape != (config.grid.size, config.actions):
            raise PrivacyError(f"{file} does not hold the choice of this training; restore it")
        return values
    assert config.target_epsilon is not None
    model = PublicModel.of(config, logged)
    candidates = planned(config, model, keys_of([config.seed], PLANNING)[0])
    release = ChoiceRelease(
        name="policy",
        unit=config.privacy_unit,
        candidates=candidates,
        weights=model.weights(candidates, config.environment.max_episode_steps),
        bounds=config.rewards,
        radius=reward_change(config),
        epsilon=config.target_epsilon,
        population=config.population,
        protects=protects(config),
        does_not_protect=PUBLIC,
        assumptions=(*assumptions(config), claims.CANDIDATES.assumption()),
    )
    with explaining([account]):
        opened = release.open(account.ledger, account.folder)
    return opened.release(secret_rewards(config, logged)).values


def planned(config: FunctionalQConfig, model: "PublicModel", key: PRNGKeyArray) -> Tables:
    """Returns action values that are optimal in the model for random rewards.

    Those whose greedy actions at nodes are the same are there once, in the order of their draws.
    """
    goals = random_rewards(config, key)
    if config.node_variable == "next-state":
        goals = (model.reached @ goals.T).T
    tables = model.plan(goals, config.discount, config.iterations)
    _, first = np.unique(tables.argmax(axis=-1), axis=0, return_index=True)
    if len(first) == 1:
        raise ValueError("all planned policies are the same; give more --nodes or --candidates")
    return np.asarray(tables[np.sort(first)])


def random_rewards(
    config: FunctionalQConfig, key: PRNGKeyArray
) -> Float[np.ndarray, "candidates features"]:
    """Draws rewards at nodes from a Gaussian process with kernel exp(-|x - y|^2 / (2 l^2)).

    Each action has another function if rewards depend on it.
    """
    nodes, each = config.grid.nodes, config.features // config.grid.size
    drawn = np.asarray(jax.random.normal(key, (config.candidates, *nodes, each)), np.float64)
    for axis, places in enumerate(config.grid.axes, start=1):
        far = (places[:, None] - places) / _LENGTH_SCALE
        factor = np.linalg.cholesky(np.exp(-(far**2) / 2) + 1e-6 * np.eye(len(places)))
        drawn = np.moveaxis(np.tensordot(drawn, factor, (axis, 1)), -1, axis)
    return drawn.reshape(config.candidates, -1)


@dataclass(frozen=True)
class PublicModel:
    """The environment at nodes, as weighted means of logged steps. Rewards have no part in it.

    A (node, action) pair that no step visited leads where a random logged step leads, and has its
    reward.

    Attributes:
        shares: sparse weights of the steps in each pair, [steps, pairs]; a column sums to 1, or to
            0 if nothing was visited.
        reached: sparse weights of the nodes after each pair, [pairs, size].
        ahead: the same without the steps that ended an episode.
        visited: pairs that some step visited.
        start: weights of the nodes in the logged states, from which episodes start.
        anywhere: weights of the nodes after a random logged step that did not end an episode.
    """

    shares: Any
    reached: Any
    ahead: Any
    visited: Bool[np.ndarray, " pairs"]
    start: Float[np.ndarray, " size"]
    anywhere: Float[np.ndarray, " size"]

    @classmethod
    def of(cls, config: FunctionalQConfig, logged: Logged) -> Self:
        """Returns the model of a log."""
        nodes = config.grid.matrix(np.asarray(logged.observations))
        pairs = by_action(nodes, np.asarray(logged.actions), config.actions)
        mass = np.asarray(pairs.sum(axis=0)).ravel()
        shares = pairs @ scipy.sparse.diags_array(1 / np.where(mass > 0, mass, np.inf))
        following = config.grid.matrix(np.asarray(logged.next_observations))
        going_on = scipy.sparse.diags_array(1.0 * ~np.asarray(logged.terminated)) @ following
        return cls(
            shares=shares.tocsr(),
            reached=(shares.T @ following).tocsr(),
            ahead=(shares.T @ going_on).tocsr(),
            visited=mass > 0,
            start=np.asarray(nodes.mean(axis=0)).ravel(),
            anywhere=np.asarray(going_on.mean(axis=0)).ravel(),
        )

    def plan(self, goals: Float[np.ndarray, "k pairs"], discount: float, iterations: int) -> Tables:
        """Returns the action values for given rewards of pairs. Pairs without visits are worst."""
        shape = (len(goals), len(self.start), -1)
        worst = -np.abs(goals).max(axis=1, keepdims=True) / (1 - discount)
        tables = np.where(self.visited, 0.0, worst)
        for _ in range(iterations):
            best = tables.reshape(shape).max(axis=-1)
            tables = np.where(self.visited, goals + discount * (self.ahead @ best.T).T, worst)
        return tables.reshape(shape)

    def weights(self, tables: Tables, horizon: int) -> Float[np.ndarray, "k steps"]:
        """Returns the share of each logged step in an episode of each table's greedy policy.

        The shares are not negative and sum to 1, or to less where episodes end before the horizon.
        """
        k, size, actions = tables.shape
        greedy = tables.argmax(axis=-1)[..., None] == np.arange(actions)
        here, visits = np.tile(self.start, (k, 1)), np.zeros((k, size * actions))
        for _ in range(horizon):
            now = (here[..., None] * greedy).reshape(k, -1)
            visits += now
            here = (self.ahead.T @ now.T).T + self._unknown(now) * self.anywhere
        steps = self.shares.shape[0]
        found = (self.shares @ visits.T).T + self._unknown(visits) / steps
        return np.asarray(found / horizon)

    def _unknown(self, visits: Float[np.ndarray, "k pairs"]) -> Float[np.ndarray, "k 1"]:
        return np.asarray(visits[:, ~self.visited].sum(axis=1, keepdims=True))
