"""Audit of one training with many canaries, each of whom takes part with probability 1/2.

Guarantee:
    Guesses depend on the output alone, and how many are made is fixed beforehand. If every person
    is protected with (epsilon, delta), the first bound exceeds epsilon with probability at most
    1 - confidence (Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training
    Run"). The second presumes that the claim is the curve of one Gaussian release (Gaussian
    differential privacy), and uses Mahloujifar, Melis and Chaudhuri 2024, "Auditing
    f-Differential Privacy in One Run". Both are those of `jax_privacy.auditing`.
"""

from dataclasses import dataclass

import numpy as np
from jax_privacy.auditing import CanaryScoreAuditor, Explicit
from jaxtyping import Bool, Float

from sotto.privacy.accounting.gaussian import largest_shift
from sotto.privacy.audits.auditable import Auditable
from sotto.privacy.audits.features import flat

LEAST = 32
"""Fewest canaries that are worth one run."""
_REPEATS = 4
_NOISE_RUNS = 64


@dataclass(frozen=True)
class Guesses:
    """Guesses about who took part in one training.

    Attributes:
        canaries: number of people who took part with probability 1/2.
        strengths: distance of each score from its middle, by which guesses are chosen.
        right: whether the guess about each of them is right.
        made: number of guesses, fixed before the training; the others abstain.
    """

    canaries: int
    strengths: Float[np.ndarray, " canaries"]
    right: Bool[np.ndarray, " canaries"]
    made: int

    @property
    def correct(self) -> int:
        """Number of right guesses among those that were made."""
        order = np.argsort(-self.strengths, kind="stable")[: self.made]
        return int(self.right[order].sum())


def guesses_of(
    scores: Float[np.ndarray, " canaries"], took_part: Bool[np.ndarray, " canaries"], share: float
) -> Guesses:
    """Returns guesses from scores that are positive where the person seems to have taken part."""
    made = max(1, round(share * scores.size))
    return Guesses(scores.size, np.abs(scores), (scores > 0) == took_part, made)


def epsilon_lower(guesses: Guesses, delta: float, confidence: float, *, gaussian: bool) -> float:
    """Returns the lower bound on epsilon at delta.

    Args:
        guesses: guesses about one training.
        delta: delta of the bound.
        confidence: confidence of the bound.
        gaussian: whether the claim is presumed to be Gaussian differential privacy.
    """
    # The library counts scores above a threshold. Two canaries about whom nothing is guessed keep
    # its lists from being empty, which costs next to nothing.
    right = np.repeat([1.0, 0.0], [guesses.correct, 1])
    wrong = np.repeat([1.0, 0.0], [guesses.made - guesses.correct, 1])
    abstained = np.zeros(guesses.canaries - guesses.made)
    auditor = CanaryScoreAuditor(np.concatenate([right, abstained]), wrong)
    bound = auditor.epsilon_one_run_fdp if gaussian else auditor.epsilon_one_run
    return float(bound(1 - confidence, delta, threshold_strategy=Explicit(0.5)))


def best_share(canaries: int, epsilon: float, delta: float) -> float:
    """Returns the share of guesses that is best if the claim is exact, from public numbers only."""
    shift = largest_shift(epsilon, delta)
    rng = np.random.default_rng(0)
    took_part = rng.random(canaries) < 0.5
    scores = shift * (took_part - 0.5) + rng.standard_normal(canaries)
    shares = [0.4, 0.2, 0.7, 1.0, 0.1, 0.05, 0.02]  # the first, if none has any power
    return max(
        shares,
        key=lambda one: epsilon_lower(
            guesses_of(scores, took_part, one), delta, 0.95, gaussian=False
        ),
    )


def train_once(auditable: Auditable, seed: int) -> Guesses:
    """Trains once with everybody in or out by a coin, and guesses who was in.

    What each person adds is seen in runs that are repeated without the person. Scores are the
    best linear estimates of all coins together, in units of the spread of other trainings.
    """
    seeds = [int(one) & 0x7FFFFFFF for one in np.random.SeedSequence(seed).generate_state(3)]
    coins = np.random.default_rng(seed)
    people = auditable.size
    everybody = np.ones((people * _REPEATS, people), bool)
    without = everybody.copy()
    without[np.arange(len(without)), np.repeat(np.arange(people), _REPEATS)] = False
    given, gone = (
        flat(auditable.train(auditable.people, rows, seeds[0])) for rows in (everybody, without)
    )
    adds = (given - gone).reshape(people, _REPEATS, -1).mean(axis=1)
    others = flat(
        auditable.train(auditable.people, coins.random((_NOISE_RUNS, people)) < 0.5, seeds[1])
    )
    took_part = coins.random(people) < 0.5
    seen = flat(auditable.train(auditable.people, took_part[None], seeds[2]))[0]
    spread = others.std(axis=0)
    scale = np.where(spread > 0, spread, max(float(spread.max()), 1.0) * 1e-6)
    directions = adds / scale
    scores = estimates((seen - others.mean(axis=0)) / scale, directions)
    share = best_share(people, auditable.epsilon, auditable.delta)
    return guesses_of(scores, took_part, share)


def estimates(
    output: Float[np.ndarray, " d"], directions: Float[np.ndarray, "canaries d"]
) -> Float[np.ndarray, " canaries"]:
    """Returns the best linear estimates of coins minus 1/2, with noise of deviation 1."""
    if len(directions) <= directions.shape[1]:
        among = directions @ directions.T / 4 + np.eye(len(directions))
        return np.asarray(np.linalg.solve(among, directions @ output))
    together = directions.T @ directions / 4 + np.eye(directions.shape[1])
    return np.asarray(directions @ np.linalg.solve(together, output))
