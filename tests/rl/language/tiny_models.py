"""The committed models, and what `transformers` says of them (`make_oracles.py`)."""

from functools import cache, partial
from pathlib import Path

import jax
import numpy as np

from sotto.rl.language import LanguageModel, generate, load, log_probabilities, logits

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = ("gpt2", "gpt2_untied", "llama", "gguf")

logits, log_probabilities = jax.jit(logits), jax.jit(log_probabilities)
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
