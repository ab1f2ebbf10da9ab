"""What an entry of the leak catalogue is."""

from collections.abc import Callable
from dataclasses import dataclass

from sotto.privacy.audits.audit import AuditResult, Mechanism, ReleaseTrials, audit_mechanism
from sotto.privacy.units import Adjacency, Unit

DELTA = 1e-5
PERSON = Unit(kind="trajectory", adjacency=Adjacency.ZERO_OUT)
SMALL_CLIP = 0.05
"""Clip norm of the toy policies; their gradients are far above it, so that every update is +-it."""

Audit = Callable[[int, int], AuditResult]
"""`audit(samples, seed)`."""


@dataclass(frozen=True)
class Leak:
    """A way of losing a guarantee, as an experiment.

    Attributes:
        name: for the command line.
        claim: what is claimed, in a sentence.
        why: why it is false, in a sentence.
        remedy: what the sound variant does instead.
        theory: where the analysis is.
        claimed_epsilon: what the leaky variant would claim at delta `DELTA`.
        leaky: audit of the leaky variant, against that claim.
        sound: audit of the sound variant, against its certificate.
    """

    name: str
    claim: str
    why: str
    remedy: str
    theory: str
    claimed_epsilon: float
    leaky: Audit
    sound: Audit


def against(claimed_epsilon: float, mechanism: Mechanism) -> Audit:
    """Audits a mechanism against an epsilon that somebody claims."""
    return lambda samples, seed: audit_mechanism(
        mechanism, samples, seed, DELTA, certified_epsilon=claimed_epsilon
    )


def against_certificate(trials: ReleaseTrials) -> Audit:
    """Audits a release against the certificate that its ledger gives."""
    return lambda samples, seed: audit_mechanism(
        trials, samples, seed, DELTA, certified_epsilon=trials.certified_epsilon(DELTA)
    )
