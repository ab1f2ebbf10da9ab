"""Logits and greedy generations equal those of `transformers`."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_models import FIXTURES, NAMES, generate, logits, model, oracle, padded, prompts

from sotto.rl.language import load
from sotto.rl.language.tokenizer import Tokenizer

TOLERANCE = 1e-4


def real(values: np.ndarray, mask: np.ndarray) -> list[np.ndarray]:
    return [np.asarray(row)[keep] for row, keep in zip(values, mask, strict=True)]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_those_of_transformers(name, side):
    tokens, mask = padded(prompts(name), side)
    found = real(logits(model(name).decoder, tokens, mask), mask)
    for index, row in enumerate(found):
        np.testing.assert_allclose(row, oracle(name)[f"logits{index}"], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", NAMES)
def test_greedy_generations_equal_those_of_transformers(name, side):
    tokens, mask = padded(prompts(name), side)
    made = generate(model(name).decoder, tokens, mask, 12, None)
    for index, row in enumerate(made.tokens):
        assert row.tolist() == oracle(name)[f"greedy{index}"].tolist()
    assert made.mask.all()


@pytest.mark.parametrize("name", NAMES)
def test_the_tokenizer_gives_the_prompts_back(name):
    texts = ["the film", "in 1984 the story of", "a"]
    tokenizer = model(name).tokenizer
    assert [tokenizer.encode(text) for text in texts] == prompts(name)
    assert [tokenizer.decode(row) for row in prompts(name)] == texts


@pytest.mark.parametrize("name", ["llama", "gguf"])
def test_digits_are_tokens_of_their_own_and_special_tokens_are_not_text(name):
    tokenizer: Tokenizer = model(name).tokenizer
    assert len(tokenizer.encode("1984")) == 4
    assert tokenizer.encode("<|endoftext|>") == [0]
    assert tokenizer.decode([*tokenizer.encode("été"), 0]) == "été"
    assert model(name).end == (0,)


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_is_near_float32(name):
    tokens, mask = padded(prompts(name))
    decoder = model(name, "bfloat16").decoder
    assert decoder.embedding.dtype == jnp.bfloat16
    exact = np.concatenate([oracle(name)[f"logits{i}"] for i in range(3)])
    rough = np.concatenate(real(logits(decoder, tokens, mask), mask))
    assert 0 < np.abs(rough - exact).mean() < 0.02 * exact.std()


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_model_in_several_files_is_the_same_model(name, tmp_path):
    folder = FIXTURES / name
    tensors = load_file(folder / "model.safetensors")
    index = {"weight_map": {}}
    for number in range(2):
        part = dict(list(tensors.items())[number::2])
        save_file(part, tmp_path / f"part{number}.safetensors")
        index["weight_map"] |= dict.fromkeys(part, f"part{number}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for file in ("config.json", "tokenizer.json", "generation_config.json"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    same = jax.tree.map(np.array_equal, load(tmp_path, "float32").decoder, model(name).decoder)
    assert jax.tree.all(same)


def test_the_first_gpt2_files_have_no_prefix_and_hold_masks(tmp_path):
    folder = FIXTURES / "gpt2"
    tensors = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("transformer."): value for name, value in tensors.items()}
    bare["h.0.attn.bias"] = np.ones((1, 1, 64, 64), np.float32)
    save_file(bare, tmp_path / "model.safetensors")
    for file in ("config.json", "tokenizer.json"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    read = load(tmp_path, "float32")
    assert jax.tree.all(jax.tree.map(np.array_equal, read.decoder, model("gpt2").decoder))
    assert read.end == (0,)  # config.json says it, too


def test_half_precision_files_are_read(tmp_path):
    folder = FIXTURES / "llama"
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {name: value.astype(jnp.bfloat16) for name, value in tensors.items()},
        tmp_path / "model.safetensors",
    )
    for file in ("config.json", "tokenizer.json"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    read = load(tmp_path, "float32").decoder
    exact = model("llama").decoder.embedding
    np.testing.assert_array_equal(read.embedding, exact.astype(jnp.bfloat16).astype(jnp.float32))


def test_the_transposed_copy_gives_the_gradient_of_the_matrix():
    """In bfloat16 the backward pass uses a copy, so its derivative is compared with float32's."""
    tokens, mask = padded(prompts("llama"))
    found = []
    for dtype in ("float32", "bfloat16"):
        decoder = model("llama", dtype).decoder
        block, inputs = decoder.blocks[0], jnp.ones((3, 32))
        weights = jnp.arange(64.0 * 2).reshape(1, -1) / 64 - 1
        up = jax.grad(lambda x, up=block.up, w=weights: (up(x) * w).sum())(inputs)
        found.append(np.asarray(up))
    np.testing.assert_allclose(found[1], found[0], atol=0.02 * np.abs(found[0]).max())
    assert model("llama").decoder.head.transposed is None
    assert mask.shape == tokens.shape
