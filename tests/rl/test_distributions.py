import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from sotto.rl.distributions import Categorical, DiagonalGaussian

LOGITS = jnp.array([0.3, -1.2, 2.0, 0.0])
PROBS = np.exp(np.array(LOGITS)) / np.exp(np.array(LOGITS)).sum()


def test_categorical_frequencies_match_probabilities():
    noise = jax.random.uniform(jax.random.key(0), (40_000, 1))
    actions = Categorical(jnp.broadcast_to(LOGITS, (40_000, 4))).sample(noise)
    counts = np.bincount(actions, minlength=4)
    assert scipy.stats.chisquare(counts, PROBS * 40_000).pvalue > 1e-3
    wrong = np.roll(PROBS, 1)
    assert scipy.stats.chisquare(counts, wrong * 40_000).pvalue < 1e-6  # The test can fail.


def test_categorical_closed_forms():
    distribution = Categorical(LOGITS)
    np.testing.assert_allclose(
        jax.vmap(distribution.log_prob)(jnp.arange(4)), np.log(PROBS), rtol=1e-5
    )
    np.testing.assert_allclose(distribution.entropy(), scipy.stats.entropy(PROBS), rtol=1e-5)
    assert distribution.mode() == 2
    assert distribution.mode().dtype == jnp.int32


def test_categorical_with_an_impossible_action():
    distribution = Categorical(jnp.array([0.0, -jnp.inf, 0.0]))
    np.testing.assert_allclose(distribution.entropy(), np.log(2), rtol=1e-6)
    noise = jnp.linspace(0, 1, 1001, endpoint=False)[:, None]
    samples = Categorical(jnp.broadcast_to(distribution.logits, (1001, 3))).sample(noise)
    assert not np.any(samples == 1)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(-80, 80, width=32), min_size=2, max_size=6),
    st.floats(0, 1, exclude_max=True, width=32),
)
def test_categorical_samples_are_valid_actions(logits, uniform):
    action = Categorical(jnp.array(logits)).sample(jnp.array([uniform]))
    assert 0 <= action < len(logits)


def test_gaussian_closed_forms():
    mean, log_std = jnp.array([0.5, -2.0]), jnp.array([-0.3, 0.7])
    distribution = DiagonalGaussian(mean, log_std)
    std = np.exp(np.array(log_std))
    action = jnp.array([0.1, 1.0])
    expected = scipy.stats.norm.logpdf(np.array(action), mean, std).sum()
    np.testing.assert_allclose(distribution.log_prob(action), expected, rtol=1e-5)
    np.testing.assert_allclose(
        distribution.entropy(), scipy.stats.norm(mean, std).entropy().sum(), rtol=1e-5
    )
    np.testing.assert_array_equal(distribution.mode(), mean)

    draws = distribution.sample(jax.random.normal(jax.random.key(1), (200_000, 2)))
    np.testing.assert_allclose(draws.mean(0), mean, atol=0.02)
    np.testing.assert_allclose(draws.std(0), std, rtol=0.01)
