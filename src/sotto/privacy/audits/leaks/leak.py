"""The entries of the leak catalogue, and functions that audit them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sotto.privacy.audits.audit import AuditResult, Mechanism, ReleaseTrials, audit_mechanism
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Part
from sotto.privacy.units import Adjacency, Unit

DELTA = 1e-5
PERSON = Unit(kind="trajectory", adjacency=Adjacency.ZERO_OUT)
SMALL_CLIP = 0.05
"""Clip norm of the toy policies. Gradients are far longer, so every update is plus or minus it."""

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
    """

    name: str
    claim: str
    why: str
    remedy: str
    claimed_epsilon: float
    leaky: Audit
    sound: Audit


def against(claimed_epsilon: float, mechanism: Mechanism) -> Audit:
    """Returns the audit of a mechanism against a claimed epsilon."""
    return lambda samples, seed, confidence: audit_mechanism(
        mechanism,
        samples,
        seed,
        DELTA,
        certified_epsilon=claimed_epsilon,
        confidence=confidence,
    )


def against_certificate(trials: ReleaseTrials) -> Audit:
    """Returns the audit of a release against the certificate that its ledger gives."""
    return lambda samples, seed, confidence: against(trials.certified_epsilon(DELTA), trials)(
        samples, seed, confidence
    )


def one_update(
    local: Callable[[Any, Any, Any], tuple[Any, Any]],
    inputs: Callable[[bool], tuple[Any, Any]],
    state: Any,
    *,
    people: int,
    noise_multiplier: float,
) -> ReleaseTrials:
    """Returns trials of one release that adds the noisy mean update to a public state.

    Args:
        local: as in `Release`, with the part "policy".
        inputs: people and their data, with the person under test or without.
        state: the public state before the release.
        people: number of people.
        noise_multiplier: noise standard deviation divided by the clip norm.
    """
    release = Release(
        name="policy",
        local=local,
        server=_add,
        unit=PERSON,
        parts={"policy": Part(clip_norm=SMALL_CLIP, noise_multiplier=noise_multiplier)},
        slots=people,
        divisor=people,
        horizon=1,
        population="simulated",
    )
    return ReleaseTrials(release, state, inputs, _flat)


def _add(state: Any, released: Any) -> tuple[Any, Any]:
    return state + released["policy"], released["policy"]


def _flat(log: np.ndarray) -> np.ndarray:
    return np.asarray(log).reshape(len(log), -1)
