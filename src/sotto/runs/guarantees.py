"""The guarantee of a run in one statement, which names its delta, unit and adjacency."""

import hashlib
import math
from dataclasses import dataclass
from typing import Any

from sotto.errors import RunError
from sotto.privacy.answers.distances import ObservationDistance, PolicyDistance
from sotto.privacy.bounds import at_most, guarantee
from sotto.privacy.certificates.derive import derive
from sotto.privacy.certificates.model import Certificate
from sotto.privacy.claims.rewards import radii_in
from sotto.privacy.errors import PrivacyError
from sotto.privacy.units import Unit
from sotto.runs.directory import Experiment
from sotto.runs.registry import algorithm_named, config_from_json
from sotto.runs.seeds import sharing, weakest

UNKNOWN = "unknown"
"""Status of a run whose ledger cannot be read."""
ANSWERS_ALONE = "answers alone"
"""Status of a student whose certificate is about the answers to it, and not about its policy."""
OF_ANSWERS = (
    "The epsilon is about the teacher's answers. The student learns from the same observations "
    "without noise, so nothing is proved of its policy."
)
"""Meaning of ANSWERS_ALONE."""


@dataclass(frozen=True)
class Guarantee:
    """The guarantee of one run, or of several seeds that were trained together.

    Attributes:
        status: status of the weakest certificate, or that of a run without a ledger, or UNKNOWN or
            ANSWERS_ALONE.
        why: the reason for a status that is not "proved".
        epsilon: largest epsilon; of all seeds together if they share their people. None if nothing
            is proved, as are the following.
        delta: delta of the guarantee.
        unit: unit of privacy and its adjacency.
        distance: bound on the distance of neighbouring inputs, where a unit has one.
        certificates: certificate of each seed, as its ledger says.
    """

    status: str
    why: str = ""
    epsilon: float | None = None
    delta: float | None = None
    unit: Unit | None = None
    distance: float | None = None
    certificates: tuple[Certificate, ...] = ()

    @property
    def proved(self) -> bool:
        """Whether there is an epsilon."""
        return self.epsilon is not None

    @property
    def statement(self) -> str:
        """The epsilon with everything that it depends on, or the status."""
        if self.epsilon is None or self.delta is None or self.unit is None:
            return self.status
        within = "" if self.distance is None else f", within {at_most(self.distance, 6)}"
        return f"{guarantee(self.epsilon, self.delta)} for {self.unit.brief}{within}"

    def as_json(self) -> dict[str, Any]:
        """Returns the guarantee as JSON values."""
        return {
            "status": self.status,
            "why": self.why,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "unit": None if self.unit is None else self.unit.kind,
            "adjacency": None if self.unit is None else self.unit.adjacency.value,
            "distance": self.distance,
        }


def guarantee_of(experiment: Experiment) -> Guarantee:
    """Returns the guarantee that the ledgers of a run give.

    A ledger elsewhere, which the user has not named, is not opened.
    """
    settings = experiment.settings
    if settings.ledger is None:
        algorithm = algorithm_named(settings.algorithm)
        return Guarantee(*algorithm.without_ledger(config_from_json(algorithm, settings.config)))
    try:
        ledgers = [run.open_ledger() for run in experiment.runs]
        found = tuple(derive(ledger) for ledger in ledgers)
        shared = sharing(settings, ledgers) if len(ledgers) > 1 else None
    except (RunError, PrivacyError) as error:
        return Guarantee(UNKNOWN, str(error))
    worst = weakest(found)
    epsilon = worst.epsilon if shared is None or shared.epsilon is None else shared.epsilon
    if worst.status != "proved" or not math.isfinite(epsilon):
        jointly = " of all seeds together" if worst.status == "proved" else ""
        status = "none" if jointly else worst.status
        why = f"nothing is proved{jointly}; sotto certificate says why"
        return Guarantee(status, why, certificates=found)
    proved = Guarantee(
        "proved", "", epsilon, worst.delta, worst.unit, _distance(worst), certificates=found
    )
    if status_of(worst) == ANSWERS_ALONE:
        return Guarantee(ANSWERS_ALONE, f"{proved.statement}. {OF_ANSWERS}", certificates=found)
    return proved


def status_of(certificate: Certificate) -> str:
    """Returns the status of a run with this certificate, which is about the run's policy."""
    alone = certificate.status == "proved" and certificate.unit.kind == "observation"
    return ANSWERS_ALONE if alone else certificate.status


def exported(experiment: Experiment | None) -> dict[str, Any]:
    """Returns the facts about a run that an exported policy carries, as JSON values.

    Args:
        experiment: a run of one seed; None for a policy that is not from a run directory.

    Returns:
        Values as `sotto.rl.policy_files` describes them, null where there are none.
    """
    run_id = algorithm = head = digest = None
    found = Guarantee(UNKNOWN, "the policy is not from a run directory")
    if experiment is not None:
        found = guarantee_of(experiment)
        run_id, algorithm = experiment.settings.run_id, experiment.settings.algorithm
    for certificate in found.certificates:
        head = certificate.head_hash
        digest = hashlib.sha256(certificate.text().encode()).hexdigest()
    return {
        "run_id": run_id,
        "algorithm": algorithm,
        **found.as_json(),
        "ledger_head": head,
        "certificate_sha256": digest,
    }


def _distance(certificate: Certificate) -> float | None:
    """Returns the bound on the distance of neighbouring inputs that a certificate states."""
    if certificate.answers is not None:
        match certificate.answers.statement.distance:
            case ObservationDistance(radius=radius):
                return radius
            case PolicyDistance(l2=distance):
                return distance
            case _:
                return None
    said = {one for stream in certificate.streams for one in radii_in(stream.statement.protects)}
    return max(map(float, said), default=None)
