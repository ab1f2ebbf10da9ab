"""Replays of the bandit with simulated noise, and of the baselines that it is compared with.

The noise here comes from a seed and protects nobody: the data are public already. Its standard
deviation is that of the release (`release.sum_variances`), and every arm with an epsilon has the
same multiplier for a person. Arms without an epsilon clip as well; only the noise is missing.

The arm "least noise" is a lower bound that no real mechanism reaches. Every prior has the noise of
one sum over all earlier people, and Gaussian noise over blocks is never less (docs/privacy.md,
section 24).

The shuffled arm is a claim of the literature and has no certificate. Each person randomises their
moments with the mechanism of Duchi, Jordan and Wainwright (2018) for vectors in a ball, which is
epsilon_0-differentially private. A shuffler then mixes the reports of a block. The closed form of
Feldman, McMillan and Talwar (2021, Theorem 3.1) gives the epsilon of the block.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Array, Float

from sotto.algorithms.bandit.algorithm import block_of, learned
from sotto.algorithms.bandit.config import BanditConfig
from sotto.algorithms.bandit.person import Prior, Rated, RoundMoments, mean_over, moments, play
from sotto.algorithms.bandit.release import added, block_release, first_state, sum_variances
from sotto.algorithms.settings import known
from sotto.keys import new_key
from sotto.privacy.mechanisms import binary_tree, correlated
from sotto.trees import at

Arm = Literal[
    "private",
    "tree",
    "independent",
    "shuffled",
    "least noise",
    "without privacy",
    "shared only",
    "own only",
]
NOISY: tuple[Arm, ...] = ("private", "tree", "independent", "shuffled", "least noise")
SILENT: tuple[Arm, ...] = ("without privacy", "shared only", "own only")
_SHUFFLED_BLOCKS = 2
"""Blocks of the shuffled arm. Smaller ones are amplified less."""

Play = Callable[[Prior, Rated, Array], tuple[RoundMoments, Array, Array, Array]]


@dataclass(frozen=True)
class Replay:
    """Ratings of the items that people got, in the units of the log.

    Attributes:
        value: mean over people of the mean rating of the chosen items.
        random: the same of all offered items.
    """

    value: float
    random: float


def replay(config: BanditConfig, people: Rated, arm: Arm, seed: int) -> Replay:
    """Replays one arm on people in a random order.

    Args:
        config: settings, with the public facts of the log.
        people: rows of all people.
        arm: which arm; those of `SILENT` do not use the epsilon.
        seed: of the order, the offers and the noise.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(known(config.people))
    people = at(people, order)
    config = _of_arm(config, arm)
    variances, noise = _noise(config, arm, rng)
    found: list[np.ndarray] = []
    state = first_state(config)
    program = _program(config.candidates, config.rounds, config.features, arm != "shared only")
    for block in range(config.num_updates):
        persons, units = block_of(config, people, block)
        keys = jax.random.split(new_key(seed * 1000 + block), config.slots)
        parts, chosen, offered, played = program(state.prior, units, keys)
        there = np.asarray(played) & (persons >= 0)
        found.append(np.stack([np.asarray(chosen), np.asarray(offered)])[:, there])
        flat = np.concatenate([np.asarray(x).reshape(config.slots, -1) for x in parts], axis=1)
        norms = np.linalg.norm(flat, axis=1, keepdims=True)
        flat = flat * np.minimum(1, config.clip_norm / np.maximum(norms, 1e-12))
        squares, products = np.split(noise(block, flat), 2)
        after, _ = added(state, {"moments": RoundMoments(squares, products), "gain": 0.0})  # type: ignore[arg-type]
        if arm != "own only":
            state = learned(config, after, float(variances[block]), 0.0)
    worst, best = known(config.reward_bounds)
    means = worst + (best - worst) * np.concatenate(found, axis=1).mean(axis=1, dtype=np.float64)
    return Replay(float(means[0]), float(means[1]))


def _of_arm(config: BanditConfig, arm: Arm) -> BanditConfig:
    if arm == "tree":
        return replace(config, noise="binary-tree")
    if arm == "independent":
        return replace(config, noise="independent")
    return replace(config, blocks=_SHUFFLED_BLOCKS) if arm == "shuffled" else config


def _noise(
    config: BanditConfig, arm: Arm, rng: np.random.Generator
) -> tuple[np.ndarray, Callable[[int, np.ndarray], np.ndarray]]:
    """Returns variances of the noise in sums of blocks, and a noisy sum of a block."""
    size, blocks = 2 * config.features, config.num_updates
    if arm in SILENT:
        return np.zeros(blocks), lambda _, flat: flat.sum(axis=0)
    if arm == "shuffled":
        epsilon = local_epsilon(config.target_epsilon, known(config.delta), config.slots)
        each = report_norm(config.clip_norm, epsilon, size) ** 2 / size
        reported = partial(randomised, config.clip_norm, epsilon, rng)
        variances = each * config.slots * np.arange(1, blocks + 1)
        return variances, lambda _, flat: reported(flat).sum(axis=0)
    release = block_release(config, blocks)
    variances = sum_variances(release, "moments")
    rows = _rows(config, blocks)
    if arm == "least noise":  # the noise of every block replaces that of the last one in the sums
        part = release.parts["moments"]
        variances = np.full(blocks, (part.noise_multiplier * part.clip_norm) ** 2)
        rows = np.eye(blocks) - np.eye(blocks, k=-1)
    first = math.sqrt(variances[0])  # every row begins with a draw of its own
    drawn = rows @ rng.normal(0, first, (blocks, size))
    return variances, lambda block, flat: flat.sum(axis=0) + drawn[block]


def _rows(config: BanditConfig, blocks: int) -> Float[np.ndarray, "blocks blocks"]:
    """Returns C^-1, whose rows make the noise of the blocks."""
    if config.noise == "binary-tree":
        return binary_tree.noising_rows(0, blocks)
    coefficients = correlated.noising_coefficients(config.correlation, blocks)
    if config.noise == "independent":
        return np.eye(blocks)
    lags = np.arange(blocks)[:, None] - np.arange(blocks)
    return np.where(lags >= 0, coefficients[np.maximum(lags, 0)], 0.0)


_PROGRAMS: dict[tuple[Any, ...], Play] = {}


def _program(candidates: int, rounds: int, features: int, learns: bool) -> Play:
    """Returns the compiled rounds of people, who are seen one by one."""
    shapes = candidates, rounds, features, learns
    if shapes not in _PROGRAMS:
        bounds = (0.0,) * features, (1.0,) * features
        config = BanditConfig(
            on="", candidates=candidates, horizon=rounds * candidates, low=bounds[0], high=bounds[1]
        )

        def one(prior: Prior, unit: Rated, key: Array) -> tuple[RoundMoments, Array, Array, Array]:
            rounds = play(config, prior, unit, key, learns=learns)
            chosen = mean_over(rounds.ratings, rounds.played)
            offered = mean_over(rounds.offered, rounds.played)
            return moments(rounds, prior.mean), chosen, offered, rounds.played[0]

        _PROGRAMS[shapes] = jax.jit(jax.vmap(one, in_axes=(None, 0, 0)))
    return _PROGRAMS[shapes]


# --- the shuffled arm ----------------------------------------------------------------------------


def shuffled_epsilon(local: float, delta: float, people: int) -> float:
    """Returns the epsilon of shuffled reports that are `local`-differentially private each.

    It is Theorem 3.1 of Feldman, McMillan and Talwar (2021). Where its condition does not hold,
    shuffling is not known to help, and the epsilon is `local`.
    """
    if local > math.log(people / (16 * math.log(2 / delta))):
        return local
    grown = math.exp(local)
    amplified = 8 * math.sqrt(grown * math.log(4 / delta) / people) + 8 * grown / people
    return min(local, math.log1p((grown - 1) / (grown + 1) * amplified))


def local_epsilon(target: float, delta: float, people: int) -> float:
    """Returns the largest epsilon of a report with which shuffled reports meet the target."""
    return max(
        e for e in np.arange(target, 12, 0.01) if shuffled_epsilon(e, delta, people) <= target
    )


def report_norm(bound: float, epsilon: float, size: int) -> float:
    """Returns the norm of a report, which makes it unbiased (Duchi et al. 2018, section 4.2.3)."""
    grown = math.exp(epsilon)
    logs = math.lgamma((size - 1) / 2 + 1) - math.lgamma(size / 2 + 1)
    half = math.sqrt(math.pi) / 2 * size * math.exp(logs)
    return bound * (grown + 1) / (grown - 1) * half


def randomised(
    bound: float, epsilon: float, rng: np.random.Generator, vectors: Float[np.ndarray, "n d"]
) -> Float[np.ndarray, "n d"]:
    """Returns an unbiased report of each vector of norm at most `bound`.

    The vector is rounded to +-bound times its direction. The report is uniform on the half-sphere
    around it, or on the other one with probability 1 / (e^epsilon + 1).
    """
    norms = np.linalg.norm(vectors, axis=1)
    directions = np.where(norms[:, None] > 0, vectors, np.eye(1, vectors.shape[1]))
    directions = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    signs = np.where(rng.random(len(vectors)) < 0.5 + norms / (2 * bound), 1.0, -1.0)
    signs *= np.where(rng.random(len(vectors)) < 1 / (1 + math.exp(-epsilon)), 1.0, -1.0)
    reports = rng.normal(0, 1, vectors.shape)
    reports /= np.linalg.norm(reports, axis=1, keepdims=True)
    sides = np.sign(np.sum(reports * directions, axis=1)) * signs
    return np.asarray(report_norm(bound, epsilon, vectors.shape[1]) * reports * sides[:, None])
