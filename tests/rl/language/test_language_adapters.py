"""Adapters: what they change, their gradients, and PEFT's files."""

import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_models import FIXTURES, logits, model, oracle, padded, prompts

from sotto.keys import new_key
from sotto.rl.language import (
    Adapter,
    LowRank,
    generate,
    log_probabilities,
    lora,
    save_adapter,
    steering,
)
from sotto.rl.language.architecture import Architecture

SAVED = [("gpt2", "lora"), ("llama", "lora"), ("llama", "steering")]


def random(adapter: Adapter, seed: int = 0) -> Adapter:
    leaves, structure = jax.tree.flatten(adapter)
    keys = jax.random.split(new_key(seed), len(leaves))
    drawn = [0.3 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)


def same(left: Adapter, right: Adapter) -> bool:
    return jax.tree.structure(left) == jax.tree.structure(right) and jax.tree.all(
        jax.tree.map(lambda a, b: bool(jnp.allclose(a, b, rtol=1e-6, atol=0)), left, right)
    )


def read(folder: Path, architecture: Architecture) -> Adapter:
    """Reads PEFT's files; a steering vector is the bias of a block's last map, times the scale."""
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    rank, scale = config["r"], config["lora_alpha"] / config["r"]
    low_rank: list[dict[str, LowRank]] = [{} for _ in range(architecture.blocks)]
    vectors: list[jax.Array | None] = [None] * architecture.blocks
    for block, name in itertools.product(range(architecture.blocks), architecture.maps):
        path = f"base_model.model.{architecture.block_path(block)}{name}.lora_"
        if f"{path}A.weight" not in tensors:
            continue
        down, up = (jnp.asarray(tensors.pop(f"{path}{part}.weight")) for part in "AB")
        inputs, outputs = architecture.maps[name]
        assert (down.shape, up.shape) == ((rank, inputs), (outputs, rank))
        if down.any() or up.any():
            low_rank[block][name] = LowRank(down, up, scale)
        if config["lora_bias"]:
            bias = tensors.pop(f"{path}B.bias")
            if bias.any() or name not in low_rank[block]:
                assert name == architecture.down[0][0]
                vectors[block] = jnp.asarray(scale * bias)
    assert not tensors
    return Adapter(tuple(low_rank), tuple(vectors))


@pytest.mark.parametrize(("name", "kind"), SAVED)
def test_adapters_of_peft_give_its_logits(name, kind):
    decoder = model(name).decoder
    adapter = read(FIXTURES / name / kind, decoder.architecture)
    for index, row in enumerate(prompts(name)):
        found = logits(decoder, jnp.asarray([row]), adapter=adapter)[0]
        np.testing.assert_allclose(found, oracle(name)[f"{kind}{index}"], atol=1e-4, rtol=0)
        assert np.abs(found - oracle(name)[f"logits{index}"]).max() > 0.1


@pytest.mark.parametrize(("name", "kind"), SAVED)
def test_saved_adapters_are_those_that_peft_saved(name, kind, tmp_path):
    architecture = model(name).decoder.architecture
    save_adapter(read(FIXTURES / name / kind, architecture), architecture, tmp_path, "base")
    ours, theirs = (
        load_file(f / "adapter_model.safetensors") for f in (tmp_path, FIXTURES / name / kind)
    )
    assert set(ours) == set(theirs)
    for tensor, value in theirs.items():
        assert ours[tensor].dtype == value.dtype
        np.testing.assert_allclose(ours[tensor], value, rtol=1e-6)
    config, expected = (
        json.loads((f / "adapter_config.json").read_text())
        for f in (tmp_path, FIXTURES / name / kind)
    )
    assert set(config) <= set(expected)
    for field in (
        "peft_type",
        "task_type",
        "r",
        "lora_alpha",
        "lora_bias",
        "bias",
        "fan_in_fan_out",
    ):
        assert config[field] == expected[field]
    assert config["base_model_name_or_path"] == "base"


def test_target_modules_are_named_as_peft_matches_them(tmp_path):
    llama, gpt2 = (model(name).decoder.architecture for name in ("llama", "gpt2"))
    cases = [
        (lora(llama, new_key(0), rank=2, alpha=4, targets=["q_proj"]), llama, ["q_proj"]),
        (
            lora(gpt2, new_key(0), rank=2, alpha=4, targets=["c_proj"]),
            gpt2,
            ["attn.c_proj", "mlp.c_proj"],
        ),
        (steering(llama, [1]), llama, ["model.layers.1.mlp.down_proj"]),
        (steering(gpt2, [0]), gpt2, ["transformer.h.0.mlp.c_proj"]),
    ]
    for adapter, architecture, targets in cases:
        save_adapter(random(adapter), architecture, tmp_path)
        config = json.loads((tmp_path / "adapter_config.json").read_text())
        assert config["target_modules"] == targets


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_adapters_come_back_from_their_files(name, tmp_path):
    architecture = model(name).decoder.architecture
    targets = ["c_attn", "mlp.c_proj"] if name == "gpt2" else ["q_proj", "down_proj"]
    whole = lora(architecture, new_key(0), rank=1, alpha=1.5, targets=targets)
    part = lora(architecture, new_key(0), rank=2, alpha=2, targets=targets[:1], blocks=[1])
    vector = steering(architecture, [0])
    both = Adapter(whole.low_rank, vector.steering)
    cases = [*map(random, (whole, part, vector, both)), whole, vector]
    for adapter in cases:
        save_adapter(adapter, architecture, tmp_path)
        assert same(read(tmp_path, architecture), adapter)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_low_rank_change_is_a_change_of_the_matrix(name):
    """Every map of a block, against a model whose matrices hold the product."""
    decoder = model(name).decoder
    a = decoder.architecture
    adapter = random(lora(a, new_key(0), rank=2, alpha=3, targets=list(a.maps)))
    changed = decoder
    for block in range(a.blocks):
        for field in ("qkv", "out", "up", "down"):
            change = [
                low.scale * np.asarray(low.up) @ np.asarray(low.down)
                for part, _ in getattr(a, field)
                for low in [adapter.low_rank[block][part]]
            ]
            changed = _with_matrix(changed, block, field, np.concatenate(change).T)
    tokens, mask = padded(prompts(name), "right")
    expected = logits(changed, tokens, mask)
    found = logits(decoder, tokens, mask, adapter)
    np.testing.assert_allclose(found[mask], expected[mask], atol=2e-4)


def _with_matrix(decoder, block, field, change):
    import equinox as eqx

    return eqx.tree_at(
        lambda d: getattr(d.blocks[block], field).weight, decoder, replace_fn=lambda w: w + change
    )


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_adapters_start_without_effect(name):
    decoder = model(name).decoder
    a = decoder.architecture
    tokens, mask = padded(prompts(name))
    plain = logits(decoder, tokens, mask)
    fresh = lora(a, new_key(0), rank=4, alpha=8, targets=list(a.maps))
    for adapter in (fresh, steering(a, [0, 1])):  # other programs round otherwise
        found = logits(decoder, tokens, mask, adapter)
        np.testing.assert_allclose(found, plain, atol=1e-5, rtol=0)
    for path, low in fresh.low_rank[1].items():
        inputs, outputs = a.maps[path]
        assert (low.down.shape, low.up.shape, low.scale) == ((4, inputs), (outputs, 4), 2.0)
        assert 0.8 < np.abs(low.down).max() * np.sqrt(inputs) <= 1
    first, second = (fresh.low_rank[block][next(iter(a.maps))].down for block in (0, 1))
    assert (first != second).any()


def test_a_steering_vector_acts_after_its_block():
    """After the last block it moves what the last norm sees; an earlier one moves later blocks."""
    decoder = model("llama").decoder
    tokens = jnp.asarray([prompts("llama")[1]])
    vector = jnp.ones((32,))
    late = Adapter(({}, {}), (None, vector))
    early = Adapter(({}, {}), (vector, None))
    assert (
        np.abs(logits(decoder, tokens, adapter=late) - logits(decoder, tokens, adapter=early)).max()
        > 0.1
    )
    from sotto.rl.language.model import causal, positions_of, residual_stream

    mask = jnp.ones(tokens.shape, bool)
    states = [
        decoder.norm(residual_stream(decoder, tokens, positions_of(mask), causal(mask), adapter)[0])
        for adapter in (None, late)
    ]
    norm = decoder.norm.weight
    unit = [
        s / norm for s in states
    ]  # a norm of x + v: the ratio is x + v up to one factor a token
    for before, after in zip(unit[0][0], unit[1][0], strict=True):
        basis = np.stack([before, vector])
        rest = after - np.linalg.lstsq(basis.T, after, rcond=None)[0] @ basis
        assert np.abs(rest).max() < 1e-5


@pytest.mark.parametrize(("name", "dtype"), [("llama", "float32"), ("gpt2", "bfloat16")])
def test_gradients_reach_adapters_and_nothing_else(name, dtype):
    decoder = model(name, dtype).decoder
    a = decoder.architecture
    adapter = random(
        Adapter(
            lora(a, new_key(0), rank=2, alpha=2, targets=list(a.maps)).low_rank,
            steering(a, [0, 1]).steering,
        )
    )
    tokens, mask = padded(prompts(name))
    completions = generate(decoder, tokens, mask, 5, None)

    def total(adapter, decoder):
        return log_probabilities(decoder, tokens, mask, completions, adapter).sum()

    total = jax.jit(total)
    by_adapter, by_model = jax.jit(jax.grad(total, argnums=(0, 1)))(adapter, decoder)
    assert all((np.asarray(leaf) != 0).any() for leaf in jax.tree.leaves(by_adapter))
    assert not any(np.asarray(leaf, np.float32).any() for leaf in jax.tree.leaves(by_model))
    if dtype == "float32":
        direction = random(adapter, seed=1)
        move = [
            float(total(jax.tree.map(lambda x, d, s=s: x + s * d, adapter, direction), decoder))
            for s in (-1e-2, 1e-2)
        ]
        products = jax.tree.map(lambda g, d: (g * d).sum(), by_adapter, direction)
        slope = sum(float(x) for x in jax.tree.leaves(products))
        assert slope == pytest.approx((move[1] - move[0]) / 2e-2, rel=0.02, abs=0.02)


def test_each_row_can_have_its_own_adapter():
    decoder = model("llama").decoder
    tokens, mask = padded(prompts("llama"))
    adapters = [random(steering(decoder.architecture, [0]), seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *adapters)
    found = jax.vmap(lambda t, m, a: logits(decoder, t[None], m[None], a)[0])(tokens, mask, stacked)
    for index, adapter in enumerate(adapters):
        alone = logits(decoder, tokens[index : index + 1], mask[index : index + 1], adapter)[0]
        np.testing.assert_allclose(found[index], alone, atol=1e-4)


def test_impossible_adapters_are_refused(tmp_path):
    a = model("llama").decoder.architecture
    with pytest.raises(ValueError, match="no linear map is called 'c_attn'; name some of"):
        lora(a, new_key(0), rank=1, alpha=1, targets=["c_attn"])
    with pytest.raises(ValueError, match="rank must be at least 1, got 0"):
        lora(a, new_key(0), rank=0, alpha=1, targets=["q_proj"])
    with pytest.raises(ValueError, match="no block 2; they go from 0 to 1"):
        steering(a, [2])
    with pytest.raises(ValueError, match="changes nothing"):
        save_adapter(Adapter(({}, {}), (None, None)), a, tmp_path)
    with pytest.raises(ValueError, match="the adapter has 1 blocks and the model 2"):
        save_adapter(Adapter(({},), (None,)), a, tmp_path)
    ranks = [
        {"self_attn.q_proj": LowRank(jnp.ones((r, 32)), jnp.ones((32, r)), 1.0)} for r in (1, 2)
    ]
    with pytest.raises(ValueError, match="one rank and scale"):
        save_adapter(Adapter(tuple(ranks), (None, None)), a, tmp_path)
