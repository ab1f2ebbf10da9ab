"""The entries of the leak catalogue, and functions that audit them."""

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from sotto.privacy.accounting.composition import gaussian_epsilon
from sotto.privacy.audits.audit import AuditResult, Mechanism, ReleaseTrials, audit_mechanism
from sotto.privacy.audits.canaries import reach
from sotto.privacy.audits.function_trials import FunctionTrials
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Gap, Part
from sotto.privacy.units import Adjacency, Unit

DELTA = 1e-5
PERSON = Unit(kind="trajectory", adjacency=Adjacency.ZERO_OUT)
Z, USERS = 5.0, 8
CLAIMED = gaussian_epsilon(Z, DELTA)
"""Epsilon of one Gaussian release with noise multiplier `Z`."""
SMALL_CLIP = 0.05
"""Clip norm of the toy policies. Gradients are far longer, so every update is plus or minus it."""

_LEAST_SAMPLES = 4
"""Fewest samples of which one half can choose an event, and the other half test it."""
_NOTHING = np.float32(0.0)

Audit = Callable[[int, int, float], AuditResult]
"""Function of the number of samples, the seed and the confidence that runs an audit."""


@dataclass(frozen=True)
class Leak:
    """A mistake that loses a guarantee, as an experiment.

    Attributes:
        name: name on the command line.
        claim: false claim, in a sentence.
        why: what leaks, in a sentence or two.
        remedy: what to do instead, which is what the sound variant does.
        claimed_epsilon: epsilon that the leaky variant would claim at delta `DELTA`.
        leaky: audit of the leaky variant against that claim.
        sound: audit of the sound variant against its certificate.
        runs: runs of the leaky variant on each input for each sample; 0 if its bound is computed.
    """

    name: str
    claim: str
    why: str
    remedy: str
    claimed_epsilon: float
    leaky: Audit
    sound: Audit
    runs: int = 1

    def least_samples(self, confidence: float) -> int:
        """Returns the fewest samples with which the leak can show itself, even without noise."""

        def enough(samples: int) -> bool:
            most = reach(self.runs * samples, DELTA, confidence) if self.runs else math.inf
            return most > self.claimed_epsilon

        most = _LEAST_SAMPLES
        while not enough(most):
            most *= 2
        tried = range(_LEAST_SAMPLES, most + 1)
        return tried[bisect.bisect_left(tried, True, key=enough)]


def against(claimed_epsilon: float | Callable[[], float], mechanism: Mechanism) -> Audit:
    """Returns the audit of a mechanism against a claimed epsilon, or one computed at the audit."""
    return lambda samples, seed, confidence: audit_mechanism(
        mechanism,
        samples,
        seed,
        DELTA,
        certified_epsilon=claimed_epsilon() if callable(claimed_epsilon) else claimed_epsilon,
        confidence=confidence,
    )


def against_certificate(trials: ReleaseTrials | FunctionTrials) -> Audit:
    """Returns the audit of a release against the certificate that its ledger gives."""
    return against(lambda: trials.certified_epsilon(DELTA), trials)


def enrolled(present: bool, people: int = USERS, releases: int = 1) -> Int[np.ndarray, "n people"]:
    """Returns who has which slot: people take part once, and the very first may be absent."""
    persons = np.arange(releases * people).reshape(releases, people)
    return np.where((persons == 0) & (not present), -1, persons)


def updates(
    inputs: Callable[[bool], tuple[Any, Any]],
    contribution: Callable[[Any, Any, Any], Any] = lambda _state, unit, _key: unit,
    *,
    people: int = USERS,
    noise_multiplier: float = Z,
    clip_norm: float = 1.0,
    state: Any = _NOTHING,
    observe: Callable[[Any], np.ndarray] = lambda log: np.reshape(log, (len(log), -1)),
    unit: Unit = PERSON,
    horizon: int = 1,
    **rules: Any,
) -> ReleaseTrials:
    """Returns trials of releases that each add the noisy mean contribution to a public state.

    Args:
        inputs: people and their data, with the person under test or without.
        contribution: one person's contribution, `(state, data, key) -> update`; by default the
            data themselves.
        people: number of slots.
        noise_multiplier, clip_norm: noise and clip norm of the update.
        state: the public state before the first release.
        observe: what the adversary sees of the noisy updates; by default all of them.
        unit, horizon, rules: as in `Release`.
    """
    release = Release(
        name="update",
        local=lambda state, data, key: ({"update": contribution(state, data, key)}, ()),
        server=_add,
        unit=unit,
        parts={"update": Part(clip_norm=clip_norm, noise_multiplier=noise_multiplier)},
        slots=people,
        divisor=people,
        horizon=horizon,
        population="simulated",
        **rules,
    )
    return ReleaseTrials(release, state, inputs, observe)


def _add(state: Any, released: Any) -> tuple[Any, Any]:
    return state + released["update"], released["update"]


@dataclass(frozen=True)
class Training:
    """A training that computes a statistic beside the noisy updates of its policy.

    Attributes:
        gap: gap of the leaky variant, in which the statistic has no noise.
        local: as in `Release`, with the parts "policy" and "statistic".
        server: as in `Release`.
        state: the public state before the first release.
        inputs: people and their data in `releases` releases, with the person under test or without.
        releases: number of releases.
        clip_norm: clip norm of the statistic in the sound variant.
        observe: what the adversary sees of the server's log; by default all of it.
        clipping: how policy and statistic are clipped in the sound variant.
    """

    gap: Gap
    local: Callable[[Any, Any, Array], tuple[Any, Any]]
    server: Callable[[Any, Any], tuple[Any, Any]]
    state: dict[str, Any]
    inputs: Callable[[bool], tuple[Any, Any]]
    releases: int
    clip_norm: float
    observe: Callable[[Any], np.ndarray] = np.asarray
    clipping: Literal["separate", "joint"] = "separate"

    def trials(self, private: bool) -> ReleaseTrials:
        """Returns trials whose statistic is a part of the release, or has no noise."""
        apart = private and self.clipping == "separate"  # two parts then share the budget
        z = Z * math.sqrt(2) if apart else Z
        policy = {"policy": Part(clip_norm=SMALL_CLIP, noise_multiplier=z)}
        statistic = {"statistic": Part(clip_norm=self.clip_norm, noise_multiplier=z)}
        release = Release(
            name=f"policy and {self.gap.name}",
            local=self.local,
            server=self.server,
            unit=PERSON,
            parts=policy | statistic if private else policy,
            unprotected={} if private else {"statistic": self.gap},
            clipping=self.clipping,
            slots=USERS,
            divisor=USERS,
            horizon=self.releases,
            population="simulated",
        )
        state = jax.tree.map(lambda one: jnp.asarray(one, jnp.float32), self.state)
        return ReleaseTrials(release, state, self.inputs, self.observe)

    def leak(self, name: str, *, claim: str, why: str, remedy: str) -> Leak:
        """Returns the entry of the catalogue, with its claim, why it is false, and the remedy."""
        return Leak(
            name=name,
            claim=claim,
            why=why,
            remedy=remedy,
            claimed_epsilon=CLAIMED,
            leaky=against(CLAIMED, self.trials(private=False)),
            sound=against_certificate(self.trials(private=True)),
        )
