"""Signatures of certificates: only the operator's key, over exactly this text, is accepted."""

import subprocess
from pathlib import Path

import pytest
from commands import printed, run_json
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from sotto.cli import main
from sotto.privacy.certificates.derive import derive
from sotto.privacy.certificates.lone import verify_file
from sotto.privacy.certificates.signature import PREFIX, Signer, beside
from sotto.privacy.errors import PrivacyError


def ask() -> str:
    raise AssertionError("this key has no passphrase")


def write_keys(
    folder: Path, name: str, encryption: KeySerializationEncryption | None = None, key=None
) -> tuple[Path, Path]:
    """Returns files of a new private key and of its public key."""
    key = key or Ed25519PrivateKey.generate()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub.pem"
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption())
    private.touch(mode=0o600)
    private.write_bytes(pem)
    public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return write_keys(tmp_path, "operator")


@pytest.fixture
def certificate(make_ledgers, tmp_path: Path) -> Path:
    (ledger,) = make_ledgers()
    derive(ledger).write(path := tmp_path / "certificate.json")
    return path


def test_the_text_that_was_signed_is_accepted(keys, certificate: Path) -> None:
    private, public = keys
    assert Signer(private, ask).sign(certificate) == beside(certificate)
    assert verify_file(certificate, signed_by=public).status == "true"


def test_openssl_accepts_it_as_the_guide_says(keys, certificate: Path, tmp_path: Path) -> None:
    private, public = keys
    Signer(private, ask).sign(certificate)
    message = tmp_path / "message"
    message.write_bytes(b"sotto certificate, signature 1\n" + certificate.read_bytes())
    words = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(public), "-rawin"]
    words += ["-in", str(message), "-sigfile", str(beside(certificate))]
    subprocess.run(words, check=True, capture_output=True)


def test_without_a_signature_nobody_answers_for_it(keys, certificate: Path) -> None:
    found = verify_file(certificate, signed_by=keys[1])
    assert found.status == "unverifiable"
    assert "there is no signature" in found.reasons[0]


@pytest.mark.parametrize("attack", ["key", "text", "short", "empty", "prefix", "other", "space"])
def test_every_other_signature_is_false(
    attack: str, keys, certificate: Path, tmp_path: Path
) -> None:
    private, public = keys
    Signer(private, ask).sign(certificate)
    signature, text = beside(certificate), certificate.read_bytes()
    raw = signature.read_bytes()
    secret = Ed25519PrivateKey.generate()
    if attack == "key":
        signature.write_bytes(secret.sign(PREFIX + text))
    elif attack == "text":
        certificate.write_bytes(text.replace(b"epsilon", b"Epsilon", 1))
    elif attack in ("short", "empty"):
        signature.write_bytes(raw[:63] if attack == "short" else b"")
    elif attack == "prefix":  # a signature of the bytes alone, as of any other file
        private, public = write_keys(tmp_path, "bare", key=secret)
        signature.write_bytes(secret.sign(text))
    elif attack == "other":
        public = write_keys(tmp_path, "other")[1]
    else:
        certificate.write_bytes(text + b" ")
    found = verify_file(certificate, signed_by=public)
    assert found.status == "false"
    assert "did not sign it" in found.reasons[0]


def test_a_signed_text_that_is_not_canonical_is_false(tmp_path: Path, certificate: Path) -> None:
    secret = Ed25519PrivateKey.generate()
    _, public = write_keys(tmp_path, "operator", key=secret)
    certificate.write_bytes(certificate.read_bytes() + b" ")
    beside(certificate).write_bytes(secret.sign(PREFIX + certificate.read_bytes()))
    assert verify_file(certificate, signed_by=public).status == "false"


@pytest.mark.parametrize(
    "key",
    [X25519PrivateKey.generate(), rsa.generate_private_key(65537, 2048)],
    ids=["x25519", "rsa"],
)
def test_keys_of_other_algorithms_are_refused(key, tmp_path: Path, certificate: Path) -> None:
    private, public = write_keys(tmp_path, "operator", key=key)
    with pytest.raises(PrivacyError, match="no Ed25519 private key"):
        Signer(private, ask)
    beside(certificate).write_bytes(bytes(64))
    with pytest.raises(ValueError, match="no Ed25519 public key"):
        verify_file(certificate, signed_by=public)


def test_a_key_that_others_can_read_is_refused(keys) -> None:
    keys[0].chmod(0o640)
    with pytest.raises(PrivacyError, match="can be read by others; run: chmod 600"):
        Signer(keys[0], ask)


def test_a_passphrase_is_asked_for_and_never_shown(tmp_path: Path, certificate: Path) -> None:
    private, public = write_keys(tmp_path, "operator", BestAvailableEncryption(b"open sesame"))
    Signer(private, lambda: "open sesame").sign(certificate)
    assert verify_file(certificate, signed_by=public).status == "true"
    with pytest.raises(PrivacyError, match="or the passphrase is wrong") as caught:
        Signer(private, lambda: "close sesame")
    assert "sesame" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_command_says_who_signed(keys, certificate: Path, capsys) -> None:
    private, public = keys
    words = ["verify", str(certificate), "--signed-by", str(public)]
    assert main(words) == 4
    Signer(private, ask).sign(certificate)
    assert f"The key {public} signed it." in printed(capsys, *words)
    assert run_json(capsys, *words)["signed"] is True
    beside(certificate).write_bytes(bytes(64))
    assert main(words) == 2
    assert main(["verify", str(certificate), "--signed-by", str(certificate)]) != 0
    assert "holds no public key in PEM" in capsys.readouterr().err
