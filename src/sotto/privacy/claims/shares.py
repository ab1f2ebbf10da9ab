"""Sentences about releases whose noise is made in shares by people's devices.

A comment above a sentence names the module that makes it true.
"""

import math

from sotto.privacy.claims.claim import Claim, LedgerFacts
from sotto.privacy.claims.conditions import in_shares, some
from sotto.privacy.statements import NoiseShares

_in_shares = some(in_shares)


def _shares(facts: LedgerFacts) -> list[NoiseShares]:
    return [one.shares for one in facts.streams if one.shares is not None]


def _colluding(facts: LedgerFacts) -> dict[str, str]:
    return {"colluding": str(min(one.colluding for one in _shares(facts)))}


def _everybody(facts: LedgerFacts) -> dict[str, str]:
    """Returns the noise multiplier for whoever knows no share, if every device adds its own."""
    gained = [
        one.noise_multiplier * math.sqrt(one.shares.promised / one.shares.secret)
        for one in facts.streams
        if one.shares is not None
    ]
    return {"multiplier": f"{math.floor(min(gained) * 1000) / 1000:g}"}


def _trusted(facts: LedgerFacts) -> dict[str, str]:
    return _promised(facts) | _colluding(facts)


def _promised(facts: LedgerFacts) -> dict[str, str]:
    return {
        "promised": str(min(one.promised for one in _shares(facts))),
        "secret": str(max(one.secret for one in _shares(facts))),
    }


# release/noise_shares.py, federated/
SERVER = Claim(
    "shares.server",
    "protects",
    "Each person's contribution, against a server that follows the protocol and tries to learn "
    "from all it sees: masked contributions, the sum of each release, and which devices took part "
    "or dropped out. Up to {colluding} of all devices that are asked in a round, in the sum or "
    "not, may tell it everything they know. Epsilon is against this observer.",
    version=2,
    holds=_in_shares,
    numbers=_colluding,
)
EVERYBODY = Claim(
    "shares.everybody",
    "protects",
    "Each person's contribution, against everybody else, who sees the released policies only. An "
    "observer whom no device tells its share of the noise meets noise multiplier {multiplier} or "
    "more, if every device in the sum adds its share.",
    version=2,
    holds=_in_shares,
    numbers=_everybody,
)
MALICIOUS_SERVER = Claim(
    "shares.malicious-server",
    "does-not-protect",
    "A person, against a server that departs from the protocol, for example by inventing devices, "
    "or by telling devices different lists of those that dropped out.",
    holds=_in_shares,
)
TOOK_PART = Claim(
    "shares.took-part",
    "does-not-protect",
    "Which devices took part in a release, dropped out, and when. The server sees it.",
    holds=_in_shares,
)
POISON = Claim(
    "shares.poison",
    "does-not-protect",
    "What is learnt, against devices that send what they like. Each device bounds the contribution "
    "of its own person; one that does not weakens that person's protection and can spoil a "
    "release, and changes epsilon for nobody else.",
    holds=_in_shares,
)
# mechanisms/discrete_gaussian.py
LAW = Claim(
    "shares.law",
    "code",
    "Each device's share of the noise has the discrete Gaussian distribution, and {secret} shares "
    "in a sum are the stated noise. The cost of what differs from the Gaussian mechanism is "
    "charged.",
    "docs/privacy.md proves it in section 20",
    holds=_in_shares,
    numbers=_promised,
)
ENOUGH = Claim(
    "shares.enough",
    "code",
    "A sum with fewer than {promised} devices is not opened, and nobody is charged for it. Every "
    "other one is charged before it is opened.",
    "devices refuse to help to open it, and the server's code does not ask them",
    holds=_in_shares,
    numbers=_promised,
)
HONEST_DEVICES = Claim(
    "shares.honest-devices",
    "user",
    "The device of the person who is protected runs this code. So do all devices that are "
    "asked in a round, in the sum or not, except {colluding} at most. So {secret} or more devices "
    "in every opened sum add their share of the noise and keep it secret.",
    "a device that adds no noise, or tells the server what it knows, counts as one that colludes, "
    "also if it sends no vector; choose that number with care, since nobody can check it",
    version=2,
    holds=_in_shares,
    numbers=_trusted,
)
MASKS = Claim(
    "shares.masks",
    "user",
    "Masked contributions show nothing but their sum, except with a probability below 2^-39 in "
    "each round, which delta leaves out. At most {colluding} of all devices that are asked in the "
    "round, in the sum or not, tell the server what they know. Whether a device drops out does "
    "not depend on the data that is protected.",
    "the assumption holds as long as nobody breaks X25519, HKDF, AES or the sharing of secrets "
    "(Bell et al. 2020), and the devices' connections are not cut because of what they hold",
    version=2,
    holds=_in_shares,
    numbers=_colluding,
)
