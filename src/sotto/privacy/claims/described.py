"""Sentences about a training that somebody describes, and that no ledger recorded."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from sotto.privacy.claims.claim import Claim
from sotto.privacy.described.description import Description

_HOW = "whoever described the training asserts it"


def _several(d: Description) -> bool:
    return d.records_per_person > 1


PROTECTED = Claim(
    "described.record",
    "protects",
    "If everything below was so, each record is protected against everybody who sees the model "
    "after every step of every run, and who knows all other records.",
)
PERSON = Claim(
    "described.person",
    "protects",
    "A person with up to {records} records is protected, with the epsilon that the certificate "
    "states for a person. All of these records may be in one step, so its noise counts {records} "
    "times less. With Poisson sampling, group privacy may give a lower epsilon, which then stands "
    "instead: if one record costs (epsilon, delta), then g records cost (g epsilon, "
    "delta (e^(g epsilon) - 1) / (e^epsilon - 1)). The smaller delta of one record is chosen such "
    "that the delta of the person is that of the certificate. A replacement counts as two records.",
    version=2,
)
ASSERTED = Claim(
    "described.asserted",
    "does-not-protect",
    "No ledger recorded this training. Its facts are the words of whoever described it. Nobody has "
    "seen its code, its data or its noise for this certificate, which only computes epsilon from "
    "these words.",
)
ELSEWHERE = Claim(
    "described.elsewhere",
    "does-not-protect",
    "Other uses of the same data cost more: runs that the description leaves out, settings that "
    "were chosen on the data, and statistics or metrics that were published without noise.",
)
ONE_RECORD = Claim(
    "described.one-record",
    "does-not-protect",
    "The headline epsilon is about one record, and not about a person with several.",
)
CLIPPED = Claim(
    "described.clipped",
    "user",
    "The gradient of each record alone is clipped to the clip norm, before gradients are added "
    "up. Nothing else that is computed from the records reaches the model.",
    _HOW,
)
POISSON = Claim(
    "described.poisson",
    "user",
    "Each step draws each record independently with probability batch_size / records, and nobody "
    "learns which records were drawn. Batches are neither cut nor filled up with other records.",
    _HOW,
)
PARTITIONED = Claim(
    "described.partitioned",
    "user",
    "Each record is in one step of each epoch at most, and no step holds records of two epochs. "
    "The order of the records does not depend on their contents.",
    _HOW,
)
NOISE = Claim(
    "described.noise",
    "user",
    "The noise of each step is Gaussian with the stated standard deviation, independent of "
    "everything else, and its seed was never known to anybody. The noise of floating-point "
    "generators is only close to Gaussian, and epsilon does not cover the difference.",
    _HOW,
)
GENERATOR = Claim(
    "described.generator",
    "user",
    "Nobody predicts the noise, although its generator is not a cryptographic one.",
    _HOW,
)
COUNTED = Claim(
    "described.counted",
    "user",
    "The numbers of records, steps and runs are as stated, were not chosen by looking at the data, "
    "and no other run was made on these records.",
    _HOW,
)
PERSONS = Claim(
    "described.persons",
    "user",
    "No person has more records than stated.",
    _HOW,
)

SENTENCES: Mapping[Claim, Callable[[Description], bool]] = MappingProxyType(
    {
        PROTECTED: lambda _: True,
        PERSON: _several,
        ASSERTED: lambda _: True,
        ELSEWHERE: lambda _: True,
        ONE_RECORD: _several,
        CLIPPED: lambda _: True,
        POISSON: lambda d: d.sampling == "poisson",
        PARTITIONED: lambda d: d.partitioned,
        NOISE: lambda _: True,
        GENERATOR: lambda d: not d.noise_secure,
        COUNTED: lambda _: True,
        PERSONS: _several,
    }
)
"""Each sentence with the condition under which the certificate of a description says it."""


def numbers(claim: Claim, d: Description) -> dict[str, str]:
    """Returns the numbers in a sentence about a description."""
    return {"records": str(d.records_per_person)} if claim is PERSON else {}
