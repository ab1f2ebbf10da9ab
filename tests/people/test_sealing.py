"""Contributions open only for their own place and with their release's key."""

import hashlib
import hmac
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sotto.people.database.sealing import MasterKey, ReleaseKey, place_name
from sotto.people.errors import MasterKeyLost, StoreUnavailable

CONTRIBUTION = b"what a person gives"
PLACE = place_name("campaign", 3, 7, "place")


def test_a_contribution_opens_for_its_place_and_no_other() -> None:
    key = ReleaseKey.new()
    sealed = key.seal(CONTRIBUTION, PLACE)
    assert len(sealed) == len(CONTRIBUTION) + 28
    assert key.open(sealed, PLACE) == CONTRIBUTION
    others = [
        place_name("another", 3, 7, "place"),
        place_name("campaign", 4, 7, "place"),
        place_name("campaign", 3, 8, "place"),
        place_name("campaign", 3, 7, "places"),
        place_name("campaign", 37, 0, "place"),
    ]
    assert len({PLACE, *others}) == 6
    for other in others:
        with pytest.raises(StoreUnavailable, match="restore it from a backup"):
            key.open(sealed, other)


def test_a_changed_contribution_does_not_open() -> None:
    key = ReleaseKey.new()
    sealed = key.seal(CONTRIBUTION, PLACE)
    for position in range(len(sealed)):
        changed = bytearray(sealed)
        changed[position] ^= 1
        with pytest.raises(StoreUnavailable):
            key.open(bytes(changed), PLACE)
    for cut in (b"", sealed[:5], sealed[:12], sealed[:-1]):
        with pytest.raises(StoreUnavailable):
            key.open(cut, PLACE)


def test_another_key_opens_nothing_and_recognises_nothing() -> None:
    key, other = ReleaseKey.new(), ReleaseKey.new()
    with pytest.raises(StoreUnavailable):
        other.open(key.seal(CONTRIBUTION, PLACE), PLACE)
    assert key.digest(CONTRIBUTION, PLACE) != other.digest(CONTRIBUTION, PLACE)
    assert key.place_secret(PLACE) != other.place_secret(PLACE)


def test_equal_contributions_look_different_and_have_equal_digests() -> None:
    key = ReleaseKey.new()
    assert key.seal(CONTRIBUTION, PLACE) != key.seal(CONTRIBUTION, PLACE)
    digest = key.digest(CONTRIBUTION, PLACE)
    assert len(digest) == 32
    assert digest == key.digest(CONTRIBUTION, PLACE)
    assert digest != key.digest(CONTRIBUTION + b"!", PLACE)
    assert digest != key.digest(CONTRIBUTION, place_name("campaign", 3, 8, "place"))


def test_the_secret_of_a_place_is_the_same_every_time() -> None:
    key = ReleaseKey.new()
    secret = key.place_secret(PLACE)
    assert len(secret) == 32
    assert secret == key.place_secret(PLACE)
    assert secret != key.place_secret(place_name("campaign", 3, 8, "place"))


def test_it_is_aes_gcm_with_256_bits() -> None:
    """The bytes decrypt without the module, from the wrapped key to the contribution."""

    def derived(secret: bytes, purpose: bytes) -> AESGCM:
        return AESGCM(hmac.new(secret, purpose, hashlib.sha256).digest())

    master = MasterKey(bytes(32))
    key = ReleaseKey.new()
    wrapped, sealed = master.wrap(key, "campaign", 3), key.seal(CONTRIBUTION, PLACE)
    keys = derived(bytes(32), b"sotto release keys")
    secret = keys.decrypt(wrapped[:12], wrapped[12:], b'["release", "campaign", 3]')
    assert len(secret) == 32
    cipher = derived(secret, b"sotto contributions")
    context = b'["place", "campaign", 3, 7, "place"]'
    assert cipher.decrypt(sealed[:12], sealed[12:], context) == CONTRIBUTION
    with pytest.raises(InvalidTag):
        cipher.decrypt(sealed[:12], sealed[12:], None)


def test_a_wrapped_key_is_of_one_release_of_one_campaign() -> None:
    master, other = MasterKey(bytes(32)), MasterKey(b"\1" + bytes(31))
    key = ReleaseKey.new()
    wrapped = master.wrap(key, "campaign", 3)
    again = master.unwrap(wrapped, "campaign", 3)
    assert again.open(key.seal(CONTRIBUTION, PLACE), PLACE) == CONTRIBUTION
    for wrong in ((master, "campaign", 4), (master, "another", 3), (other, "campaign", 3)):
        with pytest.raises(StoreUnavailable):
            wrong[0].unwrap(wrapped, *wrong[1:])


def test_the_master_key_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "master.key"
    with ThreadPoolExecutor(8) as pool:
        names = set(pool.map(lambda _: MasterKey.create(file).name("campaign"), range(32)))
    assert len(names) == 1
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(set(file.read_bytes())) > 8
    assert [one.name for one in tmp_path.iterdir()] == ["master.key"]
    assert MasterKey.create(tmp_path / "other.key").name("campaign") not in names


def test_a_lost_or_damaged_master_key_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "master.key"
    with pytest.raises(MasterKeyLost, match=r"is missing; restore it from a backup"):
        MasterKey.open(file)
    file.write_bytes(bytes(31))
    for way in (MasterKey.open, MasterKey.create):
        with pytest.raises(MasterKeyLost, match=r"does not contain a campaign's key; restore"):
            way(file)


def test_names_and_texts_reveal_no_key() -> None:
    master, key = MasterKey(b"m" * 32), ReleaseKey(b"k" * 32)
    assert master.name("campaign") != master.name("another")
    for text in (repr(master), str(key), repr(key), master.name("campaign")):
        assert "mmm" not in text
        assert "kkk" not in text
        assert (b"m" * 32).hex()[:8] not in text
