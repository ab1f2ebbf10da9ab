"""Certificates of trainings that somebody describes: derived from the words, and derived again.

The facts are asserted and not recorded. Epsilon is the proved one, whatever the description claims.
"""

from importlib.metadata import version

from sotto.privacy.certificates.check import differences
from sotto.privacy.certificates.model import DescribedCertificate, DescribedPerson, points
from sotto.privacy.claims import said_of_description
from sotto.privacy.described.bounds import cost
from sotto.privacy.described.description import Description
from sotto.privacy.described.findings import FINDINGS, Analysis, analyse
from sotto.privacy.errors import PrivacyError
from sotto.privacy.units import Adjacency, Unit

_REFUSALS = {
    "seed-published": "train again with a secret seed",
    "sampling-unknown": "say how batches were drawn",
    "delta-vacuous": "state a delta below 1/records",
}
"""The findings under which nothing is certified, and what to do about each."""


def refusal(found: Analysis) -> str:
    """Returns the reason why nothing can be certified, by the finding's name; empty if it can."""
    for name, advice in _REFUSALS.items():
        if name in found.findings:
            return f"{name}: {FINDINGS[name].rstrip('.')}; {advice}"
    return ""


def certified(
    d: Description, found: Analysis, versions: dict[str, str] | None = None
) -> DescribedCertificate:
    """Returns the certificate of a description.

    Args:
        d: the description.
        found: its analysis.
        versions: software that computes the certificate; by default this one.

    Raises:
        PrivacyError: nothing can be certified.
    """
    if reason := refusal(found):
        raise PrivacyError(f"nothing can be certified: {reason}")
    proved, replaced = cost(d), d.claimed.adjacency == "replace"
    person = None
    if found.proved_for_person is not None:
        person = DescribedPerson(records=d.records_per_person, epsilon=found.proved_for_person)
    adjacency = Adjacency.REPLACE_ONE if replaced else Adjacency.ZERO_OUT
    return DescribedCertificate(
        run_id=d.name,
        unit=Unit(kind="record", adjacency=adjacency),
        epsilon=found.proved,
        delta=d.claimed.delta,
        curve=points(proved.epsilon),
        method=proved.method,
        claims=said_of_description(d),
        description=d,
        verdict=found.verdict,
        findings=found.findings,
        events=(proved.event,),
        person=person,
        versions=versions or {one: version(one) for one in ("sotto", "dp-accounting", "numpy")},
    )


def contradictions(stored: DescribedCertificate) -> list[str]:
    """Returns one sentence for each field that does not follow from the description.

    Raises:
        PrivacyError: nothing can be certified.
    """
    d = stored.description
    true = certified(d, analyse(d, stored.epsilon), stored.versions)
    return differences(stored, true, "the description")
