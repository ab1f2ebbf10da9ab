"""Algorithm `bandit` of `sotto train`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from sotto.algorithms.bandit.config import BanditConfig, filled
from sotto.algorithms.bandit.person import Rated, in_ball, rated
from sotto.algorithms.bandit.release import (
    UNIT,
    BanditState,
    block_release,
    first_state,
    prior_of,
    sum_variances,
)
from sotto.algorithms.base import Progress, Words
from sotto.algorithms.log_facts import LogAlgorithm
from sotto.algorithms.settings import known
from sotto.keys import keys_of
from sotto.privacy.errors import NothingReleased
from sotto.privacy.ledger.ledger import Ledger
from sotto.rl.distributions import Categorical
from sotto.trees import at, single


class Ranking(eqx.Module):
    """A policy that chooses among items: the largest mean rating of the mean person.

    An observation has the features of all items, one item after the other, in the order of the
    declaration: the observation, and then the action (one number for each category).
    """

    weights: Float[Array, " d"]
    bounds: Float[Array, "2 d"]

    def __call__(self, observation: Float[Array, "*batch items*d"]) -> Categorical:
        """Returns the distribution of the chosen item; its mode is the best one.

        Raises:
            ValueError: the observation has not the features of one item or more.
        """
        given, features = observation.shape[-1], self.weights.shape[-1]
        if given == 0 or given % features:
            raise ValueError(
                f"an observation must have {features} numbers for each item, one item after the "
                f"other, got {given}"
            )
        items = observation.reshape(*observation.shape[:-1], given // features, features)
        return Categorical(in_ball(items, self.bounds) @ self.weights)

    def noise(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*shape 1"]:
        """Draws uniforms for `shape` actions."""
        return jax.random.uniform(key, (*shape, 1), jnp.float32)


class Bandit(LogAlgorithm[BanditConfig]):
    """A contextual bandit that learns what people like, each of whom is protected with all ratings.

    A row of the log is an item that a person rated: the item's features are its observation and its
    action, and the rating is its reward. In each round a person is offered some items that they
    rated, and chooses by what was released about earlier people and by their own ratings so far.
    People come in blocks. After each block a noisy sum is released, from which the next block
    learns.

    `sotto import` makes the log. The gain over random choice is measured with noise, at no further
    cost.

    Examples:
        sotto train bandit --on runs/films --target-epsilon 1 --out runs/taste
        sotto train bandit --on runs/films --candidates 3 --blocks 20 --out runs/taste
        sotto train bandit --on runs/films --noise binary-tree --out runs/tree
    """

    name = "bandit"
    summary = "a contextual bandit for people who rated items, each person protected"
    config_type = BanditConfig
    unit = UNIT
    words = Words(
        steps="rated items",
        decimals=4,
        quantities={
            "gain": ("gain over random choice", "Gain over random choice"),
            "gain_noise": ("standard deviation of its noise", "Noise of the gain"),
        },
        meaning="The gain is the mean over the places of released blocks of a person's mean rating "
        "of the chosen items, less that of all offered items. It has noise, whose standard "
        "deviation is stated, and empty places count as zero.",
    )

    def resolved(self, config: BanditConfig) -> BanditConfig:
        """Returns the settings with the public facts of the dataset."""
        return filled(config, self._records(config))

    def steps_per_update(self, config: BanditConfig) -> int:
        """Returns the most rated items behind one block."""
        return config.slots * known(config.horizon)

    def initial_states(self, config: BanditConfig, seeds: Sequence[int]) -> PyTree:
        """Returns the state before the first release, leaves of shape [1, ...]."""
        del seeds
        return single(first_state(config))

    def train(
        self,
        config: BanditConfig,
        seeds: Sequence[int],
        ledgers: Sequence[Ledger],
        states: PyTree,
        done: int,
        folders: Sequence[Path],
    ) -> Iterator[Progress]:
        """Makes the releases of the blocks that are left. A block whose release was charged and
        lost is left out, for its people would pay twice.

        Raises:
            PrivacyError: the budget does not cover the releases, or all blocks were charged and
                none is left.
        """
        del folders, done
        (ledger,) = ledgers
        state: BanditState = jax.tree.map(lambda x: jnp.asarray(x)[0], states)
        begun = sum(stream.releases for stream in ledger.streams)
        if begun == config.num_updates:
            raise NothingReleased(
                "the last blocks of this run were charged and then lost, so their people cannot be "
                "asked again; start a new run, whose epsilon adds to that of this one"
            )
        release = block_release(config, config.num_updates - begun)
        sums = sum_variances(release, "moments") + float(state.variance)
        gains = sum_variances(release, "gain") + float(state.gain_variance)
        people, keys = rated(config, self._records(config)), keys_of(seeds, 0)
        stream = release.open([ledger], single(state), block_of(config, people, begun)[1], chunk=1)
        for block in range(begun, config.num_updates):
            persons, units = block_of(config, people, block)
            # What people rated is not shown without noise, whatever the settings say of the people.
            opened, _, _ = stream.run(
                single(state), keys, persons[None, None], single(single(units))
            )
            state = learned(
                config,
                at(opened, 0),
                sums[block - begun],
                gains[block - begun],
            )
            yield Progress(block + 1, single(state), evaluation=self._gain(config, state))

    def policies(self, states: BanditState) -> dict[str, Ranking]:
        """Returns the ranking by the mean of the released prior."""
        return {"last": Ranking(states.prior.mean, states.bounds)}

    def evaluate(
        self,
        config: BanditConfig,
        policy: Any,
        key: PRNGKeyArray,
        episodes: int,
        greedy: bool,
    ) -> Float[np.ndarray, "runs episodes"]:
        """Refuses: only people's own ratings say what they like.

        Raises:
            ValueError: always.
        """
        del config, policy, key, episodes, greedy
        raise ValueError(
            "a bandit has no simulator to be evaluated in; its noisy gain over random choice is in "
            "metrics.jsonl"
        )

    def _gain(self, config: BanditConfig, state: BanditState) -> dict[str, np.ndarray]:
        """Returns the noisy mean gain over places of blocks that were released, and its noise."""
        worst, best = known(config.reward_bounds)
        one = (best - worst) / (int(state.blocks) * config.slots)
        noise = float(np.sqrt(state.gain_variance))
        found = {"gain": float(state.gain) * one, "gain_noise": noise * one}
        return {name: np.array([value]) for name, value in found.items()}


def block_of(config: BanditConfig, people: Rated, block: int) -> tuple[np.ndarray, Rated]:
    """Returns the places of a block, and its people's rows; -1 and zeros behind the last place."""
    places = np.arange(block * config.slots, (block + 1) * config.slots)
    there = places < known(config.people)
    own = np.where(there, places, 0)

    units = jax.tree.map(lambda x: (x[own].T * there).T.astype(x.dtype), people)
    return np.where(there, places, -1), units


def learned(
    config: BanditConfig, state: BanditState, variance: float, gain_variance: float
) -> BanditState:
    """Returns the state with the prior that the noisy sums give. It is post-processing."""
    blocks = int(state.blocks)
    energy = blocks * config.slots * config.clip_norm**2
    return state._replace(
        prior=prior_of(state.sums, np.asarray(state.means) / blocks, variance, energy),
        variance=jnp.float32(variance),
        gain_variance=jnp.float32(gain_variance),
    )
