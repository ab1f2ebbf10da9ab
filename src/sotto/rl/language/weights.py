"""A decoder made of named tensors, whatever file they come from."""

from collections.abc import Callable, Iterable
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sotto.rl.language.architecture import Architecture, Parts
from sotto.rl.language.model import Block, Decoder, Linear, Norm

DType = Literal["bfloat16", "float32"]

UNUSED = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
"""Ends of the names of constants that old files hold beside the weights."""


class Tensors:
    """Tensors by the names that they have in Hugging Face's models."""

    def __init__(self, where: str, names: Iterable[str], read: Callable[[str], np.ndarray]):
        """Takes the names of all tensors and a function that reads one.

        Args:
            where: the file or folder, for messages.
            names: names of all tensors.
            read: returns one tensor.
        """
        self.where, self.read = where, read
        self.names = frozenset(names)
        self.left = {name for name in self.names if not name.endswith(UNUSED)}

    def take(self, name: str, *shape: int) -> Float[np.ndarray, "..."]:
        """Returns a tensor as float32.

        Raises:
            ValueError: it is missing, has another shape, or does not hold floating-point numbers.
        """
        if name not in self.names:
            raise ValueError(f"{self.where} has no tensor {name!r}; download or convert it again")
        tensor = self.read(name)
        if tensor.shape != shape:
            raise ValueError(
                f"{self.where}: tensor {name!r} has shape {list(tensor.shape)}, and the model's "
                f"description says {list(shape)}; the two do not belong together"
            )
        if not jnp.issubdtype(tensor.dtype, jnp.floating):
            raise ValueError(
                f"{self.where}: tensor {name!r} is of type {tensor.dtype}; save the model as "
                "float32, float16 or bfloat16"
            )
        self.left.discard(name)
        return tensor.astype(np.float32)

    def check_all_taken(self, architecture: Architecture) -> None:
        """Raises ValueError if a tensor is left that would be ignored without a word."""
        if architecture.tied:
            self.left.discard("lm_head.weight")
        if self.left:
            raise ValueError(
                f"{self.where} holds {min(self.left)!r}, which a {architecture.family} model does "
                "not have; sotto would compute without it"
            )


def build(architecture: Architecture, tensors: Tensors, dtype: DType) -> Decoder:
    """Returns the decoder.

    Raises:
        ValueError: a tensor is missing, has another shape or belongs to no part of the model.
    """
    make = _Maker(architecture, tensors, jnp.dtype(dtype))
    a, gpt2 = architecture, architecture.family == "gpt2"
    root, table = ("transformer.", "wte") if gpt2 else ("model.", "embed_tokens")
    embedding = tensors.take(f"{root}{table}.weight", a.vocabulary, a.width)
    head = embedding if a.tied else tensors.take("lm_head.weight", a.vocabulary, a.width)
    positions = tensors.take("transformer.wpe.weight", a.positions, a.width) if gpt2 else None
    decoder = Decoder(
        embedding=make.array(embedding),
        positions=None if positions is None else make.array(positions),
        blocks=tuple(make.block(a.block_path(block)) for block in range(a.blocks)),
        norm=make.norm(root + ("ln_f" if gpt2 else "norm")),
        head=make.linear_of(head.T, None),
        architecture=a,
    )
    tensors.check_all_taken(a)
    return decoder


class _Maker:
    """Parts of a decoder."""

    def __init__(self, architecture: Architecture, tensors: Tensors, dtype: jnp.dtype):
        self.a, self.tensors, self.dtype = architecture, tensors, dtype
        self.gpt2 = architecture.family == "gpt2"

    def array(self, values: np.ndarray) -> jnp.ndarray:
        return jnp.asarray(np.ascontiguousarray(values), self.dtype)

    def block(self, path: str) -> Block:
        a = self.a
        norms = ("ln_1", "ln_2") if self.gpt2 else ("input_layernorm", "post_attention_layernorm")
        return Block(
            attention_norm=self.norm(path + norms[0]),
            qkv=self.linear(path, a.qkv),
            out=self.linear(path, a.out),
            feed_forward_norm=self.norm(path + norms[1]),
            up=self.linear(path, a.up),
            down=self.linear(path, a.down),
        )

    def norm(self, path: str) -> Norm:
        weight = self.tensors.take(f"{path}.weight", self.a.width)
        bias = self.tensors.take(f"{path}.bias", self.a.width) if self.gpt2 else None
        return Norm(
            jnp.asarray(weight), None if bias is None else jnp.asarray(bias), self.a.epsilon
        )

    def linear(self, path: str, parts: Parts) -> Linear:
        """Returns maps that read the same inputs, side by side in one matrix."""
        matrices, biases = [], []
        for name, outputs in parts:
            inputs = self.a.maps[name][0]
            if self.gpt2:  # its files hold matrices of shape [inputs, outputs]
                matrices.append(self.tensors.take(f"{path}{name}.weight", inputs, outputs))
                biases.append(self.tensors.take(f"{path}{name}.bias", outputs))
            else:
                matrices.append(self.tensors.take(f"{path}{name}.weight", outputs, inputs).T)
        matrix = np.concatenate(matrices, axis=1)
        return self.linear_of(matrix, np.concatenate(biases) if biases else None)

    def linear_of(self, matrix: np.ndarray, bias: np.ndarray | None) -> Linear:
        copied = self.dtype == jnp.bfloat16
        return Linear(
            weight=self.array(matrix),
            transposed=self.array(matrix.T) if copied else None,
            bias=None if bias is None else jnp.asarray(bias),
        )
