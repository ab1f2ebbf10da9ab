"""Digests of what students ask, by which a repeated request is recognised.

A digest is kept with the answer, and what was asked may be what is protected. A plain hash of it
gives it away: whoever reads the database hashes every candidate. So digests are keyed
(HMAC-SHA-256), with a random key that lies outside the database, in a file of its own.

Guarantee:
    To whoever has the database and not the key, digests of different requests are random strings,
    as far as HMAC-SHA-256 is a pseudorandom function: they tell which requests of one ledger were
    equal, and nothing else. The ledger's name is hashed with the request, so that digests of two
    ledgers under one key tell not even that.
"""

import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_KEY_BYTES = 32
KEYED = "hmac-sha256"
"""What digests begin with that tell nothing without their key."""


class DigestKeyLost(ValueError):
    """The file of the key is not there, or is none."""


@dataclass(frozen=True)
class RequestDigest:
    """What was asked, as a database may keep it.

    Attributes:
        keyed: `hmac-sha256:KEY:DIGEST`, KEY being a public name of the key.
        plain: SHA-256, which is never stored: earlier versions did, and know a request by it.
    """

    keyed: str
    plain: str

    @property
    def kind(self) -> str:
        """How it was made."""
        return self.keyed.split(":")[0]

    def matches(self, stored: str) -> bool:
        """Whether a stored digest is of the same request."""
        mine = self.keyed if _is_keyed(stored) else self.plain
        return hmac.compare_digest(mine.encode(), stored.encode())

    def comparable(self, stored: str) -> bool:
        """Whether a stored digest can be compared: it is plain, or was made with the same key."""
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
        """The key in a file; a new one of the operating system, durably, if there is no file.

        Of several processes that do this at once, all get the same key.

        Raises:
            DigestKeyLost: the file is no key.
        """
        if not path.exists():
            temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(secrets.token_bytes(_KEY_BYTES))
                    file.flush()
                    os.fsync(file.fileno())
                with suppress(FileExistsError):  # another process was first
                    os.link(temporary, path)  # all of it or nothing
            finally:
                temporary.unlink()
            _sync(path.parent)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> "DigestKey":
        """The key in a file.

        Raises:
            DigestKeyLost: there is none.
        """
        try:
            secret = path.read_bytes()
        except FileNotFoundError as error:
            raise DigestKeyLost(f"the key {path} is gone") from error
        if len(secret) != _KEY_BYTES:
            raise DigestKeyLost(f"{path} is no key of this version of sotto")
        return cls(secret)

    def digest(self, run_id: str, request: bytes) -> RequestDigest:
        """What was asked of a ledger.

        Args:
            run_id: name of the ledger's run.
            request: what was asked; equal requests have equal bytes.
        """
        where = hashlib.sha256(run_id.encode()).digest()
        keyed = _mac(self._secret, b"sotto request\0" + where + request)
        return RequestDigest(f"{KEYED}:{self._name}:{keyed}", hashlib.sha256(request).hexdigest())


def _mac(secret: bytes, message: bytes) -> str:
    return hmac.new(secret, message, hashlib.sha256).hexdigest()


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
