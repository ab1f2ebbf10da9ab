"""Generation: the cache, padding, end of text, sampling and log-probabilities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare
from tiny_models import generate, log_probabilities, logits, model, padded, prompts

from sotto.keys import new_key
from sotto.rl.language import Completions, steering, token_divergences
from sotto.rl.language.sampling import most_likely, sample

FAMILIES = ("gpt2", "llama")


def keys(count: int, seed: int = 0):
    return jax.random.split(new_key(seed), count)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", FAMILIES)
def test_cached_generation_equals_uncached(name, side):
    """Every token is the most likely one after the whole text before it, computed anew."""
    decoder = model(name).decoder
    tokens, mask = padded(prompts(name), side)
    made = generate(decoder, tokens, mask, 8, None)
    text, real = tokens, mask
    for step in range(8):
        scores = np.asarray(logits(decoder, text, real))
        last = [np.flatnonzero(row)[-1] for row in real]
        chosen = scores[np.arange(3), last].argmax(-1)
        np.testing.assert_array_equal(made.tokens[:, step], chosen)
        text = np.concatenate([text, chosen[:, None].astype(np.int32)], axis=1)
        real = np.concatenate([real, np.ones((3, 1), bool)], axis=1)


@pytest.mark.parametrize("name", FAMILIES)
def test_sampled_rows_depend_on_their_own_prompt_and_key_alone(name):
    decoder, rows = model(name).decoder, prompts(name)
    together = {
        side: generate(decoder, *padded(rows, side), 8, keys(3)).tokens
        for side in ("left", "right")
    }
    np.testing.assert_array_equal(together["left"], together["right"])
    for index, row in enumerate(rows):
        alone = generate(decoder, *padded([row]), 8, keys(3)[index : index + 1]).tokens
        np.testing.assert_array_equal(alone[0], together["left"][index])
    other = generate(decoder, *padded(rows), 8, keys(3, seed=1)).tokens
    assert (other != together["left"]).any()


def test_divergences_of_tokens_have_the_mean_of_log_ratios_and_vary_less() -> None:
    decoder, rows = model("llama").decoder, prompts("llama")[:1] * 2_000
    tokens, mask = padded(rows, "left")
    vectors = steering(decoder.architecture, (1,))
    noise = iter(np.random.default_rng(0).standard_normal((9, decoder.architecture.width)))
    changed = jax.tree.map(lambda leaf: leaf + next(noise).astype(np.float32), vectors)
    made = generate(decoder, tokens, mask, 4, keys(2_000), adapter=changed)
    given = decoder, tokens, mask, made
    ratios = np.asarray(log_probabilities(*given, changed) - log_probabilities(*given)).sum(1)
    found = np.asarray(jax.jit(token_divergences)(*given, changed)).sum(1)
    assert (found >= 0).all()
    assert found.mean() > 0.05
    assert abs((found - ratios).mean()) < 4 * (found - ratios).std() / len(rows) ** 0.5
    assert found.std() < 0.6 * ratios.std()
    np.testing.assert_array_equal(token_divergences(*given, vectors), np.zeros((2_000, 4)))


@pytest.mark.parametrize("side", ["left", "right"])
def test_log_probabilities_are_those_of_the_logits(side):
    decoder, rows = model("llama").decoder, prompts("llama")
    tokens, mask = padded(rows, side)
    made = generate(decoder, tokens, mask, 6, keys(3))
    found = log_probabilities(decoder, tokens, mask, made)
    for index, row in enumerate(rows):
        whole = jnp.asarray([*row, *made.tokens[index].tolist()])[None]
        scores = jax.nn.log_softmax(logits(decoder, whole)[0], axis=-1)
        before = np.arange(len(row) - 1, len(row) + 5)
        expected = scores[before, made.tokens[index]]
        np.testing.assert_allclose(found[index], expected, atol=1e-4)


def test_a_text_ends_with_its_first_end_token():
    decoder = model("llama").decoder
    tokens, mask = padded(prompts("llama"))
    free = generate(decoder, tokens, mask, 10, keys(3))
    end = (int(free.tokens[0, 3]), int(free.tokens[1, 5]))
    made = generate(decoder, tokens, mask, 10, keys(3), end=end)
    for before, row, real in zip(
        *map(np.asarray, (free.tokens, made.tokens, made.mask)), strict=True
    ):
        ends = np.flatnonzero(np.isin(before, end))
        length = ends[0] + 1 if len(ends) else 10
        assert real.tolist() == [True] * length + [False] * (10 - length)
        np.testing.assert_array_equal(row[:length], before[:length])
        assert set(row[length:].tolist()) <= {before[length - 1]}
    assert not made.mask.all()
    found = log_probabilities(decoder, tokens, mask, made)
    whole = log_probabilities(decoder, tokens, mask, free)
    np.testing.assert_allclose(found, jnp.where(made.mask, whole, 0.0), atol=1e-5)


def test_masked_tokens_of_a_completion_change_nothing():
    decoder = model("gpt2").decoder
    tokens, mask = padded(prompts("gpt2"))
    kept = np.arange(6)[None] < np.array([[2], [6], [4]])
    found = [
        log_probabilities(
            decoder, tokens, mask, Completions(jnp.where(kept, 5, junk), jnp.asarray(kept))
        )
        for junk in (7, 250)
    ]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("vocabulary", [2, 7, 300, 1000])
def test_samples_have_the_probabilities_of_the_logits(vocabulary):
    """Two levels, of which the last run is not full; a token at -inf is never drawn."""
    scores = 1.5 * jax.random.normal(new_key(3), (vocabulary,))
    scores = scores.at[vocabulary // 2].set(-jnp.inf)
    count = 200_000
    uniforms = jax.random.uniform(new_key(4), (count, 2))
    drawn = jax.jit(jax.vmap(lambda u: sample(scores[None], u[None])[0]))(uniforms)
    observed = np.bincount(drawn, minlength=vocabulary)
    expected = count * np.asarray(jax.nn.softmax(scores), np.float64)
    assert observed[vocabulary // 2] == 0
    common = expected >= 5
    observed = np.append(observed[common], observed[~common].sum())
    expected = np.append(expected[common], expected[~common].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    if len(observed) > 1:
        assert chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-3


def test_extreme_uniforms_draw_possible_tokens():
    scores = jnp.where(jnp.arange(10) == 4, 0.0, -jnp.inf)[None].repeat(2, axis=0)
    largest = 1 - 2.0**-23
    uniforms = jnp.asarray([[0.0, 0.0], [largest, largest]], jnp.float32)
    assert sample(scores, uniforms).tolist() == [4, 4]


def test_a_low_temperature_draws_the_most_likely_tokens():
    decoder = model("llama").decoder
    tokens, mask = padded(prompts("llama"))
    cold = generate(decoder, tokens, mask, 6, keys(3), temperature=1e-4)
    np.testing.assert_array_equal(cold.tokens, generate(decoder, tokens, mask, 6, None).tokens)


def test_the_first_of_equal_logits_is_chosen():
    assert most_likely(jnp.asarray([[0.0, 2.0, 2.0], [3.0, 1.0, 3.0]])).tolist() == [1, 0]
    several_runs = jnp.zeros((2, 700)).at[0, jnp.array([300, 301, 699])].set(1.0)
    assert most_likely(several_runs).tolist() == [300, 0]


def test_generation_works_under_vmap_with_an_adapter_each():
    """Later code runs people one at a time under vmap."""
    decoder = model("llama").decoder
    tokens, mask = padded(prompts("llama"))
    one = generate(decoder, tokens, mask, 4, keys(3)).tokens
    mapped = jax.vmap(lambda t, m, k: generate(decoder, t[None], m[None], 4, k[None]).tokens[0])(
        tokens, mask, keys(3)
    )
    np.testing.assert_array_equal(mapped, one)


def test_too_many_tokens_are_refused():
    decoder = model("gpt2").decoder
    tokens, mask = padded(prompts("gpt2"))
    with pytest.raises(ValueError, match="exceed the model's 64 positions; shorten the prompts"):
        generate(decoder, tokens, mask, 64, None)


def test_nonsense_is_refused():
    decoder = model("gpt2").decoder
    tokens, mask = padded(prompts("gpt2"))
    with pytest.raises(ValueError, match="at least one new token, got 0"):
        generate(decoder, tokens, mask, 0, None)
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        generate(decoder, tokens, mask, 4, keys(3), temperature=0.0)
    with pytest.raises(ValueError, match="every prompt needs at least one token"):
        padded([[1], []])
