"""Random orders of rows."""

import jax
import numpy as np
import pytest
from scipy.stats import chisquare

from sotto.keys import new_key
from sotto.rl.minibatches import minibatches, shuffled


@pytest.mark.parametrize("count", [1, 2, 64, 1000, 4096, 5000])
def test_every_number_comes_once(count):
    order = np.asarray(shuffled(new_key(0), count))
    np.testing.assert_array_equal(np.sort(order), np.arange(count))
    assert count < 3 or not np.array_equal(order, np.arange(count))


def test_all_orders_are_equally_likely():
    keys = jax.random.split(new_key(1), 24_000)
    orders = np.asarray(jax.jit(jax.vmap(lambda key: shuffled(key, 4)))(keys))
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 24
    assert chisquare(counts).pvalue > 1e-3


def test_every_row_comes_once_in_each_epoch():
    rows = np.asarray(minibatches(new_key(2), 12, epochs=3, per_epoch=4))
    assert rows.shape == (12, 3)
    epochs = rows.reshape(3, 12)
    np.testing.assert_array_equal(np.sort(epochs), np.tile(np.arange(12), (3, 1)))
    assert not np.array_equal(epochs[0], epochs[1])
