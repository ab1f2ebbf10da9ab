"""The reasons for masks of our own: each weakness of Flower's that docs/devices.md names.

If one of these fails, Flower has changed, and the page must be read again.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

MODULUS = 2**16


def flowers(seed: bytes, size: int) -> np.ndarray:
    return pseudo_rand_gen(seed, MODULUS, [(size,)])[0]


def folded(seed: bytes) -> int:
    """The XOR of a seed's words of 32 bits."""
    return int(np.bitwise_xor.reduce(np.frombuffer(seed, "<u4")))


def test_a_seed_of_256_bits_counts_as_32():
    seed = os.urandom(32)
    short = folded(seed).to_bytes(4, "little")
    assert np.array_equal(flowers(seed, 100), flowers(short, 100))


def test_a_vector_is_recovered_by_trying_seeds():
    """4096 seeds are tried here; all of them are 2^32."""
    seed, vector = os.urandom(32), np.random.default_rng(1).integers(-40, 41, 64)
    masked = (vector + flowers(seed, 64)) % MODULUS
    found = []
    for low in range(2**12):
        generator = np.random.RandomState((folded(seed) >> 12 << 12) | low)
        mask = generator.randint(0, MODULUS - 1, 64, dtype=np.int64)
        guess = (masked - mask + MODULUS // 2) % MODULUS - MODULUS // 2
        if np.abs(guess).max() <= 40:
            found.append(guess)
    assert np.array_equal(found, [vector])


def test_the_largest_number_never_comes():
    numbers = flowers(os.urandom(32), 2**21)
    assert numbers.max() == MODULUS - 2  # 32 of them are expected
    assert numbers.min() == 0


def test_a_device_gives_both_secrets_of_a_neighbour():
    """It is asked for a neighbour that is active and dropped at once, and does not refuse."""
    module = pytest.importorskip("flwr.client.mod.secure_aggregation.secaggplus_mod")
    source = Path(module.__file__).read_text()
    asked = source[source.index("def _unmask(") :]
    assert "rd_seed_share_dict[nid] for nid in active_nids" in asked
    assert "sk1_share_dict[nid] for nid in dead_nids" in asked
    state = type("State", (), {})()
    state.nid, state.threshold = 1, 1
    state.rd_seed_share_dict, state.sk1_share_dict = {7: b"seed"}, {7: b"key"}
    keys = module.Key
    configs = {keys.ACTIVE_NODE_ID_LIST: [7], keys.DEAD_NODE_ID_LIST: [7]}
    answer = module._unmask(state, configs)
    assert answer[keys.SHARE_LIST] == [b"seed", b"key"]
