"""Audit of a user's own code, or of a training of sotto: which checks run, and one verdict.

The bounds of one audit share its confidence: each of n statistical questions is answered with
confidence 1 - (1 - confidence) / n, so that all of them hold together (Bonferroni). A claim is
refuted if one lower bound exceeds it. A claim that is not refuted is not proved.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np

from sotto.privacy.accounting.events import Gaussian
from sotto.privacy.audits import canaries, noise_size, one_run
from sotto.privacy.audits.auditable import Auditable
from sotto.privacy.audits.replay import PEOPLE, replay
from sotto.privacy.bounds import at_least, at_most
from sotto.privacy.statements import Poisson
from sotto.privacy.units import Adjacency

LEAST_SAMPLES = 16

_REPLACED = (
    "Replacement of a person: people were left out, which moves a sum half as far as a replacement "
    "may."
)

_SAME = (
    "Everything: no output changed when a person was left out and the seed was the same. If train "
    "ignores `present`, this audit tells nothing. Put somebody first who changes the output."
)


_INDEPENDENT = (
    "Noise that is the same in several numbers of one release: their noise is presumed to be "
    "independent."
)


@dataclass(frozen=True)
class Finding:
    """The answer to one question.

    Attributes:
        check: "replay", "canary" or "one run".
        presumes: what the bound presumes beyond the claim.
        epsilon_lower: lower bound on epsilon, perhaps infinite.
        refuted: whether it refutes the claim.
        says: what was done and seen, in a sentence.
    """

    check: str
    presumes: str
    epsilon_lower: float
    refuted: bool
    says: str


@dataclass(frozen=True)
class Verdict:
    """The result of an audit.

    Attributes:
        epsilon, delta: the claim.
        confidence: least probability with which all bounds hold together.
        findings: one for each question.
        left_out: sentences about what the audit did not check.
        seconds: wall-clock time.
    """

    epsilon: float
    delta: float
    confidence: float
    findings: tuple[Finding, ...]
    left_out: tuple[str, ...]
    seconds: float

    @property
    def refuted(self) -> bool:
        """Whether a bound exceeds the claim."""
        return any(one.refuted for one in self.findings)


def audit_own(
    auditable: Auditable,
    samples: int,
    seed: int,
    confidence: float,
    note: Callable[[str], None] = lambda _: None,
    people: int = PEOPLE,
) -> Verdict:
    """Audits a user's code.

    Args:
        auditable: description of the code, with its claim.
        samples: number of runs with one person, and without.
        seed: seed of the audit.
        confidence: probability with which all bounds hold together.
        note: called with a sentence before each check.
        people: number of people who are left out, one after the other.

    Raises:
        ValueError: runs cannot be repeated, or a number is out of its range.
    """
    check(confidence, people, samples)
    start = time.perf_counter()
    many = auditable.size >= one_run.LEAST
    measured = many and noise_size.can_measure(auditable)
    gaussian = many and _is_gaussian(auditable)
    each = 1 - (1 - confidence) / (1 + many + gaussian + measured)
    findings, left_out = [], []
    if auditable.door is not None:
        note("repeating the release without each person in turn")
        findings.append(_replayed(auditable, seed, people))
        if jax.tree.leaves(auditable.door.contribution(auditable.people)[1]):
            left_out.append(
                "Diagnostics of `local`: they have no noise. Real people's never leave."
            )
    else:
        left_out.append("Sums before noise: only for a Release.")
    note("looking for the person who changes the output most")
    before = time.perf_counter()
    canary = canaries.find(auditable, seed, people)
    took = time.perf_counter() - before
    if not canary.direction.any():
        left_out.append(_SAME)
    note(f"making {samples:,} runs with person {canary.person}, and without (first {took:.1f} s)")
    found = canaries.bound(auditable, canary, samples, seed, each)
    findings.append(
        Finding(
            "canary",
            "nothing",
            found.epsilon_lower,
            found.refuted,
            f"{samples:,} runs with person {canary.person}, and {samples:,} without",
        )
    )
    if (most := canaries.reach(samples, auditable.delta, each)) <= auditable.epsilon:
        left_out.append(
            f"Noise that is too small in these runs: {samples:,} of each kind show an epsilon of "
            f"at most {at_most(most, 3)}, even without noise, and so refute no larger claim. Give "
            "more --samples."
        )
    if many:
        note(f"training once with {auditable.size} people, each in or out by a coin")
        guesses = one_run.train_once(auditable, seed)
        findings += _guessed(auditable, guesses, each, gaussian)
    else:
        left_out.append(f"One run with many canaries: give at least {one_run.LEAST} people.")
    if measured:
        note(f"training once with canaries in the place of all {auditable.size} people")
        findings.append(_measured(auditable, noise_size.measure(auditable, seed, note), each))
        left_out.append(_INDEPENDENT)
    elif many:
        left_out.append(f"Size of the noise: {noise_size.NEEDS}")
    return _verdict(auditable, confidence, findings, left_out, start)


def audit_training(
    auditable: Auditable,
    seed: int,
    confidence: float,
    note: Callable[[str], None] = lambda _: None,
    people: int = PEOPLE,
) -> Verdict:
    """Audits a training by one more training, at the same settings, of canaries.

    Args:
        auditable: the training, as a release, of `sotto.algorithms.audits.auditable`.
        seed: seed of the audit.
        confidence: probability with which all bounds hold together.
        note: called with a sentence before each check.
        people: number of people who are left out, one after the other.

    Raises:
        ValueError: a number is out of its range.
    """
    check(confidence, people)
    start = time.perf_counter()
    gaussian = _is_gaussian(auditable)
    each = 1 - (1 - confidence) / (2 + gaussian)
    findings = []
    assert auditable.door is not None
    everybody = np.ones(auditable.size, bool)
    simulates = not jax.tree.leaves(auditable.door.enrol(auditable.people, everybody)[1])
    if simulates:
        note("repeating the first releases without each of several simulated people")
        findings.append(_replayed(auditable, seed, people))
    note(f"training with {auditable.size:,} canaries, each in or out by a coin")
    measured = noise_size.measure(auditable, seed, note)
    share = one_run.best_share(auditable.size, auditable.epsilon, auditable.delta)
    guesses = one_run.guesses_of(measured.scores, measured.took_part, share)
    findings += _guessed(auditable, guesses, each, gaussian)
    findings.append(_measured(auditable, measured, each))
    left_out = [_INDEPENDENT]
    if not simulates:
        left_out.append("Sums before noise: the people are outside the program.")
    return _verdict(auditable, confidence, findings, left_out, start)


def check(confidence: float, people: int, samples: int = LEAST_SAMPLES) -> None:
    """Refuses numbers with which there is no audit; arguments as for `audit_own`.

    Raises:
        ValueError: a number is out of its range.
    """
    if samples < LEAST_SAMPLES:
        raise ValueError(f"--samples must be at least {LEAST_SAMPLES}, got {samples}")
    if people < 1:
        raise ValueError(f"--people must be at least 1, got {people}")
    if not 0.5 < confidence < 1:
        raise ValueError(f"--confidence must be above 0.5 and below 1, got {confidence}")


def _verdict(
    auditable: Auditable,
    confidence: float,
    findings: list[Finding],
    left_out: list[str],
    start: float,
) -> Verdict:
    door = auditable.door
    if door is not None and door.release.unit.adjacency is Adjacency.REPLACE_ONE:
        left_out = [*left_out, _REPLACED]
    return Verdict(
        auditable.epsilon,
        auditable.delta,
        confidence,
        tuple(findings),
        tuple(left_out),
        time.perf_counter() - start,
    )


def _guessed(
    auditable: Auditable, guesses: one_run.Guesses, confidence: float, gaussian: bool
) -> list[Finding]:
    """Returns the bounds from guesses: one that presumes nothing, and one for Gaussian claims."""
    said = f"{guesses.correct} of {guesses.made} guesses about who took part are right"
    findings = []
    for presumes in ("nothing", "Gaussian DP")[: 1 + gaussian]:
        epsilon = one_run.epsilon_lower(
            guesses, auditable.delta, confidence, gaussian=presumes != "nothing"
        )
        findings.append(Finding("one run", presumes, epsilon, epsilon > auditable.epsilon, said))
    return findings


def _measured(auditable: Auditable, found: noise_size.Measurement, confidence: float) -> Finding:
    epsilon = noise_size.epsilon_lower(found, auditable.delta, confidence)
    ratio = found.ratio
    said = f"canaries move releases by {ratio:.3g} times what the stated noise allows"
    return Finding("one run", "Gaussian noise", epsilon, epsilon > auditable.epsilon, said)


def _replayed(auditable: Auditable, seed: int, people: int) -> Finding:
    assert auditable.door is not None
    found = replay(auditable, seed, people)
    sampled = isinstance(auditable.door.release.participation, Poisson)
    if found.without_noise:
        said = f"the person changes {', '.join(found.without_noise)}, which has no noise"
    else:
        said = (
            f"person {found.person} moves {'a sum' if sampled else 'the sums'} by at least "
            f"{at_least(found.shift)} standard deviations of the noise"
        )
    presumes = "the door's draws" if sampled else "the door's noise"
    return Finding("replay", presumes, found.epsilon_lower, found.refuted, said)


def _is_gaussian(auditable: Auditable) -> bool:
    """Whether the claim is the ledger's, and the curve of one Gaussian release."""
    door = auditable.door
    return (
        door is not None
        and not isinstance(door.release.participation, Poisson)
        and not door.release.gaps
        and not door.release.unprotected
        and math.isfinite(auditable.epsilon)
        and _ledger_says_so(auditable)
    )


def _ledger_says_so(auditable: Auditable) -> bool:
    door = auditable.door
    assert door is not None
    event = door.release.statement(dict.fromkeys(door.release.parts, 1), "operating-system")
    return isinstance(event.event, Gaussian)
