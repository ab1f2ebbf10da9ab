"""Time of one step of private tuning of a language model, against the same step without privacy.

Each person has one completion, and the step follows the gradient of its log-probability in the
parameters of low-rank adapters. The private step clips each person's gradient, adds the noise, and
charges a ledger. Opacus makes the same step with the same adapters on `transformers`' model. It
reads the same GGUF file, and runs on the GPU if JAX does. Repeats are interleaved; what counts are
the ratios of medians within one run.

    python benchmarks/language_step.py --model SmolLM2-135M-Instruct.Q4_1.gguf
"""

import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax.flatten_util import ravel_pytree

from sotto.algorithms.rlhf.config import RLHFConfig
from sotto.algorithms.rlhf.feedback import Rated
from sotto.algorithms.rlhf.release import Open, make_release
from sotto.algorithms.rlhf.training import blank_state
from sotto.keys import new_key
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.rl.language import Completions, load, log_probabilities

Case = Callable[[], object]
RATE = 0.1
"""Step size of all contestants."""


@dataclass
class Settings:
    """What a step is."""

    model: Path
    """A GGUF file."""
    people: int = 128
    """Number of people in a step."""
    prompt_tokens: int = 8
    new_tokens: int = 16
    microbatch: int = 32
    """Number of people whose gradients are held at once."""
    repeats: int = 7
    only: tuple[str, ...] = ()
    """Contestants to measure, by their names in the table. Empty: all. With one contestant the peak
    memory is its own."""
    json: Path | None = None
    """File for all figures."""


def people_of(settings: Settings) -> Rated:
    """Returns random tokens of everybody, one completion each."""
    rng = np.random.default_rng(0)
    count = settings.people

    def tokens(length: int) -> np.ndarray:
        return rng.integers(100, 10_000, (count, 1, length), np.int32)

    prompts, completions = tokens(settings.prompt_tokens), tokens(settings.new_tokens)
    masks = np.ones(prompts.shape, bool), np.ones(completions.shape, bool)
    ones = np.ones((count, 1))
    return Rated(
        prompts, masks[0], completions, masks[1], ones.astype(np.float32), ones.astype(bool)
    )


def sotto(settings: Settings, private: bool) -> Case:
    """Returns a step of sotto, through the door or without privacy."""
    config = RLHFConfig(
        people=settings.people * 10_000,
        releases=10_000,
        method="best-of-n",
        adapter="lora",
        directions=0,
        new_tokens=settings.new_tokens,
        prompt_tokens=settings.prompt_tokens,
        target_epsilon=None,
        noise_multiplier=4.0,
        delta=1e-9,
        correlated_noise=False,
        microbatch=settings.microbatch,
        server_learning_rate=RATE,
    )
    base = load(settings.model).decoder
    state = blank_state(config, base.architecture)
    rated = people_of(settings)
    if not private:
        return _plain(base, state.adapter, rated, settings.microbatch)
    folder = tempfile.mkdtemp()
    ledger = Ledger.create(
        Path(folder) / "ledger.sqlite",
        unit=config.privacy_unit,
        budget=Budget(epsilon=float("inf"), delta=config.delta),
    )
    opened = jax.tree.map(lambda x: jnp.asarray(x)[None], Open(state, base))
    stream = make_release(config, 4.0).open([ledger], opened, rated, chunk=1)
    units = jax.tree.map(lambda x: jnp.asarray(x)[None, None], rated)
    keys, step = new_key(0)[None], 0

    def run() -> None:
        nonlocal opened, step
        persons = step * settings.people + np.arange(settings.people).reshape(1, 1, -1)
        opened, *_ = stream.run(opened, keys, persons, units)
        jax.block_until_ready(opened)
        step += 1

    return run


def _plain(base: Any, adapter: Any, rated: Rated, microbatch: int) -> Case:
    flat, unravel = ravel_pytree(adapter)
    rows = Rated(*(jnp.asarray(leaf[:, 0]) for leaf in rated))
    parts = jax.tree.map(lambda x: x.reshape(-1, microbatch, *x.shape[1:]), rows)

    @jax.jit
    def step(flat: Any, base: Any) -> Any:
        def loss(flat: Any, part: Rated) -> Any:
            said = Completions(part.completions, part.completion_mask)
            given = base, part.prompts, part.prompt_mask, said, unravel(flat)
            return -log_probabilities(*given).sum(axis=1).sum()

        def add(total: Any, part: Rated) -> tuple[Any, None]:
            return total + jax.grad(loss)(flat, part), None

        gradient, _ = jax.lax.scan(add, jnp.zeros_like(flat), parts)
        return flat - RATE * gradient / len(rows.prompts)

    def run() -> None:
        nonlocal flat
        flat = step(flat, base)
        flat.block_until_ready()

    return run


Mode = Literal["plain", "ghost", "hooks"]


def pytorch(settings: Settings, mode: Mode) -> Case:
    """Returns a step of `transformers`' model: plain, or with Opacus."""
    import torch
    from opacus import GradSampleModule
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
        GradSampleModuleFastGradientClipping,
    )
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
    from torch import nn
    from transformers import AutoModelForCausalLM, GgufConfig

    torch.set_num_threads(os.cpu_count() or 1)
    device = "cuda" if jax.default_backend() == "gpu" else "cpu"

    class LowRank(nn.Module):  # type: ignore[misc]
        """A frozen linear map with a low-rank change."""

        def __init__(self, base: Any, rank: int = 8) -> None:
            super().__init__()
            self.base = base
            self.down = nn.Linear(base.in_features, rank, bias=False)
            self.up = nn.Linear(rank, base.out_features, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, inputs: Any) -> Any:
            return self.base(inputs) + 2 * self.up(self.down(inputs))

    class Logits(nn.Module):  # type: ignore[misc]
        """The model, from tokens to the logits of the completion's tokens."""

        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: Any) -> Any:
            with torch.autocast(device, torch.bfloat16):
                hidden = self.model.model(tokens).last_hidden_state
                first = settings.prompt_tokens - 1
                return self.model.lm_head(hidden[:, first:-1]).float()

    class Loss(nn.Module):  # type: ignore[misc]
        """Negative log-probability of each person's completion."""

        reduction = "mean"

        def forward(self, logits: Any, tokens: Any) -> Any:
            wanted = tokens[:, settings.prompt_tokens :]
            chosen = torch.gather(logits, 2, wanted[..., None])[..., 0]
            each = (torch.logsumexp(logits, 2) - chosen).sum(1)
            return each.mean() if self.reduction == "mean" else each

    inner = AutoModelForCausalLM.from_pretrained(
        settings.model.parent,
        gguf_file=settings.model.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    inner.requires_grad_(False)
    for block in inner.model.layers:
        attention, feed_forward = block.self_attn, block.mlp
        for part, name in (
            (attention, "q_proj"),
            (attention, "v_proj"),
            (attention, "o_proj"),
            (feed_forward, "down_proj"),
        ):
            setattr(part, name, LowRank(getattr(part, name)))
    network = Logits(inner).to(device).train()
    plain = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=RATE)
    noise = {
        "noise_multiplier": 4.0,
        "max_grad_norm": 0.5,
        "expected_batch_size": settings.people,
    }
    model: Any = network
    optimizer: Any = plain
    criterion: Any = Loss()
    if mode == "hooks":
        model, optimizer = GradSampleModule(network), DPOptimizer(plain, **noise)
    elif mode == "ghost":
        model = GradSampleModuleFastGradientClipping(
            network, max_grad_norm=0.5, use_ghost_clipping=True
        )
        optimizer = DPOptimizerFastGradientClipping(plain, **noise)
        criterion = DPLossFastGradientClipping(model, optimizer, criterion)
    people = people_of(settings)
    tokens = torch.from_numpy(
        np.concatenate([people.prompts[:, 0], people.completions[:, 0]], axis=1).astype(np.int64)
    ).to(device)
    parts = settings.people // settings.microbatch

    def run() -> None:
        optimizer.zero_grad()
        for number, part in enumerate(tokens.chunk(parts)):
            if mode != "plain" and number < parts - 1:
                optimizer.signal_skip_step(do_skip=True)
            elif mode != "plain":
                optimizer.signal_skip_step(do_skip=False)
            criterion(model(part), part).backward()
            if mode != "plain" and number < parts - 1:
                optimizer.step()
                optimizer.zero_grad()
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def main(settings: Settings) -> None:
    makers: dict[str, Callable[[], Case]] = {
        "sotto, private": lambda: sotto(settings, private=True),
        "sotto, not private": lambda: sotto(settings, private=False),
    }
    if find_spec("opacus") is None or find_spec("transformers") is None:
        print("Opacus is not installed: its rows are left out (pip install sotto[benchmarks])")
    else:
        makers |= {
            "PyTorch, not private": lambda: pytorch(settings, "plain"),
            "Opacus, ghost clipping": lambda: pytorch(settings, "ghost"),
            "Opacus, hooks": lambda: pytorch(settings, "hooks"),
        }
    chosen = settings.only or tuple(makers)
    cases = {name: makers[name]() for name in chosen}
    for case in cases.values():
        for _ in range(2):  # compiles, and draws the first noise
            case()
    times: dict[str, list[float]] = {name: [] for name in cases}
    for repeat in range(settings.repeats):
        for name, case in cases.items():
            began = time.perf_counter()
            case()
            times[name].append(time.perf_counter() - began)
            time.sleep(0.5)  # noise of a next step is drawn while no other case is measured
        row = ", ".join(f"{name} {times[name][-1]:.3f}" for name in cases)
        print(f"repeat {repeat + 1}/{settings.repeats}, seconds: {row}", flush=True)
    _table(settings, times, chosen)


def _table(settings: Settings, times: dict[str, list[float]], chosen: Sequence[str]) -> None:
    medians = {name: statistics.median(some) for name, some in times.items()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    load = os.getloadavg()[0]
    print(
        f"\n{settings.people} people, {settings.prompt_tokens} + {settings.new_tokens} tokens, "
        f"{os.cpu_count()} cores (load {load:.1f}), {jax.devices()[0].device_kind}:"
    )
    print(f"{'':<26}{'seconds':>9}{'people/s':>10}{'/ ' + chosen[0]:>20}")
    for name, seconds in medians.items():
        ratio = seconds / medians[chosen[0]]
        print(f"{name:<26}{seconds:>9.3f}{settings.people / seconds:>10.1f}{ratio:>20.2f}")
    print(f"peak memory of the process: {peak:.2f} GiB")
    if settings.json is not None:
        found = {"seconds": medians, "all": times, "peak_gib": peak, "load": load}
        settings.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
