"""The binary tree: its nodes, its sensitivity, its releases, and the uses that are refused."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from sotto.privacy.accounting.composition import gaussian_epsilon
from sotto.privacy.audits.audit import ReleaseTrials, audit_mechanism
from sotto.privacy.mechanisms import binary_tree
from sotto.privacy.mechanisms.correlated import NoiseSequence, prefix_deviations, sensitivity
from sotto.privacy.mechanisms.noise import MAGNITUDE
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Correlation, Once, Part, Returning
from sotto.privacy.units import Adjacency, Unit

TREE = Correlation(kind="binary-tree")
PREFIX = Correlation(kind="prefix-sum")
INDEPENDENT = Correlation()
PERSON = Unit(kind="trajectory", adjacency=Adjacency.ZERO_OUT)


def dyadic_nodes(n: int) -> np.ndarray:
    """Returns C from the definition of a tree: aligned blocks of 2^l releases that prefixes read.

    Prefix t is cut greedily into the largest aligned blocks. A block's row is its completion time.
    """
    c = np.zeros((n, n))
    for t in range(1, n + 1):
        begin = 0
        while begin < t:
            size = 2 ** int(math.log2(t - begin))
            while begin % size:
                size //= 2
            c[begin + size - 1, begin : begin + size] = 1
            begin += size
    return c


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 21, 64])
def test_noise_is_that_of_a_tree_of_aligned_blocks(n: int) -> None:
    c = dyadic_nodes(n)
    np.testing.assert_allclose(np.diag(c), 1)
    np.testing.assert_allclose(np.triu(c, 1), 0)
    np.testing.assert_allclose(c @ binary_tree.noising_rows(0, n), np.eye(n), atol=1e-12)
    worst = np.linalg.norm(c, axis=0).max()
    assert binary_tree.sensitivity(n) == pytest.approx(worst, rel=1e-12)
    assert sensitivity(TREE, Once(), n) == pytest.approx(math.sqrt(math.floor(math.log2(n)) + 1))
    rows = np.abs(binary_tree.noising_rows(0, n)).sum(axis=1)
    assert rows.max() <= binary_tree.largest_row_sum(n)


def test_rows_do_not_depend_on_the_chunks_they_are_drawn_in() -> None:
    draws = np.random.default_rng(0).integers(-(2**30), 2**30, (2, 13, 3))
    whole = NoiseSequence(TREE, 13).next_rows(draws)
    pieces = NoiseSequence(TREE, 13)
    rows = [pieces.next_rows(draws[:, a:b]) for a, b in ((0, 5), (5, 6), (6, 13))]
    np.testing.assert_array_equal(np.concatenate(rows, axis=1), whole)
    inverse = binary_tree.noising_rows(0, 13).astype(np.int64)
    np.testing.assert_array_equal(whole, inverse @ draws)  # exact in integers
    assert NoiseSequence(TREE, 13).largest == MAGNITUDE * 8


@pytest.mark.parametrize("correlation", [TREE, PREFIX, INDEPENDENT], ids=lambda c: c.kind)
def test_prefix_deviations_are_those_of_summed_rows(correlation: Correlation) -> None:
    n = 37
    noise = NoiseSequence(correlation, n)
    rows = noise.next_rows(np.eye(n, dtype=np.int64)[None] << 36)[0] * noise.refinement / 2**36
    summed = np.linalg.norm(np.cumsum(rows, axis=0), axis=1)
    np.testing.assert_allclose(prefix_deviations(correlation, n), summed, rtol=1e-6)


def test_two_thousand_episodes_prefer_the_square_root_to_the_tree() -> None:
    """The worst errors of a prefix sum at noise multiplier and clip norm 1 are 3.5, 11, 44.7."""
    n = 2000
    worst = {
        kind.kind: prefix_deviations(kind, n).max() * sensitivity(kind, Once(), n)
        for kind in (TREE, PREFIX, INDEPENDENT)
    }
    assert worst["prefix-sum"] == pytest.approx(1 + math.log(n) / math.pi, rel=0.05)
    assert worst["binary-tree"] == pytest.approx(math.sqrt(11 * 10))
    assert worst["independent"] == pytest.approx(math.sqrt(n))


def test_what_it_is_not_made_for_is_refused() -> None:
    with pytest.raises(ValueError, match="people who take part once"):
        sensitivity(TREE, Returning(max_participations=2, min_separation=1), 8)
    with pytest.raises(ValueError, match="without decay"):
        Correlation(kind="binary-tree", workload_decay=0.9)


# --- through the door ----------------------------------------------------------------------------

HORIZON, Z = 4, 2.0


def _trials(noise_multiplier: float) -> ReleaseTrials:
    release = Release(
        name="counter",
        local=lambda _state, unit, _key: ({"count": unit}, ()),
        server=lambda state, released: (
            state + released["count"],
            state + released["count"],
        ),
        unit=PERSON,
        parts={"count": Part(clip_norm=1.0, noise_multiplier=noise_multiplier)},
        slots=1,
        divisor=1.0,
        horizon=HORIZON,
        population="simulated",
        correlation=TREE,
    )

    def inputs(present: bool) -> tuple[np.ndarray, np.ndarray]:
        persons = np.arange(HORIZON)[:, None]
        if not present:
            persons[0] = -1
        return persons, np.ones((HORIZON, 1), np.float32)

    return ReleaseTrials(release, jnp.float32(0.0), inputs, np.asarray)


def test_counters_are_below_their_certificate_and_noise_for_one_node_is_caught() -> None:
    """The first person is in all three levels, so noise for one level is sqrt(3) too small."""
    delta, samples = 0.01, 20_000
    sound = _trials(Z)
    assert sound.certified_epsilon(delta) == pytest.approx(gaussian_epsilon(Z, delta), rel=1e-6)
    found = audit_mechanism(
        sound, samples, 3, delta, certified_epsilon=sound.certified_epsilon(delta)
    )
    assert not found.refuted
    assert found.epsilon_lower > 0.5 * found.certified_epsilon
    wrong = audit_mechanism(
        _trials(Z / math.sqrt(3)), samples, 3, delta, certified_epsilon=found.certified_epsilon
    )
    assert wrong.refuted
