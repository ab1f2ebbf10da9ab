"""GPT-2 and Llama-type decoders as pure functions of a model and tokens.

The weights of a model are constants: no gradient passes into them. Training changes an `Adapter`
(`sotto.rl.language.adapters`), which is a separate pytree.

Weights are bfloat16 or float32. Matrix products take inputs of that type and sum in float32; the
residual stream, normalisation and attention are float32.

Sources: Radford et al. 2019 (GPT-2), Touvron et al. 2023 (Llama), Su et al. 2021 (rotary
positions), Ainslie et al. 2023 (key-value heads shared by query heads).
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from sotto.rl.language.adapters import Adapter, LowRank
from sotto.rl.language.architecture import Architecture, Parts

LEAST = -1e30
"""Score of a key that a query must not see."""


class Linear(eqx.Module):
    """A frozen linear map on any leading dimensions.

    On CPUs the backward pass in bfloat16 is three times as fast with a transposed copy of the
    matrix; in float32 the copy gains nothing.
    """

    weight: Float[Array, "inputs outputs"]
    transposed: Float[Array, "outputs inputs"] | None
    bias: Float[Array, " outputs"] | None

    def __call__(self, inputs: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        """Returns the product, plus the bias if there is one, in float32."""
        if self.transposed is None:
            outputs = _product(inputs, self.weight)
        else:
            outputs = _product_with_copy(inputs, self.weight, self.transposed)
        return outputs if self.bias is None else outputs + self.bias


def _product(inputs: Array, weight: Array) -> Array:
    return jnp.dot(
        inputs.astype(weight.dtype),
        weight,
        precision=lax.Precision.HIGHEST,  # GPUs would round float32 to fewer digits
        preferred_element_type=jnp.float32,
    )


@jax.custom_vjp
def _product_with_copy(inputs: Array, weight: Array, transposed: Array) -> Array:  # noqa: ARG001
    return _product(inputs, weight)


def _forward(inputs: Array, weight: Array, transposed: Array) -> tuple[Array, Array]:
    return _product(inputs, weight), transposed


def _backward(transposed: Array, gradient: Array) -> tuple[Array, None, None]:
    return _product(gradient, transposed), None, None


_product_with_copy.defvjp(_forward, _backward)


class Norm(eqx.Module):
    """Layer normalisation; without a bias, RMS normalisation (Zhang and Sennrich 2019)."""

    weight: Float[Array, " width"]
    bias: Float[Array, " width"] | None
    epsilon: float = eqx.field(static=True)

    def __call__(self, inputs: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        """Returns the normalised inputs."""
        if self.bias is not None:
            inputs = inputs - inputs.mean(-1, keepdims=True)
        scale = lax.rsqrt(jnp.square(inputs).mean(-1, keepdims=True) + self.epsilon)
        outputs = inputs * scale * self.weight
        return outputs if self.bias is None else outputs + self.bias


class Block(eqx.Module):
    """Weights of one block; maps that read the same inputs share one matrix."""

    attention_norm: Norm
    qkv: Linear
    out: Linear
    feed_forward_norm: Norm
    up: Linear
    down: Linear


class Decoder(eqx.Module):
    """A language model."""

    embedding: Float[Array, "vocabulary width"]
    positions: Float[Array, "positions width"] | None
    blocks: tuple[Block, ...]
    norm: Norm
    head: Linear
    architecture: Architecture = eqx.field(static=True)


class Cache(eqx.Module):
    """Keys and values of the tokens that a model has seen, in arrays of fixed shape.

    Keys are stored as attention reads them, so that no step has to transpose those before it.
    """

    keys: tuple[Float[Array, "batch kv_heads head_width slots"], ...]
    values: tuple[Float[Array, "batch kv_heads slots head_width"], ...]

    @staticmethod
    def empty(model: Decoder, batch: int, slots: int) -> "Cache":
        """Returns a cache with room for `slots` tokens in each row."""
        a = model.architecture
        rows = batch, a.kv_heads
        return Cache(
            tuple(jnp.zeros((*rows, a.head_width, slots), jnp.float32) for _ in model.blocks),
            tuple(jnp.zeros((*rows, slots, a.head_width), jnp.float32) for _ in model.blocks),
        )


def residual_stream(
    model: Decoder,
    tokens: Int[Array, "batch time"],
    positions: Int[Array, "batch time"],
    visible: Bool[Array, "batch time slots"],
    adapter: Adapter | None = None,
    cache: Cache | None = None,
    slot: Int[Array, ""] | int = 0,
    blocks: int | None = None,
) -> tuple[Float[Array, "batch time width"], Cache | None]:
    """Returns the residual stream after the first `blocks` blocks, and the cache with the tokens.

    Without a cache the slots are the tokens themselves. With one, the tokens take the slots from
    `slot` on. `visible` says which slots each token sees. None means all blocks; a cache needs all.
    """
    model = lax.stop_gradient(model)
    stream = model.embedding[tokens].astype(jnp.float32)
    if model.positions is not None:
        stream = stream + model.positions[positions].astype(jnp.float32)
    turns = _rotations(model.architecture, positions)
    bias = jnp.where(visible, 0.0, LEAST)
    keys, values = [], []
    for index, block in enumerate(model.blocks[:blocks]):
        low_rank = {} if adapter is None else adapter.low_rank[index]
        held = None if cache is None else (cache.keys[index], cache.values[index])
        stream, (key, value) = _block(
            model.architecture, block, stream, turns, bias, low_rank, held, slot
        )
        if adapter is not None and (steering := adapter.steering[index]) is not None:
            stream = stream + steering
        keys.append(key)
        values.append(value)
    return stream, None if cache is None else Cache(tuple(keys), tuple(values))


def _block(
    architecture: Architecture,
    block: Block,
    stream: Float[Array, "batch time width"],
    turns: tuple[Array, Array] | None,
    bias: Float[Array, "batch time slots"],
    low_rank: dict[str, LowRank],
    held: tuple[Array, Array] | None,
    slot: Int[Array, ""] | int,
) -> tuple[Float[Array, "batch time width"], tuple[Array, Array]]:
    a = architecture
    batch, time, _ = stream.shape
    group = a.heads // a.kv_heads
    mixed = _adapted(block.qkv, a.qkv, low_rank, block.attention_norm(stream))
    mixed = mixed.reshape(batch, time, a.heads + 2 * a.kv_heads, a.head_width)
    query, key, value = jnp.split(mixed, [a.heads, a.heads + a.kv_heads], axis=2)
    if turns is not None:
        query, key = _rotated(query, turns), _rotated(key, turns)
    key, value = key.transpose(0, 2, 3, 1), value.swapaxes(1, 2)  # as in a cache
    if held is not None:
        key = lax.dynamic_update_slice(held[0], key, (0, 0, 0, slot))
        value = lax.dynamic_update_slice(held[1], value, (0, 0, slot, 0))

    # The query heads of one key-value head are rows of one matrix product.
    query = query.reshape(batch, time, a.kv_heads, group, a.head_width).transpose(0, 2, 3, 1, 4)
    query = query.reshape(batch, a.kv_heads, group * time, a.head_width)
    scores = _batched(query, key) / math.sqrt(a.head_width)
    scores = scores.reshape(batch, a.kv_heads, group, time, -1) + bias[:, None, None]
    weights = jax.nn.softmax(scores, axis=-1).reshape(batch, a.kv_heads, group * time, -1)
    heads = _batched(weights, value).reshape(batch, a.kv_heads, group, time, a.head_width)
    heads = heads.transpose(0, 3, 1, 2, 4).reshape(batch, time, a.heads * a.head_width)
    stream = stream + _adapted(block.out, a.out, low_rank, heads)

    inner = _adapted(block.up, a.up, low_rank, block.feed_forward_norm(stream))
    if a.family == "llama":
        gate, inner = jnp.split(inner, 2, axis=-1)
        inner = jax.nn.silu(gate) * inner
    else:
        inner = jax.nn.gelu(inner, approximate=True)
    return stream + _adapted(block.down, a.down, low_rank, inner), (key, value)


def _batched(left: Array, right: Array) -> Array:
    return jnp.matmul(left, right, precision=lax.Precision.HIGHEST)


def _adapted(
    linear: Linear, parts: Parts, low_rank: dict[str, LowRank], inputs: Array
) -> Float[Array, "*batch outputs"]:
    """Returns the outputs of maps that share a matrix, each with its low-rank change."""
    outputs = linear(inputs)
    if not any(name in low_rank for name, _ in parts):
        return outputs
    pieces, start = [], 0
    for name, size in parts:
        piece = outputs[..., start : start + size]
        pieces.append(piece + low_rank[name](inputs) if name in low_rank else piece)
        start += size
    return jnp.concatenate(pieces, axis=-1)


def _rotations(
    architecture: Architecture, positions: Int[Array, "batch time"]
) -> tuple[Float[Array, "batch time 1 half"], Float[Array, "batch time 1 half"]] | None:
    """Returns cosines and sines of the rotary angles (Su et al. 2021, equation 34)."""
    if architecture.rotary_base is None:
        return None
    width = architecture.head_width
    frequencies = architecture.rotary_base ** (-jnp.arange(0, width, 2, jnp.float32) / width)
    angles = (positions[..., None] * frequencies)[:, :, None]
    return jnp.cos(angles), jnp.sin(angles)


def _rotated(
    heads: Float[Array, "batch time heads width"], turns: tuple[Array, Array]
) -> Float[Array, "batch time heads width"]:
    """Returns heads whose first and second halves hold the two coordinates of each pair, turned."""
    cosine, sine = (turn[..., None, :] for turn in turns)
    pairs = heads.reshape(*heads.shape[:-1], 2, -1)
    signs = 2.0 * jnp.arange(2)[:, None] - 1.0  # traced: the door refuses captured arrays
    turned = pairs * cosine + pairs[..., ::-1, :] * sine * signs
    return turned.reshape(heads.shape)


def output(
    model: Decoder, stream: Float[Array, "*batch width"]
) -> Float[Array, "*batch vocabulary"]:
    """Returns the logits of the residual stream after the last block."""
    norm: Norm
    head: Linear
    norm, head = lax.stop_gradient((model.norm, model.head))
    return head(norm(stream))


def positions_of(mask: Bool[Array, "batch time"]) -> Int[Array, "batch time"]:
    """Returns the position of each token among the real tokens of its row, from 0."""
    return jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)


def last_of(mask: Bool[Array, "batch time"]) -> Int[Array, " batch"]:
    """Returns the index of the last real token of each row."""
    return mask.shape[1] - 1 - jnp.argmax(mask[:, ::-1], axis=1)


def causal(mask: Bool[Array, "batch time"]) -> Bool[Array, "batch time time"]:
    """Returns whether each token sees each other: it is real and not later."""
    steps = jnp.arange(mask.shape[1])
    return mask[:, None, :] & (steps[None, :] <= steps[:, None])


def check_length(model: Decoder, tokens: int) -> None:
    """Raises ValueError if a row of so many tokens exceeds the model's positions."""
    limit = model.architecture.positions
    if tokens > limit:
        raise ValueError(
            f"{tokens} tokens exceed the model's {limit} positions; shorten the prompts or "
            "ask for fewer new tokens"
        )
