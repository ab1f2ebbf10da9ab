"""Noisy votes: what most experts, or clones of them, would do in a state, under privacy.

Instead of releasing what experts did, they are asked what they would do: each voter's greedy
actions at q states are one contribution to a sum, which gets Gaussian noise and leaves through the
door. States of later rounds, labels, students and whole trajectories are made of noisy votes and of
public things alone, and cost nothing more (`voting_rounds`, `distillation`).

A voter contributes e_a - 1/A at a state, the one-hot vector of its action a among A, centred: of
all ways to say one of A things with equal distances this one has the least norm, sqrt(1 - 1/A)
(for two actions: half a vote for one, half against the other). Every answer counts 1/A of each
voter back in.

Source: Papernot et al. 2018, "Scalable Private Learning with PATE", for noisy votes of teachers;
theory notes, Theorem 2'; docs/privacy.md, section 15.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.keys import new_key
from sotto.privacy.claims import experts as claims
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Part, Returning
from sotto.privacy.units import EXPERT
from sotto.rl.networks import Policy

Voters = Literal["experts", "clones"]

_ROWS = 50_000
"""Voters times states that are evaluated at once: hidden layers then stay in the cache."""


class Asked(NamedTuple):
    """States that were voted on, and the noisy votes."""

    observations: Float[np.ndarray, "asked obs"]
    counts: Float[np.ndarray, "asked actions"]
    """Voters for each action, plus noise: any real numbers."""


class Voter(NamedTuple):
    """One expert's, or all with a leading axis: a function of that expert's data alone."""

    policy: Policy
    weight: Float[Array, ""]
    """Of the ballot, between 0 (abstains) and 1. Whoever abstains is charged like the others, so
    that nobody learns who it was."""


def everybody(policies: Policy, weights: Float[np.ndarray, " voters"] | None = None) -> Voter:
    """Voters of these policies, with whole votes unless weights are given.

    Raises:
        ValueError: weights that are not between 0 and 1, one for each.
    """
    count = policies.network.weights[-1].shape[0]
    chosen = np.ones(count, np.float32) if weights is None else np.asarray(weights, np.float32)
    if chosen.shape != (count,) or not ((chosen >= 0) & (chosen <= 1)).all():
        raise ValueError(f"{count} voters need as many weights, each between 0 and 1")
    return Voter(policies, jnp.asarray(chosen))


def ballot(voter: Policy, observations: Float[Array, "q obs"]) -> Float[Array, "q actions"]:
    """One voter's greedy action at each state, one-hot and centred: e_a - 1/A."""
    distribution = voter(observations)
    actions = distribution.mode()[:, None]
    count = distribution.logits.shape[-1]  # type: ignore[union-attr]
    return jnp.where(actions == jax.lax.iota(jnp.int32, count), 1.0, 0.0) - 1.0 / count


def ballot_norm(queries: int, actions: int) -> float:
    """The L2 norm of every voter's ballot on so many states: sqrt(q (1 - 1/A))."""
    return math.sqrt(queries * (1 - 1 / actions))


def vote_sigma(noise_multiplier: float, queries: int, rounds: int, actions: int) -> float:
    """Standard deviation of the noise in each count, in votes: z sqrt(rounds q (1 - 1/A)).

    Args:
        noise_multiplier: z, of everything one expert ever answers: `multiplier_for` of
            `privacy.functional_noise` finds it from epsilon and delta.
        queries: states asked in each round.
        rounds: rounds.
        actions: A.
    """
    return noise_multiplier * math.sqrt(rounds) * ballot_norm(queries, actions)


def vote_release(
    voters: Voter,
    *,
    queries: int,
    rounds: int,
    noise_multiplier: float,
    population: Literal["simulated", "real"],
    kind: Voters = "experts",
) -> Release:
    """The release of votes: the public state is the states asked, and the log is noisy counts.

    Guarantee:
        All rounds together are Gaussian with multiplier `noise_multiplier` for one expert, under
        zero-out adjacency, however the states of a round depend on the rounds before: a ballot
        has norm sqrt(q (1 - 1/A)) whatever is asked, or less by its expert's own weight, and an
        expert is in every round (Theorem 2' with independent noise; docs/privacy.md, section 15).

    Args:
        voters: with a leading axis of voters, and policies over discrete actions.
        queries: states asked in each round, q.
        rounds: most rounds.
        noise_multiplier: of the whole stream, for one expert.
        population: whether the experts are simulated or real.
        kind: who votes, for the certificate.

    Raises:
        ValueError: the voters' actions are not discrete, or counts are not positive.
    """
    if voters.policy.log_std is not None:
        raise ValueError("votes need discrete actions; these policies choose continuous ones")
    if queries < 1 or rounds < 1:
        raise ValueError(f"votes need at least one state and one round, got {queries}, {rounds}")
    count, actions = _sizes(voters)
    # Empty slots fill the last batch.
    batches = math.ceil(count * queries / _ROWS)
    microbatch = math.ceil(count / batches)

    def local(
        observations: Float[Array, "q obs"], voter: Voter, _key: PRNGKeyArray
    ) -> tuple[dict[str, Array], Any]:
        return {"votes": voter.weight * ballot(voter.policy, observations)}, ()

    def server(observations: Array, released: dict[str, Array]) -> tuple[Array, Array]:
        return observations, released["votes"]

    return Release(
        name="votes",
        local=local,
        server=server,
        unit=EXPERT,
        parts={
            "votes": Part(
                clip_norm=ballot_norm(queries, actions), noise_multiplier=noise_multiplier
            )
        },
        slots=batches * microbatch,
        divisor=1.0,
        horizon=rounds,
        population=population,
        participation=Returning(max_participations=rounds, min_separation=1),
        microbatch=microbatch,
        protects=(claims.EXPERTS_POLICY() if kind == "experts" else claims.CLONES_LOG(),),
        does_not_protect=(
            claims.RELEASED_VOTES(kind=kind),
            claims.HOW_MANY(),
            claims.MOST_EXPERTS(),
        ),
        assumptions=(
            (claims.OWN_EXPERTS if kind == "experts" else claims.OWN_CLONES).assumption(),
        ),
    )


class Votes:
    """An open poll: asks every voter at q states a round, and answers with noisy counts.

    Args:
        voters: policies over discrete actions, with a leading axis of voters. The i-th is the
            expert with enrolment number i in the ledger, in whatever other streams it has.
        weights: of their ballots, see `Voter`; None: whole votes.
        ledger: of the unit `EXPERT`; it is charged before each round.
        queries, rounds, noise_multiplier, population, kind: as in `vote_release`.
        noise_seed: for tests only; voids the certificate.
        resume: ask the rounds that an interrupted poll of the same settings has left.

    Attributes:
        experts: how many voters there are; public.
        actions: how many actions they have.
        queries: states in each round.
        sigma: standard deviation of the noise in each count.

    Raises:
        PrivacyError: the budget does not cover the poll. No voter has been asked.
        ValueError: as `vote_release`.
    """

    def __init__(
        self,
        voters: Policy,
        ledger: Ledger,
        *,
        weights: Float[np.ndarray, " voters"] | None = None,
        queries: int,
        rounds: int,
        noise_multiplier: float,
        population: Literal["simulated", "real"],
        kind: Voters = "experts",
        noise_seed: int | None = None,
        resume: bool = False,
    ) -> None:
        electorate = everybody(voters, weights)
        release = vote_release(
            electorate,
            queries=queries,
            rounds=rounds,
            noise_multiplier=noise_multiplier,
            population=population,
            kind=kind,
        )
        self.experts, self.actions = _sizes(electorate)
        self.queries = queries
        self.sigma = vote_sigma(noise_multiplier, queries, rounds, self.actions)
        self._rounds = rounds
        self._observation_size = voters.network.weights[0].shape[-2]
        empty = release.slots - self.experts
        padded = jax.tree.map(
            lambda x: jnp.pad(jnp.asarray(x), [(0, empty)] + [(0, 0)] * (x.ndim - 1)), electorate
        )
        persons = np.append(np.arange(self.experts), np.full(empty, -1))
        self._persons = persons[None, None]
        self._units = jax.tree.map(lambda x: x[None, None], padded)
        asked = jnp.zeros((1, queries, self._observation_size), jnp.float32)
        self._stream = release.open(
            [ledger], asked, padded, chunk=1, noise_seed=noise_seed, resume=resume
        )

    @property
    def rounds_left(self) -> int:
        """Rounds that may still be asked."""
        return self._rounds - self._stream.released

    def ask(self, observations: Float[np.ndarray, "q obs"]) -> Float[np.ndarray, "q actions"]:
        """Charges the ledger, asks one round, and returns voters per action plus noise.

        Args:
            observations: functions of earlier rounds and of public things only.

        Raises:
            PrivacyError: no round is left, or the ledger cannot be written. Nobody was asked.
            ValueError: not `queries` observations.
        """
        asked = np.asarray(observations, np.float32)
        if asked.shape != (self.queries, self._observation_size):
            raise ValueError(
                f"a round asks {self.queries} observations of {self._observation_size} numbers, "
                f"not an array of shape {list(asked.shape)}"
            )
        keys = jax.random.split(new_key(0), 1)  # voters draw nothing
        _, counts, _ = self._stream.run(jnp.asarray(asked)[None], keys, self._persons, self._units)
        return np.asarray(counts[0, 0], np.float64) + self.experts / self.actions


@dataclass(frozen=True)
class Shrinkage:
    """How much of the votes is kept against noise.

    Attributes:
        factor: between 0 (nothing but noise) and 1.
        shares: each row's estimated shares of the voters, a point of the simplex.
    """

    factor: float
    shares: Float[np.ndarray, "asked actions"]


def shrink(counts: Float[np.ndarray, "asked actions"], sigma: float, experts: int) -> Shrinkage:
    """Estimated shares of the voters: towards 1/A by James and Stein, then the nearest simplex.

    The votes for A actions, less their mean, have A - 1 dimensions and noise of variance sigma^2
    in each. With n = asked (A - 1) dimensions in all and squared length L the positive-part factor
    is max(0, 1 - (n - 2) sigma^2 / L): it estimates, from released numbers and public ones alone,
    how much of L is no noise (James and Stein 1961; Efron and Morris 1973). The nearest point of
    the simplex is closer to the truth than the point it replaces, for the truth is in it.

    Args:
        counts: noisy counts.
        sigma: standard deviation of the noise in each.
        experts: voters that there are, m.
    """
    actions = counts.shape[-1]
    centred = counts - counts.mean(axis=-1, keepdims=True)
    length = float(np.sum(np.square(centred)))
    noise = max(0, len(counts) * (actions - 1) - 2) * sigma**2
    factor = max(0.0, 1 - noise / length) if length > 0 else 0.0
    return Shrinkage(factor, to_simplex(1 / actions + factor * centred / experts))


def to_simplex(points: Float[np.ndarray, "n a"]) -> Float[np.ndarray, "n a"]:
    """The nearest point of the probability simplex, in Euclidean distance.

    Source: Duchi et al. 2008, "Efficient Projections onto the l1-Ball", figure 1.
    """
    ordered = -np.sort(-points, axis=-1)
    ranks = np.arange(1, points.shape[-1] + 1)
    levels = (np.cumsum(ordered, axis=-1) - 1) / ranks
    support = np.sum(ordered > levels, axis=-1, keepdims=True)
    return np.maximum(points - np.take_along_axis(levels, support - 1, axis=-1), 0.0)


def _sizes(voters: Voter) -> tuple[int, int]:
    """How many voters, and how many actions."""
    last = voters.policy.network.weights[-1]
    return last.shape[0], last.shape[-1]
