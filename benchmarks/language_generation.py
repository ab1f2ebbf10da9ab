"""Speed of generation by a language model: here, and by `transformers` on the same device.

Both read the same GGUF file of a Llama model and hold its weights unpacked. PyTorch runs on the
GPU if JAX does. Prompts are random tokens, and every completion has its full length. Repeats are
interleaved; what counts are the ratios of medians within one run.

    python benchmarks/language_generation.py --model SmolLM2-135M-Instruct.Q4_1.gguf
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import jax
import numpy as np
import torch
import tyro
from transformers import AutoModelForCausalLM, GgufConfig

from sotto.keys import new_key
from sotto.rl.language import generate, load
from sotto.rl.language.weights import DType


@dataclass(frozen=True)
class Settings:
    """What to generate."""

    model: Path
    """A GGUF file."""
    batch: int = 64
    prompt_tokens: int = 16
    new_tokens: int = 32
    repeats: int = 3


def torch_device() -> str:
    """Returns the device of PyTorch's model, which is of the kind of JAX's."""
    return "cuda" if jax.default_backend() == "gpu" else "cpu"


def ours(settings: Settings, dtype: DType, *, sampled: bool) -> Callable[[np.ndarray], object]:
    decoder = load(settings.model, dtype).decoder
    run = jax.jit(generate, static_argnames=("new_tokens",))
    keys = jax.random.split(new_key(0), settings.batch) if sampled else None

    def completions(prompts: np.ndarray) -> object:
        mask = np.ones(prompts.shape, bool)
        return run(decoder, prompts, mask, settings.new_tokens, keys).tokens.block_until_ready()

    return completions


def transformers(
    settings: Settings, dtype: DType, *, sampled: bool
) -> Callable[[np.ndarray], object]:
    model = AutoModelForCausalLM.from_pretrained(
        settings.model.parent,
        gguf_file=settings.model.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=getattr(torch, dtype),
    )
    model = model.to(torch_device()).eval()

    def completions(prompts: np.ndarray) -> object:
        tokens = torch.tensor(prompts, dtype=torch.long, device=model.device)
        done = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            do_sample=sampled,
            top_k=0,
            top_p=1.0,
            temperature=1.0,
            max_new_tokens=settings.new_tokens,
            min_new_tokens=settings.new_tokens,
            pad_token_id=0,
        )
        return done.cpu()  # waits for the GPU

    return completions


def main(settings: Settings) -> None:
    torch.set_num_threads(os.cpu_count() or 1)
    prompts = np.random.default_rng(0).integers(
        100, 10_000, (settings.batch, settings.prompt_tokens), np.int32
    )
    dtypes: tuple[DType, ...] = ("float32", "bfloat16")
    contestants: dict[tuple[str, str, str], Callable[[], object]] = {}
    for dtype in dtypes:
        for kind in ("sampled", "greedy"):
            for name, make in (("transformers", transformers), ("sotto", ours)):
                made = make(settings, dtype, sampled=kind == "sampled")
                contestants[name, dtype, kind] = partial(made, prompts)
    times: dict[tuple[str, str, str], list[float]] = {one: [] for one in contestants}
    for run in contestants.values():
        run()  # compiles
    for _ in range(settings.repeats):
        for one, run in contestants.items():
            began = time.perf_counter()
            run()
            times[one].append(time.perf_counter() - began)

    tokens = settings.batch * settings.new_tokens
    rates = {one: tokens / median(taken) for one, taken in times.items()}
    print(
        f"batch {settings.batch}, {settings.prompt_tokens} + {settings.new_tokens} tokens, "
        f"{os.cpu_count()} cores (load {os.getloadavg()[0]:.1f}), {jax.devices()[0].device_kind}, "
        f"medians of {settings.repeats}:"
    )
    print(f"{'':<34}{'tokens/s':>10}{'x transformers':>16}{'x its best type':>17}")
    for (name, kept, kind), rate in rates.items():
        same = rates["transformers", kept, kind]
        best = max(rates["transformers", other, kind] for other in ("float32", "bfloat16"))
        print(
            f"{name + ', ' + kept + ', ' + kind:<34}{rate:>10.0f}{rate / same:>16.2f}"
            f"{rate / best:>17.2f}"
        )


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
