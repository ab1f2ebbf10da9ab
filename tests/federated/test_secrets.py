"""Masks, shares and seals, each against somebody who tries to see through it."""

import itertools

import numpy as np
import pytest

from sotto.federated import secrets
from sotto.federated.errors import ProtocolError


def recovered(masked, mask_of, seeds, largest):
    """A vector of small numbers under one mask, if its seed is among these: the attack."""
    for seed in seeds:
        guess = (masked.astype(np.int64) - mask_of(seed)) % 2**16
        if guess.max() <= largest:
            return guess
    return None


def test_masks_of_few_seeds_are_seen_through_and_ours_are_not():
    """A generator with a small seed hides nothing, however uniform its numbers look."""
    vector = np.random.default_rng(1).integers(0, 4, 64)

    def planted(seed):
        return np.random.RandomState(seed[0] + 256 * seed[1]).randint(0, 2**16, 64)

    secret = secrets.new_secret()
    few = [bytes(one) for one in itertools.product(range(256), range(16))]
    weak = bytes([secret[0], secret[1] % 16]) + secret[2:]
    hidden = (vector + planted(weak)) % 2**16
    assert np.array_equal(recovered(hidden, planted, few, 3), vector)
    ours = (vector + secrets.mask(weak, 64, 16)) % 2**16
    full = [one + bytes(30) for one in few]
    assert recovered(ours, lambda seed: secrets.mask(seed, 64, 16), full, 3) is None


def test_every_bit_of_a_seed_changes_the_mask():
    seed = secrets.new_secret()
    first = secrets.mask(seed, 8, 32)
    for bit in range(256):
        changed = (int.from_bytes(seed) ^ (1 << bit)).to_bytes(32)
        assert not np.array_equal(secrets.mask(changed, 8, 32), first)


@pytest.mark.parametrize(("bits", "kind"), [(8, "<u2"), (16, "<u2"), (17, "<u4"), (32, "<u4")])
def test_masks_are_below_the_modulus_and_reach_its_end(bits, kind):
    numbers = secrets.mask(secrets.new_secret(), 2**20, bits)
    assert numbers.dtype == np.dtype(kind)
    assert len(numbers) == 2**20
    assert numbers.max() < 2**bits
    if bits <= 16:
        assert numbers.max() == 2**bits - 1
        assert numbers.min() == 0
    means = [(numbers >> bit & 1).mean() for bit in range(bits)]
    assert np.abs(np.array(means) - 0.5).max() < 6 * 0.5 / 2**10


def test_a_common_secret_is_common_and_has_one_purpose():
    one, other, third = (secrets.new_secret() for _ in range(3))
    common = secrets.common_secret(one, secrets.public_key(other), b"mask")
    assert common == secrets.common_secret(other, secrets.public_key(one), b"mask")
    assert common != secrets.common_secret(other, secrets.public_key(one), b"seal")
    assert common != secrets.common_secret(third, secrets.public_key(one), b"mask")
    for wrong in (bytes(32), b"short"):  # a point of small order would make a known secret
        with pytest.raises(ProtocolError, match="X25519"):
            secrets.common_secret(one, wrong, b"mask")


def test_seals_hold_for_their_key_and_purpose():
    key = secrets.new_secret()
    data = secrets.sealed(key, b"text", b"from 1 to 2")
    assert secrets.unsealed(key, data, b"from 1 to 2") == b"text"
    broken = bytes([data[0] ^ 1]) + data[1:]
    for wrong in (
        (secrets.new_secret(), data, b"from 1 to 2"),
        (key, data, b"from 2 to 1"),
        (key, broken, b"from 1 to 2"),
        (key, b"", b"from 1 to 2"),
    ):
        with pytest.raises(ProtocolError, match="sealed share"):
            secrets.unsealed(*wrong)
    assert data != secrets.sealed(key, b"text", b"from 1 to 2")


@pytest.mark.parametrize("threshold", [1, 2, 5])
def test_any_threshold_shares_give_the_secret(threshold):
    secret, points = secrets.new_secret(), [1, 2, 5, 9, 400]
    shares = secrets.split(secret, threshold, points)
    for chosen in itertools.combinations(points, threshold):
        assert secrets.joined({point: shares[point] for point in chosen}, threshold) == secret
    assert secrets.joined(dict(reversed(shares.items())), threshold) == secret


def test_extreme_secrets_survive():
    for secret in (bytes(32), b"\xff" * 32):
        shares = secrets.split(secret, 3, [1, 2, 3])
        assert secrets.joined(shares, 3) == secret


def test_fewer_shares_fit_every_secret():
    """Two shares of three lie on a parabola through any value at zero."""
    shares = {p: int.from_bytes(s) for p, s in secrets.split(bytes(32), 3, [1, 2, 3]).items()}
    q = secrets.PRIME
    for value in (0, 1, 2**255):
        # The third share that makes this value: by Lagrange, f(0) = 3 f(1) - 3 f(2) + f(3).
        third = (value - 3 * shares[1] + 3 * shares[2]) % q
        fitting = {p: s.to_bytes(33) for p, s in {1: shares[1], 2: shares[2], 3: third}.items()}
        assert secrets.joined(fitting, 3) == value.to_bytes(32)


def test_one_share_is_uniform():
    shares = [secrets.split(bytes(32), 2, [1])[1] for _ in range(4000)]
    means = [np.mean([int.from_bytes(s) >> bit & 1 for s in shares]) for bit in (0, 100, 255)]
    assert np.abs(np.array(means) - 0.5).max() < 6 * 0.5 / np.sqrt(4000)


def test_the_modulus_is_prime():
    assert secrets.PRIME == 2**256 + 297
    rng = np.random.default_rng(0)
    odd, twos = secrets.PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in rng.integers(2, 2**62, 40).tolist():  # Miller and Rabin
        x = pow(base, odd, secrets.PRIME)
        powers = [x] + [x := x * x % secrets.PRIME for _ in range(twos - 1)]
        assert powers[0] in (1, secrets.PRIME - 1) or secrets.PRIME - 1 in powers


def test_shares_that_do_not_fit_are_noticed_if_the_value_is_no_secret():
    with pytest.raises(ProtocolError, match="fit each other"):
        secrets.joined({1: (secrets.PRIME - 1).to_bytes(33)}, 1)


@pytest.mark.parametrize("wrong", [1, 2])
def test_as_many_wrong_shares_are_noticed_as_there_are_more_than_needed(wrong):
    """Also if those who give them choose them together, for a secret of their own."""
    points, threshold = [1, 2, 5, 9, 400], 3
    shares = secrets.split(secrets.new_secret(), threshold, points)
    others = secrets.split(secrets.new_secret(), threshold, points)
    for liars in itertools.combinations(points, wrong):
        with pytest.raises(ProtocolError, match="fit each other"):
            secrets.joined(shares | {point: others[point] for point in liars}, threshold)
