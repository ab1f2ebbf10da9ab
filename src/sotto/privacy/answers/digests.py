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
from pathlib import Path

from sotto.files import make_secret

_KEY_BYTES = 32
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


class DigestKey:
    """A secret key. Use `DigestKey.create` or `.open`."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._name = _mac(secret, b"sotto key name")[:16]

    @classmethod
    def create(cls, path: Path) -> "DigestKey":
        """Returns the key in a file, after durably writing a new random key if there is no file.

        Several processes that call it at once all get the same key.

        Raises:
            DigestKeyLost: the file does not contain a key.
        """
        make_secret(path, _KEY_BYTES)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> "DigestKey":
        """Returns the key in a file.

        Raises:
            DigestKeyLost: the file is missing or does not contain a key.
        """
        try:
            secret = path.read_bytes()
        except FileNotFoundError as error:
            raise DigestKeyLost(f"the key {path} is gone") from error
        if len(secret) != _KEY_BYTES:
            raise DigestKeyLost(f"{path} is no key of this version of sotto")
        return cls(secret)

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
