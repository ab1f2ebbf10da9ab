"""Writes adapters as PEFT's files: adapter_config.json and adapter_model.safetensors.

PEFT has no steering vectors. A constant added to the residual stream after a block is the same as a
constant added to the outputs of the block's last linear map. PEFT keeps such a constant as the bias
of lora_B, divided by the scale (its option `lora_bias`). A steering vector is therefore written as
the bias of an otherwise zero low-rank change.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from sotto.extras import require
from sotto.files import write_whole
from sotto.rl.language.adapters import Adapter
from sotto.rl.language.architecture import Architecture

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def save_adapter(
    adapter: Adapter, architecture: Architecture, folder: str | Path, base: str | None = None
) -> None:
    """Writes an adapter so that PEFT can load it with `PeftModel.from_pretrained(model, folder)`.

    Args:
        adapter: the adapter.
        architecture: sizes of the model that it belongs to.
        folder: the folder, which is made if needed.
        base: name at Hugging Face or folder of the model, for the file's field
            `base_model_name_or_path`.

    Raises:
        ValueError: the adapter changes nothing, has several ranks or scales, or does not fit.
        OSError: a file cannot be written.
    """
    require("safetensors")
    from safetensors.numpy import save_file

    if len(adapter.low_rank) != architecture.blocks:
        raise ValueError(
            f"the adapter has {len(adapter.low_rank)} blocks and the model {architecture.blocks}; "
            "save it with the architecture that it was made for"
        )
    changes = [change for block in adapter.low_rank for change in block.values()]
    kinds = {(change.down.shape[0], change.scale) for change in changes} or {(1, 1.0)}
    if len(kinds) > 1:
        raise ValueError(f"PEFT's files hold one rank and scale, not {sorted(kinds)}; save each")
    ((rank, scale),) = kinds
    last = architecture.down[0][0]
    biased = any(vector is not None for vector in adapter.steering)
    tensors: dict[str, np.ndarray] = {}
    names: list[set[str]] = []
    for block, (low_rank, vector) in enumerate(
        zip(adapter.low_rank, adapter.steering, strict=True)
    ):
        names.append(set(low_rank) | ({last} if vector is not None else set()))
        for name in sorted(names[-1]):
            inputs, outputs = architecture.maps[name]
            change = low_rank.get(name)
            path = f"base_model.model.{architecture.block_path(block)}{name}"
            down = np.zeros((rank, inputs)) if change is None else change.down
            up = np.zeros((outputs, rank)) if change is None else change.up
            tensors[f"{path}.lora_A.weight"] = _float32(down)
            tensors[f"{path}.lora_B.weight"] = _float32(up)
            if biased:
                bias = vector if name == last and vector is not None else np.zeros(outputs)
                tensors[f"{path}.lora_B.bias"] = _float32(np.asarray(bias) / scale)
    if not tensors:
        raise ValueError("the adapter changes nothing; there is nothing to save")

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{WEIGHTS}.{os.getpid()}"
    save_file(tensors, unfinished, metadata={"format": "pt"})
    os.replace(unfinished, folder / WEIGHTS)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": _whole(scale * rank),
        "lora_dropout": 0.0,
        "lora_bias": biased,
        "bias": "none",
        "target_modules": _targets(architecture, names),
        "fan_in_fan_out": architecture.family == "gpt2",
        "inference_mode": True,
    }
    write_whole(folder / CONFIG, json.dumps(config, indent=2, sort_keys=True) + "\n")


def _float32(values: Any) -> np.ndarray:
    return np.ascontiguousarray(np.asarray(values, np.float32))


def _whole(value: float) -> float:
    return int(value) if float(value).is_integer() else value


def _targets(architecture: Architecture, names: list[set[str]]) -> list[str]:
    """Returns PEFT's target_modules: short names if all blocks have the same, else whole paths."""
    if any(one != names[0] for one in names):
        return [
            architecture.block_path(block) + name
            for block, found in enumerate(names)
            for name in sorted(found)
        ]
    ends = [name.rsplit(".", 1)[-1] for name in architecture.maps]
    short = {name: name.rsplit(".", 1)[-1] for name in names[0]}
    return sorted(end if ends.count(end) == 1 else name for name, end in short.items())
