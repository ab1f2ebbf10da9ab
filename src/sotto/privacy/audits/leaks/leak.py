"""The entries of the leak catalogue, and functions that audit them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from sotto.privacy.accounting.composition import gaussian_epsilon
from sotto.privacy.audits.audit import AuditResult, Mechanism, ReleaseTrials, audit_mechanism
from sotto.privacy.audits.function_trials import FunctionTrials
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Part
from sotto.privacy.units import Adjacency, Unit

DELTA = 1e-5
PERSON = Unit(kind="trajectory", adjacency=Adjacency.ZERO_OUT)
Z, USERS = 5.0, 8
CLAIMED = gaussian_epsilon(Z, DELTA)
"""Epsilon of one Gaussian release with noise multiplier `Z`."""
SMALL_CLIP = 0.05
"""Clip norm of the toy policies. Gradients are far longer, so every update is plus or minus it."""

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
    """

    name: str
    claim: str
    why: str
    remedy: str
    claimed_epsilon: float
    leaky: Audit
    sound: Audit


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
