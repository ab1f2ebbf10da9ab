"""The committed models, and what `transformers` says of them (`make_oracles.py`)."""

from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from sotto.rl.language import LanguageModel, generate, load, log_probabilities
from sotto.rl.language import padded as padded_left
from sotto.rl.language.model import causal, output, positions_of, residual_stream

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = ("gpt2", "gpt2_untied", "llama", "gguf")

log_probabilities = jax.jit(log_probabilities)
generate = partial(jax.jit, static_argnames=("new_tokens", "end", "temperature"))(generate)


def path(name: str) -> Path:
    return FIXTURES / "gguf" / "model.gguf" if name == "gguf" else FIXTURES / name


@cache
def model(name: str, dtype: str = "float32") -> LanguageModel:
    return load(path(name), dtype)


@cache
def oracle(name: str) -> dict[str, np.ndarray]:
    with np.load(FIXTURES / name / "oracle.npz") as stored:
        return dict(stored)


def prompts(name: str) -> list[list[int]]:
    return [oracle(name)[f"prompt{i}"].tolist() for i in range(3)]


def padded(rows, side: str = "left"):
    """Rows of tokens as one array, padded on this side, and which of them are real."""
    if side == "left":
        return padded_left(rows)
    tokens, mask = padded_left([row[::-1] for row in rows])
    return tokens[:, ::-1], mask[:, ::-1]


@jax.jit
def logits(decoder, tokens, mask=None, adapter=None):
    """The logits of the token after each token; those at padding mean nothing."""
    mask = jnp.ones(tokens.shape, bool) if mask is None else mask
    return output(
        decoder, residual_stream(decoder, tokens, positions_of(mask), causal(mask), adapter)[0]
    )
