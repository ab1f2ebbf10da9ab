"""Encryption of contributions with a key for each release, which is destroyed with the release.

The master key is in a file outside the database. It encrypts ("wraps") the keys of the releases,
which are in the database while their release is not made. A contribution is encrypted with a key of
its release, for one place: moved to another place, release or campaign, it cannot be opened.

Guarantee:
    Whoever has the database without the file of the master key learns nothing about contributions,
    except that they exist. Whoever has both, and no wrapped key of a release, learns nothing about
    the contributions of that release. Both hold as far as AES-256-GCM and HMAC-SHA-256 are secure,
    and as far as the wrapped key is gone: backups and the storage medium may hold it longer.
"""

import hashlib
import hmac
import json
import os
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sotto.files import SecretKey
from sotto.people.errors import MasterKeyLost, StoreUnavailable

_KEY_BYTES = 32
_NONCE_BYTES = 12


def place_name(campaign_id: str, release: int, slot: int, place_id: str) -> bytes:
    """Returns bytes that name a place and no other one."""
    return json.dumps(["place", campaign_id, release, slot, place_id]).encode()


class ReleaseKey:
    """The secret key of one release, from `ReleaseKey.new` or `MasterKey.unwrap`."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._cipher = AESGCM(_mac(secret, b"sotto contributions"))

    @classmethod
    def new(cls) -> "ReleaseKey":
        """Returns a new random key."""
        return cls(secrets.token_bytes(_KEY_BYTES))

    def seal(self, contribution: bytes, place: bytes) -> bytes:
        """Returns the encrypted contribution, which is 28 bytes longer.

        Args:
            contribution: the bytes that a person gives.
            place: name of their place, from `place_name`.
        """
        return _encrypt(self._cipher, contribution, place)

    def open(self, sealed: bytes, place: bytes) -> bytes:
        """Returns the contribution that was sealed for this place.

        Raises:
            StoreUnavailable: it was changed, or sealed for another place or with another key.
        """
        return _decrypt(self._cipher, sealed, place)

    def digest(self, contribution: bytes, place: bytes) -> bytes:
        """Returns 32 bytes that tell only equal contributions from unequal ones."""
        return _mac(_mac(self._secret, b"sotto digests"), place + b"\0" + contribution)

    def place_secret(self, place: bytes) -> bytes:
        """Returns 32 secret bytes of this place, which are the same every time."""
        return _mac(_mac(self._secret, b"sotto places"), place)


class MasterKey(SecretKey):
    """The secret key of a campaign. Use `MasterKey.create` or `.open`, which raise `MasterKeyLost`.

    Args:
        secret: 32 random bytes.
    """

    kind, lost = "campaign's key", MasterKeyLost
    advice = "; restore it from a backup, or from another machine that serves this campaign"

    def __init__(self, secret: bytes) -> None:
        super().__init__(secret)
        self._cipher = AESGCM(_mac(secret, b"sotto release keys"))

    def name(self, campaign_id: str) -> str:
        """Returns the public name of the key in this campaign, which reveals nothing about it."""
        return _mac(self._secret, b"sotto key name\0" + campaign_id.encode()).hex()[:32]

    def wrap(self, key: ReleaseKey, campaign_id: str, release: int) -> bytes:
        """Returns the encrypted key of a release."""
        return _encrypt(self._cipher, key._secret, _release(campaign_id, release))

    def unwrap(self, wrapped: bytes, campaign_id: str, release: int) -> ReleaseKey:
        """Returns the key that was wrapped for this release.

        Raises:
            StoreUnavailable: it was changed, or wrapped for another release or with another key.
        """
        return ReleaseKey(_decrypt(self._cipher, wrapped, _release(campaign_id, release)))


def _release(campaign_id: str, release: int) -> bytes:
    return json.dumps(["release", campaign_id, release]).encode()


def _encrypt(cipher: AESGCM, plain: bytes, context: bytes) -> bytes:
    nonce = os.urandom(_NONCE_BYTES)  # a key encrypts far fewer than 2^32 messages
    return nonce + cipher.encrypt(nonce, plain, context)


def _decrypt(cipher: AESGCM, sealed: bytes, context: bytes) -> bytes:
    try:
        return cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], context)
    except (InvalidTag, ValueError):  # ValueError: too short
        raise StoreUnavailable(
            "the campaign's database does not hold what was written; restore it from a backup"
        ) from None


def _mac(secret: bytes, message: bytes) -> bytes:
    return hmac.new(secret, message, hashlib.sha256).digest()
