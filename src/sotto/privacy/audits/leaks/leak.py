"""The entries of the leak catalogue, and functions that audit them."""

from collections.abc import Callable
from dataclasses import dataclass

from sotto.privacy.audits.audit import AuditResult, Mechanism, ReleaseTrials, audit_mechanism
from sotto.privacy.units import Adjacency, Unit

DELTA = 1e-5
PERSON = Unit(kind="trajectory", adjacency=Adjacency.ZERO_OUT)
SMALL_CLIP = 0.05
"""Clip norm of the toy policies. Gradients are far longer, so every update is plus or minus it."""

Audit = Callable[[int, int], AuditResult]
"""Function of the number of samples and the seed that runs an audit."""


@dataclass(frozen=True)
class Leak:
    """A mistake that loses a guarantee, as an experiment.

    Attributes:
        name: name on the command line.
        claim: false claim, in a sentence.
        why: reason why it is false, in a sentence.
        remedy: method of the sound variant.
        theory: section of docs/privacy.md, or paper, with the analysis.
        claimed_epsilon: epsilon that the leaky variant would claim at delta `DELTA`.
        leaky: audit of the leaky variant against that claim.
        sound: audit of the sound variant against its certificate.
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
    """Returns the audit of a mechanism against a claimed epsilon."""
    return lambda samples, seed: audit_mechanism(
        mechanism, samples, seed, DELTA, certified_epsilon=claimed_epsilon
    )


def against_certificate(trials: ReleaseTrials) -> Audit:
    """Returns the audit of a release against the certificate that its ledger gives."""
    return lambda samples, seed: audit_mechanism(
        trials, samples, seed, DELTA, certified_epsilon=trials.certified_epsilon(DELTA)
    )
