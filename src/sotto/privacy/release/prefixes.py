"""The door for stable prefixes: experts act in a world, and actions that many share are released.

```
mechanism = calibrate_floor(Target(3000, releases=25, epsilon=5, delta=1 / 30000), floor=0.01)
release = PrefixRelease("prefixes", mechanism, releases=25, horizon=200, actions=2, population=...)
prefixes = release.open(ledger).release(experts, greedy, world)     # charged before anybody acts
```

All rollouts run side by side, in fresh episodes. A fixed log cannot take the place of the world.
Its states belong to one expert alone, so that any release of them has no protection.

Guarantee:
    For one expert who is there, or absent with their slot kept, everything that `release` returns
    has the privacy curve of the mechanism's event (docs/privacy.md, section 14). Actions come from
    a drawn expert's floored policy, or from the vote of all. Masses and leads are exact integers on
    a public grid that move by at most 1. Noise is exact, and nothing tells why a prefix ended.
    States, rewards and dynamics are not protected.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int64, PyTree

from sotto.frozen import Declared
from sotto.privacy.errors import BudgetExceeded, PrivacyError
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.persons import PersonBlock
from sotto.privacy.ledger.streams import LedgerStream
from sotto.privacy.mechanisms import noise
from sotto.privacy.mechanisms.prefix_calibration import fixed_log_delta
from sotto.privacy.mechanisms.sparse_vector import UNIT
from sotto.privacy.mechanisms.stable_prefixes import Consensus, RandomStop, StablePrefixMechanism
from sotto.privacy.release.purity import require_pure
from sotto.privacy.settings import COMPILER_OPTIONS
from sotto.privacy.statements import Assumption, Returning, StreamStatement
from sotto.privacy.units import EXPERT, PopulationKind
from sotto.trees import leaves_of, like

Greedy = Callable[[PyTree[Array], Float[Array, "q obs"]], Int[Array, " q"]]
"""Function for one expert's greedy actions at observations; it is traced, and must be pure."""


@runtime_checkable
class Rollouts(Protocol):
    """Fresh rollouts side by side. Its behaviour must not depend on who the experts are."""

    def reset(self, count: int) -> Float[np.ndarray, "count obs"]:
        """Begins new episodes, and returns their first observations."""

    def step(
        self, actions: Int[np.ndarray, " count"]
    ) -> tuple[
        Float[np.ndarray, "count obs"], Float[np.ndarray, " count"], Bool[np.ndarray, " count"]
    ]:
        """Returns observations, rewards, and which episodes have terminated; these go on, too."""


class StablePrefixes(NamedTuple):
    """The released prefixes, n of them, padded with zeros.

    Attributes:
        observations: of the prefix's states, the last one included: `lengths + 1` of them.
        actions: taken in all states but the last.
        rewards: of these actions.
        lengths: number of actions, from 0 to the horizon.
        terminated: whether the last state is terminal. Where it is not, the prefix was cut.
    """

    observations: Float[np.ndarray, "n H1 obs"]
    actions: Int[np.ndarray, "n H"]
    rewards: Float[np.ndarray, "n H"]
    lengths: Int[np.ndarray, " n"]
    terminated: Bool[np.ndarray, " n"]


@dataclass(frozen=True)
class PrefixRelease(Declared):
    """A planned release of stable prefixes.

    Attributes:
        name: name of the release, for the certificate.
        mechanism: rule, noise and failure; `prefix_calibration` finds it for a target epsilon.
        releases: how many prefixes; all of them are charged at once.
        horizon: longest prefix.
        actions: of the environment.
        population: "simulated" or "real".
        protects, does_not_protect: sentences for the certificate.
        assumptions: what the proof needs beyond what every release of prefixes needs, e.g. that a
            clone is made of one expert's log alone.
    """

    name: str
    mechanism: StablePrefixMechanism
    releases: int
    horizon: int
    actions: int
    population: PopulationKind
    protects: tuple[str, ...] = ()
    does_not_protect: tuple[str, ...] = ()
    assumptions: tuple[Assumption, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.releases < 1 or self.horizon < 1 or self.actions < 2:
            raise ValueError(
                "there must be at least one release, a horizon of 1 and two actions to choose from"
            )
        if self.mechanism.rule.floor * self.actions > 1:
            raise ValueError(
                f"{self.actions} actions cannot all have probability "
                f"{self.mechanism.rule.floor:g}; take a floor of at most 1/{self.actions}"
            )

    def open(self, ledger: Ledger, *, noise_seed: int | None = None) -> "OpenPrefixRelease":
        """Writes the statement into the ledger, if the budget covers all prefixes.

        Args:
            ledger: of experts, zero-out.
            noise_seed: for tests and audits only; voids the certificate.

        Raises:
            PrivacyError: the budget does not cover it, delta is not below 1/experts, or the ledger
                is another one's.
        """
        experts = self.mechanism.experts
        if ledger.budget.delta * experts >= 1:
            raise BudgetExceeded(
                f"delta {ledger.budget.delta:.2g} is vacuous for {experts} experts, since "
                "publishing one of them at random would meet it; take a delta below 1/experts"
            )
        generators = noise.GeneratorSource(noise_seed)
        statement = StreamStatement(
            name=self.name,
            unit=EXPERT,
            participation=Returning(max_participations=self.releases, min_separation=1),
            divisor=1.0,
            horizon=self.releases,
            population=self.population,
            entropy=generators.entropy,
            sampler_delta=0.0,  # the sampler is exact
            protects=self.protects,
            does_not_protect=self.does_not_protect,
            assumptions=self.assumptions,
            prefixes=self.mechanism,
        )
        return OpenPrefixRelease(self, ledger.open_stream(statement), generators)


class OpenPrefixRelease:
    """An opened release of prefixes. Only `release` releases anything, and only once.

    Attributes:
        statement: as the ledger holds it.
    """

    def __init__(
        self, release: PrefixRelease, stream: LedgerStream, generators: noise.GeneratorSource
    ) -> None:
        self.statement = stream.statement
        self._release = release
        self._stream = stream
        self._generators = generators

    def release(
        self,
        experts: PyTree[Array],
        greedy: Greedy,
        world: Rollouts,
        present: Bool[np.ndarray, " slots"] | None = None,
    ) -> StablePrefixes:
        """Charges all prefixes, and rolls them out.

        Args:
            experts: parameters, every leaf with a leading axis of slots.
            greedy: one expert's greedy actions.
            world: where they act.
            present: which slots hold an expert (default: all). There must be as many as the
                mechanism is calibrated for, and more slots, so that one expert may be missing.
                Under a fixed seed, for audits, one fewer will do.

        Raises:
            PrivacyError: a log in place of a world, fewer experts than stated, or the ledger
                refuses. Nothing has been released then.
            ImpureFunction: `greedy` could see more than one expert.
            ValueError: shapes do not match.
        """
        plan, mechanism = self._release, self._release.mechanism
        if not isinstance(world, Rollouts):
            raise PrivacyError(_log_refused(plan))
        slots = _slots(experts)
        here = np.ones(slots, bool) if present is None else np.asarray(present, bool)
        if here.shape != (slots,):
            raise ValueError(f"present needs one entry for each of {slots} slots")
        # The theorems cover two neighbours of which the larger has as many experts as stated. A
        # mechanism for one fewer than there are thus runs, and is covered, in both.
        # With as many slots as stated, a refusal would tell that one expert is missing.
        audited = self.statement.entropy == "fixed-seed"
        if here.sum() < mechanism.experts - audited or slots < mechanism.experts + (not audited):
            raise PrivacyError(
                f"there are fewer than the {mechanism.experts} experts that the mechanism was "
                "calibrated for, or no slot besides theirs; calibrate it for one expert fewer than "
                "there are"
            )
        first = np.asarray(world.reset(plan.releases), np.float32)
        if first.ndim != 2 or len(first) != plan.releases:
            raise ValueError(f"the world gave observations of shape {first.shape}, not [n, obs]")
        ask = _asked(greedy, experts, first.shape, plan.actions)
        everybody = PersonBlock(0, slots)
        self._stream.charge(self._stream.releases, plan.releases, [everybody] * plan.releases)
        # From here on the release is paid for.
        draws = _Draws.of(plan, int(here.sum()), self._generators.next())
        follow = _lead if isinstance(mechanism.rule, Consensus) else _follower(plan, here, draws)
        return _roll_out(plan, world, first, lambda seen: ask(experts, seen), here, draws, follow)


# --- rolling out ---------------------------------------------------------------------------------


class _Draws(NamedTuple):
    """All random numbers, drawn in advance so that no draw depends on earlier ones.

    Attributes:
        experts: number of the drawn one among those present.
        offsets: added to a greedy action; not 0 only where the floored policy slips.
        coins: prefixes that end by themselves.
        thresholds: with noise, in grid steps.
        queries: noise, in grid steps.
    """

    experts: Int64[np.ndarray, " n"]
    offsets: Int64[np.ndarray, "n H"]
    coins: Bool[np.ndarray, "n H"]
    thresholds: Int64[np.ndarray, "n 1"]
    queries: Int64[np.ndarray, "n H"]

    @classmethod
    def of(cls, plan: PrefixRelease, present: int, generator: np.random.Generator) -> "_Draws":
        mechanism, shape = plan.mechanism, (plan.releases, plan.horizon)
        rule, sparse = mechanism.rule, mechanism.noise
        slips = generator.random(shape) < (plan.actions - 1) * rule.floor
        hazard = rule.hazard if isinstance(rule, RandomStop) else 0.0
        threshold = sparse.threshold_noise(generator, (plan.releases, 1))
        return cls(
            experts=generator.integers(present, size=plan.releases),
            offsets=slips * generator.integers(1, plan.actions, size=shape),
            coins=generator.random(shape) < hazard,
            thresholds=mechanism.threshold_steps + threshold,
            queries=sparse.query_noise(generator, shape),
        )


Votes = Int[np.ndarray, "slots n"]
Step = Callable[
    [int, Votes, Bool[np.ndarray, " slots"], int],
    tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]],
]
"""Function from the number of a step and all greedy actions to the actions and the queries."""


def _follower(plan: PrefixRelease, present: np.ndarray, draws: _Draws) -> Step:
    """Returns the step of drawn experts; its query is the mass of the prefix, in grid steps.

    An expert's weight depends on how often their greedy action was another one, so masses follow
    from counts. Weights are computed in log space and rounded down to the grid, each by itself.
    """
    drawn = np.flatnonzero(present)[draws.experts]
    rollouts = np.arange(plan.releases)
    slots = len(present)
    others = np.zeros((slots, plan.releases), np.int32)
    floor = plan.mechanism.rule.floor

    def step(number: int, votes: Votes, here: np.ndarray, actions: int) -> tuple[Any, Any]:
        chosen = (votes[drawn, rollouts] + draws.offsets[:, number]) % actions
        others[...] += votes != chosen
        weights = _weights(number + 1, floor, actions)
        # Integers: the sum is exact in any order, and moves by one expert's weight.
        return chosen, np.sum(weights[others], axis=0, where=here[:, None])

    return step


def _weights(length: int, floor: float, actions: int) -> Int64[np.ndarray, " others"]:
    """Returns a prefix's probability under a floored policy, by the number of differing actions."""
    others = np.arange(length + 1)
    with np.errstate(divide="ignore"):
        low = np.log(np.float64(floor))
    log_weights = (length - others) * np.log1p(-(actions - 1) * floor)
    log_weights[1:] += others[1:] * low
    weights: Int64[np.ndarray, " others"]
    weights = np.floor(np.exp(log_weights) * (UNIT * (1 - 2.0**-40))).astype(np.int64)
    return weights


def _lead(_number: int, votes: Votes, here: np.ndarray, actions: int) -> tuple[Any, Any]:
    """Returns the winner of the vote (the first of several), and its lead in grid steps."""
    counts = np.stack([np.sum(votes == a, axis=0, where=here[:, None]) for a in range(actions)])
    ordered = np.sort(counts, axis=0)
    return np.argmax(counts, axis=0), (ordered[-1] - ordered[-2]).astype(np.int64) * UNIT


def _roll_out(
    plan: PrefixRelease,
    world: Rollouts,
    first: Float[np.ndarray, "n obs"],
    ask: Callable[[Float[np.ndarray, "n obs"]], Votes],
    present: Bool[np.ndarray, " slots"],
    draws: _Draws,
    follow: Step,
) -> StablePrefixes:
    """Rolls out all prefixes side by side. An ended one goes on in the world, unrecorded.

    Coin and query are combined before either is used. The length of the loop depends on the
    longest prefix, which is released.
    """
    n, horizon = plan.releases, plan.horizon
    observations = np.zeros((n, horizon + 1, first.shape[1]), np.float32)
    observations[:, 0] = seen = first
    actions = np.zeros((n, horizon), np.int32)
    rewards = np.zeros((n, horizon), np.float32)
    terminated = np.zeros(n, bool)
    going = np.ones(n, bool)
    lengths = np.zeros(n, np.int32)
    for number in range(horizon):
        chosen, queries = follow(number, ask(seen), present, plan.actions)
        passes = queries + draws.queries[:, number] >= draws.thresholds[:, 0]
        going &= passes & ~draws.coins[:, number]
        if not going.any():
            break
        after, gained, ended = world.step(np.where(going, chosen, 0).astype(np.int32))
        seen = np.asarray(after, np.float32)
        actions[going, number] = chosen[going]
        rewards[going, number] = np.asarray(gained, np.float32)[going]
        observations[going, number + 1] = seen[going]
        lengths += going
        terminated |= going & np.asarray(ended, bool)
        going &= ~terminated
    return StablePrefixes(observations, actions, rewards, lengths, terminated)


# --- what goes in --------------------------------------------------------------------------------


def _asked(
    greedy: Greedy, experts: PyTree[Array], shape: tuple[int, ...], actions: int
) -> Callable[[PyTree[Array], Float[np.ndarray, "n obs"]], Votes]:
    """Returns the checked, compiled function for the actions of all experts, always in range.

    `greedy` sees one observation at a time, so no rollout can decide another one's action.
    """
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), experts)
    seen = jax.ShapeDtypeStruct((1, *shape[1:]), np.dtype(np.float32))
    # A class of the experts' tree is called while `greedy` is traced, and not in the program.
    pure, answer = require_pure(
        "greedy", lambda leaves, row: greedy(like(one, leaves), row), leaves_of(one), seen
    )
    if answer.shape != (1,) or not np.issubdtype(answer.dtype, np.integer):
        raise ValueError("greedy must return one integer for each observation")

    def action(expert: tuple[Array, ...], row: Float[Array, " obs"]) -> Int[Array, ""]:
        chosen: Int[Array, " one"] = pure(expert, row[None])
        return chosen[0] % actions

    program = jax.jit(
        jax.vmap(jax.vmap(action, (None, 0)), (0, None)),
        compiler_options=COMPILER_OPTIONS,
    )
    return lambda experts, asked: np.asarray(program(leaves_of(experts), asked))


def _slots(experts: PyTree[Array]) -> int:
    sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(experts)}
    if len(sizes) != 1 or sizes == {()}:
        raise ValueError("every leaf of the experts needs the same leading axis, one per slot")
    return int(sizes.pop()[0])


def _log_refused(plan: PrefixRelease) -> str:
    reach = fixed_log_delta(plan.releases, plan.mechanism.experts)
    return (
        "stable prefixes need a world to act in (reset and step), not a fixed log: states of a log "
        f"are its owner's alone, and one expert's would be drawn with probability {reach:.3g}, "
        "which times the probability of passing is delta at any epsilon; train a clone of each "
        "expert on their log, and roll the clones out"
    )
