"""Named findings on a described training, and the verdict on its claim."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from sotto.privacy.accounting.events import SampledGaussian
from sotto.privacy.accounting.sampled_gaussian import sampled_gaussian_divergences
from sotto.privacy.described.bounds import accounted, is_tight, least, proved
from sotto.privacy.described.description import Description, Verdict

FINDINGS = {
    "shuffled-accounted-as-poisson": "Batches came from a shuffled order, and the claim accounts "
    "for Poisson sampling, which costs less.",
    "fixed-accounted-as-poisson": "Each epoch visited the same batches, and the claim accounts for "
    "Poisson sampling, which costs less.",
    "sampling-unknown": "The description does not say how batches were drawn, so a record may be "
    "in every one.",
    "last-batch-dropped": "An incomplete last batch was dropped, so batches were not drawn by "
    "Poisson sampling.",
    "last-batch-kept-smaller": "The last batch is smaller, and the noise on its mean is that of a "
    "full batch: it is too small there.",
    "noise-on-mean": "The noise of a full batch is added to a mean, whose "
    "number of records varies.",
    "several-runs": "Several runs were made on the same data, and the claim counts one.",
    "seed-published": "The seed of the noise is known, so whoever has it subtracts the noise.",
    "insecure-noise": "The generator of the noise is not a cryptographic one.",
    "delta-vacuous": "Delta is at least 1/records: publishing one record at random has this delta.",
    "adjacency-differs": "The claim is about another difference than the accountant is: a record "
    "is replaced, or is added to an order, where it moves others between batches.",
    "unit-is-record": "A person may have several records, and only one record is protected.",
    "epsilon-not-stated": "The claim states no epsilon.",
    "accountant-order-range": "Orders beyond the range of the Renyi accountant give a smaller "
    "epsilon, so its epsilon is larger than needed.",
    "epsilon-below-accounted": "Even under the claim's assumptions epsilon is larger.",
    "epsilon-refuted": "An attack shows that epsilon is larger than claimed.",
}
"""Every finding in words, by its permanent name."""

_ROUNDING = 1e-6
"""Relative difference that another machine's arithmetic may make."""

_MARGIN = 0.01
"""Relative difference of epsilon from which it matters."""


@dataclass(frozen=True)
class Analysis:
    """The answer on one description. The facts are somebody's words; the arithmetic is checked.

    Attributes:
        verdict: "holds" if the claim follows, about the difference that it names; "false" if an
            attack refutes it; "vacuous" if its delta protects nobody; "undecided" otherwise.
        claimed: epsilon as claimed; None if it is not stated.
        accounted: epsilon of one run under Poisson sampling.
        proved: epsilon that holds for what the description says.
        proved_for_person: the same for all records of a person; None if a person has one.
        least: epsilon that an attack shows.
        findings: names of `FINDINGS`.
    """

    verdict: Verdict
    claimed: float | None
    accounted: float
    proved: float
    proved_for_person: float | None
    least: float
    findings: tuple[str, ...]


def analyse(d: Description, stated: float | None = None) -> Analysis:
    """Returns the numbers, the findings and the verdict on a description.

    Args:
        d: the description.
        stated: the proved epsilon as another machine computed it. If it is ours up to rounding, it
            takes its place, so that both machines reach the same verdict.
    """
    claimed, at = d.claimed.epsilon, accounted(d)
    above, below = proved(d), least(d)
    assert below <= above, "the bounds contradict each other"
    if stated is not None and math.isclose(stated, above, rel_tol=_ROUNDING):
        above = stated
    several = d.records_per_person > 1
    poisson, partition = d.sampling == "poisson", d.partitioned
    rest = d.records % d.batch_size > 0
    smaller = d.noise_scaled_to == "mean" and partition and d.rest < d.batch_size
    moves = d.claimed.adjacency == "add-remove" and partition  # other records between batches
    refuted = claimed is not None and claimed < below
    holds = {
        "shuffled-accounted-as-poisson": d.sampling == "shuffle",
        "fixed-accounted-as-poisson": d.sampling == "fixed",
        "sampling-unknown": d.sampling == "unknown",
        "last-batch-dropped": d.last_batch == "dropped" and rest and not poisson,
        "last-batch-kept-smaller": smaller,
        "noise-on-mean": d.noise_scaled_to == "mean" and not partition,
        "several-runs": d.runs > 1,
        "seed-published": not d.noise_secret,
        "insecure-noise": not d.noise_secure,
        "delta-vacuous": d.claimed.delta >= 1 / d.records,
        "adjacency-differs": d.claimed.adjacency == "replace" or moves,
        "unit-is-record": several,
        "epsilon-not-stated": claimed is None,
        "accountant-order-range": is_range_too_short(d),
        "epsilon-below-accounted": claimed is not None and claimed < 0.99 * at and is_tight(d),
        "epsilon-refuted": refuted,
    }
    verdict: Verdict = "undecided"
    if refuted or (claimed is not None and not d.noise_secret):
        verdict = "false"
    elif holds["delta-vacuous"]:
        verdict = "vacuous"
    elif claimed is not None and above <= claimed < math.inf and not moves:
        verdict = "holds"
    found = tuple(name for name, there in holds.items() if there)
    person = proved(d, d.records_per_person) if several else None
    return Analysis(verdict, claimed, at, above, person, below, found)


def is_range_too_short(d: Description) -> bool:
    """Whether orders beyond the range of the accountant give an epsilon that is 1% smaller.

    The accountant is that of the claim: Poisson sampling and one run. False if the description
    does not say its orders.
    """
    if d.claimed.orders is None:
        return False
    low, high = d.claimed.orders
    everywhere = np.unique([low, high, *(1 + np.geomspace(1e-3, 1e4, 100))])
    epsilons = _epsilons(d, everywhere)
    inside = (everywhere >= low) & (everywhere <= high)
    return bool(epsilons.min() < (1 - _MARGIN) * epsilons[inside].min())


def _epsilons(d: Description, orders: Float64[np.ndarray, " k"]) -> Float64[np.ndarray, " k"]:
    """Returns epsilon at each order (Canonne, Kamath and Steinke 2020, Proposition 12)."""
    if d.batch_size == d.records:
        one = orders / (2 * d.noise_multiplier**2)
    else:
        event = SampledGaussian(noise_multiplier=d.noise_multiplier, sampling_rate=d.rate)
        one = sampled_gaussian_divergences(event, orders)
    slack = (math.log(d.claimed.delta) + np.log(orders)) / (orders - 1)
    found = d.total_steps * one + np.log1p(-1 / orders) - slack
    return np.asarray(np.maximum(found, 0.0))
