"""Trust-region clip norms against Monte Carlo (theory notes, section 4)."""

import math

import numpy as np
import pytest

from sotto.algorithms.dppg import trust_region as tr

DIMENSION, RADIUS, RATE, CONFIDENCE = 50, 0.01, 0.5, 0.9


def _inside(fisher, clip_norm, ratio, direction, draws=100_000):
    rng = np.random.default_rng(1)
    noise = ratio * clip_norm * rng.standard_normal((draws, len(direction)))
    step = RATE * (clip_norm * direction + noise)
    return np.mean(0.5 * np.einsum("ni,ij,nj->n", step, fisher, step, optimize=True) <= RADIUS)


def _fisher(rng):
    square = rng.standard_normal((DIMENSION, DIMENSION))
    scale = np.sqrt(np.linspace(3, 0.01, DIMENSION))
    return square @ square.T / DIMENSION * np.outer(scale, scale)


@pytest.mark.parametrize("ratio", [0.1, 1.0, 3.0])
def test_l2_quantile_is_exact_at_the_clip_norm(ratio):
    clip = tr.l2_quantile(noise_ratio=ratio, dimension=DIMENSION, radius=RADIUS, learning_rate=RATE)
    top = np.eye(DIMENSION)[0]
    assert _inside(np.eye(DIMENSION), clip, ratio, top) == pytest.approx(CONFIDENCE, abs=0.005)
    assert _inside(np.eye(DIMENSION), 1.1 * clip, ratio, top) < CONFIDENCE - 0.02


@pytest.mark.parametrize("ratio", [0.1, 1.0, 3.0])
def test_markov_forms_hold_and_are_loose(ratio):
    common = {"noise_ratio": ratio, "radius": RADIUS, "learning_rate": RATE}
    quantile = tr.l2_quantile(dimension=DIMENSION, **common)
    markov = tr.l2_markov(dimension=DIMENSION, **common)
    assert 2.3 < quantile / markov < 3.1
    fisher = _fisher(np.random.default_rng(0))
    top = np.linalg.eigh(fisher)[1][:, -1]
    assert _inside(fisher, tr.kl_markov(fisher, **common), ratio, top) > CONFIDENCE


@pytest.mark.parametrize("ratio", [0.1, 1.0, 3.0])
def test_kl_quantile_is_exact_in_the_worst_direction_and_safe_elsewhere(ratio):
    rng = np.random.default_rng(0)
    fisher = _fisher(rng)
    clip = tr.kl_quantile(fisher, noise_ratio=ratio, radius=RADIUS, learning_rate=RATE)
    top = np.linalg.eigh(fisher)[1][:, -1]
    assert _inside(fisher, clip, ratio, top) == pytest.approx(CONFIDENCE, abs=0.01)
    other = rng.standard_normal(DIMENSION)
    assert _inside(fisher, clip, ratio, other / np.linalg.norm(other)) > CONFIDENCE - 0.01


def gap_clip_norm(*, noise_multiplier, gradient_norm, gap, confidence=0.9, learning_rate=1.0):
    """Returns S of Prop 4.6 (eq 5): the gain falls short by at most K with this probability.

    K = learning_rate (1 - S / |g|) |g|^2 + gap. The printed K has |g| in place of |g|^2, and is
    false: the inner product of g and the clipped g is S |g|, so clipping loses (1 - S / |g|) |g|^2
    of the gain |g|^2.
    """
    beta = 1 - confidence
    spread = learning_rate * noise_multiplier * gradient_norm
    return gap / spread * math.sqrt(beta / (1 - beta))


def test_objective_gap_holds_as_corrected_and_fails_as_printed():
    norm, multiplier, gap = 5.0, 1.0, 0.05
    clip = gap_clip_norm(
        noise_multiplier=multiplier, gradient_norm=norm, gap=gap, learning_rate=RATE
    )
    noise = multiplier * clip * np.random.default_rng(0).standard_normal(100_000)
    scale = min(1.0, clip / norm)
    shortfall = -RATE * ((scale - 1) * norm**2 + norm * noise)
    assert np.mean(shortfall <= RATE * (1 - scale) * norm**2 + gap) >= 0.9
    assert np.mean(shortfall <= RATE * (1 - scale) * norm + gap) == 0.0


def quadratic_moments(fisher, clipped_gradient, *, noise_multiplier, clip_norm, learning_rate):
    """Returns mean and variance of step^T F step / 2: (13) and (14), with their terms unswapped."""
    noise_variance = (noise_multiplier * clip_norm) ** 2
    image = fisher @ clipped_gradient
    mean = learning_rate**2 / 2 * (clipped_gradient @ image + noise_variance * np.trace(fisher))
    variance = (
        learning_rate**4
        / 4
        * (4 * noise_variance * image @ image + 2 * noise_variance**2 * np.trace(fisher @ fisher))
    )
    return mean, variance


def test_moments_of_the_quadratic_form():
    rng = np.random.default_rng(0)
    fisher = _fisher(rng)
    gradient = 0.05 * rng.standard_normal(DIMENSION) / np.sqrt(DIMENSION)
    mean, variance = quadratic_moments(
        fisher, gradient, noise_multiplier=1.0, clip_norm=0.05, learning_rate=RATE
    )
    step = RATE * (gradient + 0.05 * rng.standard_normal((200_000, DIMENSION)))
    sample = 0.5 * np.einsum("ni,ij,nj->n", step, fisher, step, optimize=True)
    assert sample.mean() == pytest.approx(mean, rel=0.01)
    assert sample.var() == pytest.approx(variance, rel=0.02)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="trust region needs"):
        tr.l2_quantile(noise_ratio=0.0, dimension=3, radius=0.1)
