"""Signatures of certificates: who answers for a file, verified without a network.

A signature is the 64 bytes of Ed25519 (RFC 8032) over `PREFIX` and the bytes of the certificate's
file. Those bytes hold the hash of the last entry of the ledger, so the ledger is signed, too. The
signature of `certificate.json` lies beside it in `certificate.json.sig`. The operator makes the
keys, in PEM, with a program such as openssl.
"""

from collections.abc import Callable
from pathlib import Path

from sotto.files import replacing
from sotto.privacy.certificates.check import read_stored
from sotto.privacy.errors import PrivacyError

try:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.serialization import (
        load_pem_private_key,
        load_pem_public_key,
    )
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "signatures need the package cryptography: pip install 'sotto[serving]'",
        name="cryptography",
    ) from error

PREFIX = b"sotto certificate, signature 1\n"
"""Bytes before the certificate in the signed message, so that the key signs nothing else by it."""
_MAKE = "make one with: openssl genpkey -algorithm ed25519 -out operator.pem"
_PUBLISH = "make one with: openssl pkey -in operator.pem -pubout -out operator.pub.pem"


def beside(certificate: Path) -> Path:
    """Returns the file of a certificate's signature."""
    return certificate.with_name(f"{certificate.name}.sig")


class Signer:
    """A private key, which is read once and kept in memory.

    Args:
        key: PEM file of an Ed25519 private key, which only its owner can read.
        passphrase: asks for the passphrase, if the file has one.

    Raises:
        PrivacyError: the file cannot be read, others can read it, it holds no Ed25519 private key,
            or the passphrase is wrong. No message repeats any part of the file.
    """

    def __init__(self, key: Path, passphrase: Callable[[], str]) -> None:
        try:
            if key.stat().st_mode & 0o077:
                raise PrivacyError(
                    f"the private key {key} can be read by others; run: chmod 600 {key}"
                )
            pem = key.read_bytes()
        except OSError as error:
            raise PrivacyError(
                f"the private key {key} cannot be read ({error.strerror}); {_MAKE}"
            ) from None
        try:
            secret = passphrase().encode() if b"ENCRYPTED" in pem else None
            found = load_pem_private_key(pem, secret)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise PrivacyError(
                f"{key} holds no private key in PEM, or the passphrase is wrong; {_MAKE}"
            ) from None
        if not isinstance(found, Ed25519PrivateKey):
            raise PrivacyError(f"{key} holds no Ed25519 private key; {_MAKE}")
        self._key = found

    def sign(self, certificate: Path) -> Path:
        """Signs a certificate and returns the file of the signature, which is on disk then.

        Whoever calls this has verified the certificate.

        Raises:
            PrivacyError: the file is no certificate in canonical text.
        """
        read_stored(certificate)
        signature = self._key.sign(PREFIX + certificate.read_bytes())
        with replacing(beside(certificate)) as file:
            file.write(signature)
        return beside(certificate)


class SignatureMissing(PrivacyError):
    """There is no signature beside a certificate."""


def require_signed(certificate: Path, public_key: Path) -> None:
    """Checks the signature beside a certificate.

    Args:
        certificate: file of the certificate.
        public_key: PEM file of the Ed25519 public key of whoever should have signed.

    Raises:
        SignatureMissing: there is no signature.
        PrivacyError: this key did not sign this text.
        ValueError: the key cannot be read.
    """
    try:
        key = load_pem_public_key(public_key.read_bytes())
    except OSError as error:
        raise ValueError(f"the public key {public_key} cannot be read ({error.strerror})") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(f"{public_key} holds no public key in PEM; {_PUBLISH}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError(f"{public_key} holds no Ed25519 public key; {_PUBLISH}")
    try:
        signature = beside(certificate).read_bytes()
    except OSError:
        raise SignatureMissing(
            f"there is no signature {beside(certificate)}; ask for it, or leave out --signed-by"
        ) from None
    try:
        key.verify(signature, PREFIX + certificate.read_bytes())
    except InvalidSignature:
        raise PrivacyError(
            f"the key {public_key} did not sign it: another key did, or the certificate or "
            f"{beside(certificate).name} was changed since"
        ) from None
