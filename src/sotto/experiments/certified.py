"""Certificates of an experiment's trainings, and the cost that holds for all of them."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sotto.algorithms.base import AnyLedger
from sotto.privacy.certificates import derive
from sotto.privacy.certificates.joint import Cost
from sotto.privacy.certificates.model import Certificate


def stated(certificate: Certificate) -> Cost:
    """Returns epsilon and delta as the certificate states them, for neighbours of its unit."""
    return Cost(certificate.epsilon, certificate.delta)


def certificates(
    ledgers: Sequence[AnyLedger],
    folders: Sequence[Path],
    cost: Callable[[Certificate], Cost] = stated,
) -> dict[str, Any]:
    """Writes the certificate of each ledger and returns what holds for all of them.

    Args:
        ledgers: one for each seed; empty if nobody is protected.
        folders: folder of each ledger's certificate.json.
        cost: epsilon and delta that a figure states, as a function of the certificate.

    Returns:
        `status` and the largest `epsilon`, as attributes of a `Result`; also `delta` if there is an
        epsilon. There is one only if every seed is proved.
    """
    if not ledgers:
        return {"status": "not private", "epsilon": None}
    found = [derive.derive(ledger) for ledger in ledgers]
    for one, folder in zip(found, folders, strict=True):
        one.write(folder / "certificate.json")
    status = next((one.status for one in found if one.status != "proved"), "proved")
    worst = max((cost(one) for one in found), key=lambda one: one.epsilon)
    if status != "proved" or not math.isfinite(worst.epsilon):
        return {"status": status, "epsilon": None}
    return {"status": status, "epsilon": worst.epsilon, "delta": worst.delta}
