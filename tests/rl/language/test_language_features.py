"""Features inside a model, against `transformers` and against prefixes of the texts."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import logits, model, oracle, padded, prompts

from sotto.keys import new_key
from sotto.rl.language import block_features, lora

FAMILIES = ("gpt2", "llama")
block_features = jax.jit(block_features, static_argnames="block")


def shorter(decoder, blocks):
    """A model of the first blocks alone."""
    return eqx.tree_at(lambda one: one.blocks, decoder, decoder.blocks[:blocks])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_last_token_after_all_blocks_gives_the_logits_of_transformers(name, side):
    decoder = model(name).decoder
    found = block_features(decoder, *padded(prompts(name), side), block=2)
    for index in range(3):
        expected = oracle(name)[f"logits{index}"][-1]
        scores = decoder.head(decoder.norm(found[index, 1]))
        np.testing.assert_allclose(scores, expected, atol=2e-3)


@pytest.mark.parametrize("name", FAMILIES)
def test_fewer_blocks_are_a_shorter_model(name):
    decoder = model(name).decoder
    tokens, mask = padded(prompts(name))
    found = block_features(decoder, tokens, mask, block=1)
    expected = logits(shorter(decoder, 1), tokens, mask)[:, -1]
    np.testing.assert_allclose(decoder.head(decoder.norm(found[:, 1])), expected, atol=1e-4)
    assert np.abs(found - block_features(decoder, tokens, mask, block=2)).max() > 0.1


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_mean_is_that_of_the_last_tokens_of_all_prefixes(side):
    decoder, rows = model("llama").decoder, prompts("llama")
    found = block_features(decoder, *padded(rows, side), block=1)
    for index, row in enumerate(rows):
        prefixes = [row[: length + 1] for length in range(len(row))]
        ends = block_features(decoder, *padded(prefixes), block=1)[:, 1]
        np.testing.assert_allclose(found[index, 0], ends.mean(0), atol=1e-4)


def test_gradients_reach_the_adapter_of_the_blocks_before():
    decoder = model("llama").decoder
    adapter = lora(decoder.architecture, new_key(0), rank=2, alpha=2, targets=["q_proj"])
    adapter = jax.tree.map(lambda leaf: leaf + 0.1, adapter)
    tokens, mask = padded(prompts("llama"))
    gradient = jax.grad(lambda a: block_features(decoder, tokens, mask, 1, a).sum())(adapter)
    before, after = (one["self_attn.q_proj"].down for one in gradient.low_rank)
    assert jnp.any(before != 0)
    assert not jnp.any(after != 0)
    changed = block_features(decoder, tokens, mask, 1, adapter)
    assert np.abs(changed - block_features(decoder, tokens, mask, 1)).max() > 1e-3


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_before_the_first_block_there_are_the_embedded_tokens(name):
    decoder = model(name).decoder
    tokens, mask = padded(prompts(name), "left")
    found = block_features(decoder, tokens, mask, block=0)
    for row, (ids, real) in enumerate(zip(tokens, mask, strict=True)):
        expected = np.asarray(decoder.embedding, np.float64)[ids[real]]
        if decoder.positions is not None:
            expected = expected + np.asarray(decoder.positions, np.float64)[: real.sum()]
        np.testing.assert_allclose(found[row], [expected.mean(axis=0), expected[-1]], atol=1e-6)


@pytest.mark.parametrize("block", [-1, 3])
def test_blocks_that_the_model_lacks_are_refused(block):
    with pytest.raises(ValueError, match=f"after block 0 to 2, got {block}"):
        block_features(model("gpt2").decoder, *padded([[1]]), block)


def test_too_long_texts_are_refused():
    with pytest.raises(ValueError, match="65 tokens exceed the model's 64 positions"):
        block_features(model("gpt2").decoder, *padded([[1] * 65]), 1)
