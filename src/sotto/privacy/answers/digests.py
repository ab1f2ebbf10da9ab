"""Digests of students' requests, which recognise a repeated request.

A digest is stored with the answer, and the request may be the protected data. A plain hash would
reveal it to anybody who reads the database and hashes every candidate. So digests are keyed
(HMAC-SHA-256) with a random key in a file outside the database.

Guarantee:
    To a reader of the database without the key, digests of different requests are random strings,
    as far as HMAC-SHA-256 is a pseudorandom function. They tell which requests of one ledger were
    equal, and nothing else. The ledger's name is hashed with the request, so digests of two ledgers
    under one key do not even tell that. See docs/privacy.md, section 12, "The ledger of answers".
"""

import hashlib
import hmac
from dataclasses import dataclass

from sotto.files import SecretKey

KEYED = "hmac-sha256"
"""Prefix of digests that tell nothing without their key."""


class DigestKeyLost(ValueError):
    """Raised if the key file is missing or does not contain a key."""


@dataclass(frozen=True)
class RequestDigest:
    """A request in the form that a database may store.

    Attributes:
        keyed: `hmac-sha256:KEY:DIGEST`, where KEY is a public name of the key.
        plain: SHA-256. It is never stored, but recognises requests that earlier versions stored.
    """

    keyed: str
    plain: str

    @property
    def kind(self) -> str:
        """Name of the algorithm."""
        return self.keyed.split(":")[0]

    def matches(self, stored: str) -> bool:
        """Returns whether a stored digest is of the same request."""
        mine = self.keyed if _is_keyed(stored) else self.plain
        return hmac.compare_digest(mine.encode(), stored.encode())

    def comparable(self, stored: str) -> bool:
        """Returns whether a stored digest is plain or was made with the same key."""
        return not _is_keyed(stored) or stored.split(":")[1] == self.keyed.split(":")[1]


def _is_keyed(stored: str) -> bool:
    return stored.startswith(f"{KEYED}:")


class DigestKey(SecretKey):
    """A secret key of digests. Use `DigestKey.create` or `.open`, which raise `DigestKeyLost`."""

    lost = DigestKeyLost

    def __init__(self, secret: bytes) -> None:
        super().__init__(secret)
        self._name = _mac(secret, b"sotto key name")[:16]

    def digest(self, run_id: str, request: bytes) -> RequestDigest:
        """Returns the digest of a request.

        Args:
            run_id: name of the ledger's run.
            request: bytes of the request; equal requests have equal bytes.
        """
        where = hashlib.sha256(run_id.encode()).digest()
        keyed = _mac(self._secret, b"sotto request\0" + where + request)
        return RequestDigest(f"{KEYED}:{self._name}:{keyed}", hashlib.sha256(request).hexdigest())


def _mac(secret: bytes, message: bytes) -> str:
    return hmac.new(secret, message, hashlib.sha256).hexdigest()
