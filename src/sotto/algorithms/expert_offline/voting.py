"""Noisy votes of experts, or of their clones, on the actions in given states.

The experts vote for actions instead of publishing what they did. Each voter's greedy actions at q
states are one contribution to a sum, which is released with Gaussian noise. States of later rounds,
labels, students and whole trajectories are functions of noisy votes and of public data, and cost
nothing more (`voting_rounds`, `distillation`).

At a state a voter contributes e_a - 1/A, the centred one-hot vector of its action a among A. Of all
encodings of A actions with equal distances, this one has the least norm, sqrt(1 - 1/A). The answers
add the public constant m/A back to the counts of m voters.

Source: Papernot et al. 2018, "Scalable Private Learning with PATE", for noisy votes of teachers;
docs/privacy.md, section 15, with Theorem 2' of section 4.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.algorithms.expert_offline.clones import Clones
from sotto.keys import new_key
from sotto.privacy.claims import experts as claims
from sotto.privacy.claims.logs import NOT_IMPORTED, AboutLog
from sotto.privacy.claims.streams import FIRST_POLICY
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.mechanisms.dirichlet.simplex import project
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Part, Returning
from sotto.privacy.units import EXPERT, PopulationKind
from sotto.rl.networks import Policy

Voters = Literal["experts", "clones"]

_ROWS = 50_000
"""Most pairs of voter and state that are evaluated at once, so that layers stay in the cache."""
_BATCHES = 16
"""Least number of batches, if there are as many voters: devices share the voters batch by batch."""


class Asked(NamedTuple):
    """The states of the votes, and the noisy votes."""

    observations: Float[np.ndarray, "asked obs"]
    counts: Float[np.ndarray, "asked actions"]
    """Number of voters for each action plus noise, which may be any real number."""


class Voter(NamedTuple):
    """A voter, or all voters with a leading axis; it is a function of its expert's data only."""

    policy: Policy
    weight: Float[Array, ""]
    """Weight of the ballot, between 0 (abstention) and 1. Voters who abstain are charged like all
    others, so the charge does not reveal them."""


def everybody(policies: Policy, weights: Float[np.ndarray, " voters"] | None = None) -> Voter:
    """Returns the voters of these policies, with weight 1 unless weights are given.

    Raises:
        ValueError: the weights are not between 0 and 1, or not one for each voter.
    """
    count = policies.network.weights[-1].shape[0]
    chosen = np.ones(count, np.float32) if weights is None else np.asarray(weights, np.float32)
    if chosen.shape != (count,) or not ((chosen >= 0) & (chosen <= 1)).all():
        raise ValueError(f"{count} voters need {count} weights, each between 0 and 1")
    return Voter(policies, jnp.asarray(chosen))


def ballot(voter: Policy, observations: Float[Array, "q obs"]) -> Float[Array, "q actions"]:
    """Returns one voter's greedy action a at each state as the centred one-hot vector e_a - 1/A."""
    distribution = voter(observations)
    actions = distribution.mode()[:, None]
    count = distribution.logits.shape[-1]  # type: ignore[union-attr]
    return jnp.where(actions == jax.lax.iota(jnp.int32, count), 1.0, 0.0) - 1.0 / count


def ballot_norm(queries: int, actions: int) -> float:
    """Returns the L2 norm of a ballot with weight 1 on q states, sqrt(q (1 - 1/A))."""
    return math.sqrt(queries * (1 - 1 / actions))


def vote_sigma(noise_multiplier: float, queries: int, rounds: int, actions: int) -> float:
    """Returns the standard deviation of the noise in each count, z sqrt(rounds q (1 - 1/A)).

    Args:
        noise_multiplier: noise multiplier z of all answers of one expert together.
            `sotto.algorithms.calibration` computes it from epsilon and delta.
        queries: number of states in each round, q.
        rounds: number of rounds.
        actions: number of actions, A.
    """
    return noise_multiplier * math.sqrt(rounds) * ballot_norm(queries, actions)


def vote_release(
    voters: Policy | Clones,
    *,
    queries: int,
    rounds: int,
    noise_multiplier: float,
    population: PopulationKind,
    first_policy: bool,
    about: AboutLog = NOT_IMPORTED,
) -> Release:
    """Returns the release of votes. Its state is the states of a round, its log the noisy counts.

    Guarantee:
        All rounds together are Gaussian with multiplier `noise_multiplier` for one expert, under
        zero-out adjacency. The states of a round may depend on earlier rounds in any way. At any
        states a ballot has norm at most sqrt(q (1 - 1/A)), since the weight is at most 1, and an
        expert takes part in every round (docs/privacy.md, section 15).

    Args:
        voters: policies of experts over discrete actions, with a leading axis of voters, or clones.
            Only of clones does the certificate say that the code made each from one expert's log.
        queries: number of states in each round, q.
        rounds: largest number of rounds.
        noise_multiplier: noise multiplier of the whole stream, for one expert.
        population: whether the experts are simulated or real.
        first_policy: whether students start from a policy that is said to be public.
        about: sentences of the certificate about an imported log.

    Raises:
        ValueError: the actions are not discrete, or the numbers are not positive.
    """
    if isinstance(voters, Clones):
        policies, kind = voters.policies, "clones"
        protected, duty = claims.CLONES_LOG, claims.OWN_CLONES
    else:
        policies, kind = voters, "experts"
        protected, duty = claims.EXPERTS_POLICY, claims.OWN_EXPERTS
    if policies.log_std is not None:
        raise ValueError("votes need discrete actions, and these policies have continuous ones")
    if queries < 1 or rounds < 1:
        raise ValueError(f"votes need at least one state and one round, got {queries}, {rounds}")
    count, actions = _sizes(policies)
    batches = max(math.ceil(count * queries / _ROWS), min(count, _BATCHES))

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
        slots=count,
        divisor=1.0,
        horizon=rounds,
        population=population,
        participation=Returning(max_participations=rounds, min_separation=1),
        microbatch=math.ceil(count / batches),
        protects=(protected(),),
        does_not_protect=(
            claims.RELEASED_VOTES(kind=kind),
            claims.HOW_MANY(),
            claims.MOST_EXPERTS(),
            *about.does_not_protect,
        ),
        assumptions=(
            duty.assumption(),
            claims.PUBLIC_WORLD.assumption(),
            *((FIRST_POLICY.assumption(),) if first_policy else ()),
            *about.assumptions,
        ),
    )


class Votes:
    """An open poll. A round asks every voter at q states and returns noisy counts.

    Args:
        voters: policies of experts over discrete actions, with a leading axis of voters, or clones.
            Voter i has the enrolment number i in all streams of the ledger.
        weights: weights of the experts' ballots, see `Voter`; None gives every ballot the weight 1.
            Clones have weights of their own.
        ledger: ledger of the unit `EXPERT`, which is charged before each round.
        queries, rounds, noise_multiplier, population, first_policy, about: settings of
            `vote_release`.
        resume: whether to ask the remaining rounds of an interrupted poll with the same settings.

    Attributes:
        experts: public number of voters.
        actions: number of actions.
        queries: number of states in each round.
        sigma: standard deviation of the noise in each count.

    Raises:
        PrivacyError: the budget does not cover the poll. No voter was asked.
        ValueError: the settings are refused by `vote_release`, or clones are given with weights.
    """

    def __init__(
        self,
        voters: Policy | Clones,
        ledger: Ledger,
        *,
        weights: Float[np.ndarray, " voters"] | None = None,
        queries: int,
        rounds: int,
        noise_multiplier: float,
        population: PopulationKind,
        first_policy: bool = False,
        about: AboutLog = NOT_IMPORTED,
        resume: bool = False,
    ) -> None:
        if isinstance(voters, Clones):
            if weights is not None:
                raise ValueError("clones have weights of their own; give no others")
            electorate = everybody(voters.policies, voters.weights)
        else:
            electorate = everybody(voters, weights)
        release = vote_release(
            voters,
            queries=queries,
            rounds=rounds,
            noise_multiplier=noise_multiplier,
            population=population,
            first_policy=first_policy,
            about=about,
        )
        self.experts, self.actions = _sizes(electorate.policy)
        self.queries = queries
        self.sigma = vote_sigma(noise_multiplier, queries, rounds, self.actions)
        self._rounds = rounds
        self._observation_size = electorate.policy.network.weights[0].shape[-2]
        electorate = jax.tree.map(jnp.asarray, electorate)
        self._persons = np.arange(self.experts)[None, None]
        self._units = jax.tree.map(lambda x: x[None, None], electorate)
        asked = jnp.zeros((1, queries, self._observation_size), jnp.float32)
        self._stream = release.open([ledger], asked, electorate, chunk=1, resume=resume)

    @property
    def rounds_left(self) -> int:
        """Number of rounds that may still be asked."""
        return self._rounds - self._stream.released

    def ask(self, observations: Float[np.ndarray, "q obs"]) -> Float[np.ndarray, "q actions"]:
        """Charges the ledger, asks one round, and returns the number of votes plus noise.

        Args:
            observations: states that are functions of earlier rounds and of public data only.

        Raises:
            PrivacyError: no round is left, or the ledger cannot be written. No voter was asked.
            ValueError: the number or the size of the observations is wrong.
        """
        asked = np.asarray(observations, np.float32)
        if asked.shape != (self.queries, self._observation_size):
            raise ValueError(
                f"a round asks {self.queries} observations of {self._observation_size} numbers, "
                f"not an array of shape {list(asked.shape)}"
            )
        keys = jax.random.split(new_key(0), 1)  # voters are deterministic
        _, counts, _ = self._stream.run(jnp.asarray(asked)[None], keys, self._persons, self._units)
        return np.asarray(counts[0, 0], np.float64) + self.experts / self.actions


@dataclass(frozen=True)
class Shrinkage:
    """Noisy votes after shrinking.

    Attributes:
        factor: factor of the unexpected votes, between 0 (only noise) and 1.
        shares: estimated shares of the voters in each row, a point of the simplex.
    """

    factor: float
    shares: Float[np.ndarray, "asked actions"]


def shrink(
    counts: Float[np.ndarray, "asked actions"],
    sigma: float,
    experts: int,
    expected: Float[np.ndarray, "asked actions"] | None = None,
) -> Shrinkage:
    """Estimates the shares of the voters by James-Stein shrinking and projection to the simplex.

    The votes for A actions, minus those expected and minus their mean, have A - 1 dimensions, with
    noise of variance sigma^2 in each. Let n = asked (A - 1) be the number of dimensions and L the
    squared length of the centred votes. The positive-part factor max(0, 1 - (n - 2) sigma^2 / L)
    estimates the part of L that is not noise (James and Stein 1961; Efron and Morris 1973). It
    reads released and public numbers only. The true shares lie in the simplex. So that part is at
    most m^2 times the sum, over the states, of the squared distance from the guess to the farthest
    corner, and the factor is bounded accordingly. The projection comes closer to the true shares,
    too. Voters who abstain count as voters who are undecided.

    Args:
        counts: noisy counts.
        sigma: standard deviation of the noise in each count.
        experts: number of voters, m.
        expected: public guess of the shares, towards which the estimates shrink. None expects every
            action equally often.
    """
    actions = counts.shape[-1]
    guess = np.full(counts.shape, 1 / actions) if expected is None else expected
    unexpected = counts - experts * guess
    centred = unexpected - unexpected.mean(axis=-1, keepdims=True)
    length = float(np.sum(np.square(centred)))
    noise = max(0, len(counts) * (actions - 1) - 2) * sigma**2
    farthest = 1 - 2 * guess.min(axis=-1) + np.sum(np.square(guess), axis=-1)  # of the corners
    signal = min(length - noise, experts**2 * float(np.sum(farthest)))
    factor = max(0.0, signal / length) if length > 0 else 0.0
    return Shrinkage(factor, project(guess + factor * centred / experts))


def _sizes(policies: Policy) -> tuple[int, int]:
    """Returns the numbers of voters and of actions."""
    last = policies.network.weights[-1]
    return last.shape[0], last.shape[-1]
