"""The cryptography of a round: key pairs, masks, sealed shares, and Shamir's secret sharing.

Keys are of X25519, and everything that is derived from a common secret goes through HKDF with
SHA-256, with the round and the two places in its input. Masks are the key stream of AES-256 in
counter mode, so their numbers are uniform modulo 2^bits, and as hard to tell from uniform ones as
the cipher is to break. Shares are sealed with AES-256-GCM. Secrets are split over the integers
modulo the prime 2^256 + 297 (Shamir 1979).
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from math import prod

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from jaxtyping import UInt

from sotto.federated.errors import ProtocolError

KEY_BYTES = 32
"""Bytes of a key, public or secret, and of the seed of a mask."""

SHARE_BYTES = 33
"""Bytes of one share of a secret."""

HASH_BYTES = 32
"""Bytes of the hash of a share."""

PRIME = 2**256 + 297
"""Order of the field of the shares, the smallest prime above 2^256."""

_NONCE_BYTES = 12


def new_secret() -> bytes:
    """Returns a new secret key of X25519, or a seed, from the operating system."""
    return os.urandom(KEY_BYTES)


def public_key(secret: bytes) -> bytes:
    """Returns the public key of a secret key."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def is_public_key(public: bytes) -> bool:
    """Whether a common secret can be made with a public key: points of small order give none."""
    try:
        common_secret(new_secret(), public, b"")
    except ProtocolError:
        return False
    return True


def common_secret(secret: bytes, public: bytes, purpose: bytes) -> bytes:
    """Returns 32 bytes that only the owners of the two keys can compute.

    Args:
        secret: one device's secret key.
        public: the other device's public key.
        purpose: everything that the bytes are for; other purposes give other bytes.

    Raises:
        ProtocolError: it is not a public key.
    """
    try:
        shared = X25519PrivateKey.from_private_bytes(secret).exchange(
            X25519PublicKey.from_public_bytes(public)
        )
    except ValueError as error:  # wrong length, or a point of small order
        raise ProtocolError("a public key is not one of X25519") from error
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=purpose).derive(shared)


def mask(seed: bytes, size: int, bits: int) -> UInt[np.ndarray, " size"]:
    """Returns uniform numbers modulo 2^bits, as `number_type(bits)`."""
    kind = number_type(bits)
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()  # one mask for a seed
    numbers = np.frombuffer(stream.update(bytes(size * kind.itemsize)), kind)
    return np.bitwise_and(numbers, kind.type(2**bits - 1))


def number_type(bits: int) -> np.dtype[np.unsignedinteger]:
    """Returns the type of a number of so many bits in a message, little-endian."""
    return np.dtype("<u2" if bits <= 16 else "<u4")


def sealed(key: bytes, text: bytes, about: bytes) -> bytes:
    """Returns a text that only the owner of the key can read or make.

    Args:
        key: key of 32 bytes.
        text: the text.
        about: what both sides know about the text; it is authenticated and not sent.
    """
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, text, about)


def unsealed(key: bytes, data: bytes, about: bytes) -> bytes:
    """Returns the text of `sealed`.

    Raises:
        ProtocolError: it was made with another key, about something else, or was changed.
    """
    try:
        return AESGCM(key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], about)
    except (InvalidTag, ValueError) as error:
        raise ProtocolError("a sealed share was changed, or is for another device") from error


def hash_of(share: bytes, about: bytes) -> bytes:
    """Returns a hash that fits no other share, and tells nothing about one with 250 random bits.

    Args:
        share: a share of `SHARE_BYTES`.
        about: everything that the share is for.
    """
    return sha256(about + share).digest()


def split(secret: bytes, threshold: int, points: Sequence[int]) -> dict[int, bytes]:
    """Splits a secret of 32 bytes into one share for each point.

    Any `threshold` shares give the secret, and fewer say nothing about it: they are the values of
    a polynomial with random coefficients, whose value at zero is the secret.

    Args:
        secret: the secret.
        threshold: number of shares that give it.
        points: different positive numbers, at least `threshold` of them.
    """
    higher = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    shares = {}
    for point in points:
        value = 0
        for coefficient in higher:
            value = (value + coefficient) * point % PRIME
        value = (value + int.from_bytes(secret)) % PRIME
        shares[point] = value.to_bytes(SHARE_BYTES)
    return shares


def joined(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Returns the secret of `threshold` shares or more.

    Shares that do not lie on one polynomial are noticed, so up to n - threshold wrong ones of n
    always are. With exactly `threshold` shares, a wrong one gives some other secret.

    Raises:
        ProtocolError: no secret of 32 bytes has these shares.
    """
    first = list(shares)[:threshold]
    scaled = {
        point: int.from_bytes(shares[point])
        * pow(prod(point - other for other in first if other != point), -1, PRIME)
        % PRIME
        for point in first
    }

    def value(at: int) -> int:
        """Returns the value of the polynomial through the first shares, by Lagrange."""
        total = sum(one * _inverse(at - point) for point, one in scaled.items())
        return prod(at - point for point in first) * total % PRIME

    others = list(shares)[threshold:]
    fits = all(int.from_bytes(shares[point]) == value(point) for point in others)
    found = value(0)
    if not fits or found >= 2 ** (8 * KEY_BYTES):
        raise ProtocolError("the shares of a secret do not fit each other")
    return found.to_bytes(KEY_BYTES)


@cache  # places are few, and their differences come again and again
def _inverse(number: int) -> int:
    """Returns the inverse modulo the prime."""
    return pow(number, -1, PRIME)
