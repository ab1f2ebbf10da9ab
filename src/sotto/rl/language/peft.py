"""Adapters in PEFT's files: adapter_config.json and adapter_model.safetensors.

PEFT has no steering vectors. A constant added to the residual stream after a block is the same as a
constant added to the outputs of the block's last linear map. PEFT keeps such a constant as the bias
of lora_B, divided by the scale (its option `lora_bias`). A steering vector is therefore written as
the bias of an otherwise zero low-rank change, and read back from there.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from sotto.extras import require
from sotto.files import write_whole
from sotto.rl.language.adapters import Adapter, LowRank
from sotto.rl.language.architecture import Architecture

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

REFUSED = (
    "alora_invocation_tokens",
    "alpha_pattern",
    "arrow_config",
    "kasa_config",
    "layer_replication",
    "modules_to_save",
    "monteclora_config",
    "rank_pattern",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
    "use_rslora",
    "velora_config",
)
"""PEFT's options that change what an adapter computes and that sotto does not implement."""

FIRST_WEIGHTS = (True, False, None, "gaussian")
"""PEFT's `init_lora_weights` that leave the base model as it is. Others, such as "pissa", take the
first weights of the adapter out of the base model, and the adapter fits the remaining one only."""


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


def load_adapter(folder: str | Path, architecture: Architecture) -> Adapter:
    """Reads an adapter that PEFT or `save_adapter` wrote.

    Raises:
        ValueError: the files are missing, belong to another model, or ask for something unknown.
    """
    require("safetensors")
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    folder = Path(folder)
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        tensors = dict(load_file(folder / WEIGHTS))
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise ValueError(
            f"{folder} holds no adapter that can be read ({error}); it needs {CONFIG} and {WEIGHTS}"
        ) from error
    rank, scale = _check_config(folder, config)
    low_rank: list[dict[str, LowRank]] = [{} for _ in range(architecture.blocks)]
    vectors: list[jnp.ndarray | None] = [None] * architecture.blocks
    last = architecture.down[0][0]
    for block in range(architecture.blocks):
        for name, (inputs, outputs) in architecture.maps.items():
            module = architecture.block_path(block) + name
            path = f"base_model.model.{module}"
            if f"{path}.lora_A.weight" not in tensors and not _is_target(module, block, config):
                continue
            down = _take(tensors, folder, f"{path}.lora_A.weight", rank, inputs)
            up = _take(tensors, folder, f"{path}.lora_B.weight", outputs, rank)
            if down.any() or up.any():
                low_rank[block][name] = LowRank(jnp.asarray(down), jnp.asarray(up), scale)
            if config.get("lora_bias"):
                bias = _take(tensors, folder, f"{path}.lora_B.bias", outputs)
                if name == last:
                    if bias.any() or name not in low_rank[block]:
                        vectors[block] = jnp.asarray(scale * bias)
                elif bias.any():
                    raise ValueError(
                        f"{folder}: the adapter has a bias on {module!r}, which sotto does not "
                        f"implement; it reads biases on {last!r} only"
                    )
    if tensors:
        raise ValueError(
            f"{folder}: the adapter changes {min(tensors)!r}, which a {architecture.family} model "
            f"of {architecture.blocks} blocks does not have; load the model that it was made for"
        )
    return Adapter(tuple(low_rank), tuple(vectors))


def _check_config(folder: Path, config: Any) -> tuple[int, float]:
    """Returns rank and scale.

    Raises:
        ValueError: the adapter is of another kind than sotto implements.
    """
    if not isinstance(config, dict):
        raise ValueError(f"{folder}/{CONFIG} holds no JSON object; save the adapter again")
    kind, bias = config.get("peft_type"), config.get("bias", "none")
    if kind != "LORA":
        raise ValueError(f"{folder} is an adapter of type {kind!r}; sotto reads 'LORA'")
    used = [name for name in REFUSED if config.get(name)]
    if used or bias != "none":
        raise ValueError(
            f"{folder}: the adapter uses {', '.join(used) or f'bias={bias!r}'}, which sotto does "
            "not implement; save it without"
        )
    first = config.get("init_lora_weights")
    if first not in FIRST_WEIGHTS:
        raise ValueError(
            f"{folder}: the adapter was begun with init_lora_weights={first!r}, which may change "
            "the base model; convert it with PEFT (path_initial_model_for_weight_conversion)"
        )
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        raise ValueError(f"{folder}/{CONFIG} needs numbers r and lora_alpha, got {rank}, {alpha}")
    _check_targets(folder, config)
    return rank, alpha / rank


def _check_targets(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuses target_modules and layers_to_transform that PEFT does not write.

    Raises:
        ValueError: one of them has another type, or is no regular expression.
    """
    targets, blocks = config.get("target_modules"), config.get("layers_to_transform")
    try:
        re.compile(targets if isinstance(targets, str) else "")
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(
            f"{folder}/{CONFIG} has target_modules={targets!r}, which is no regular expression; "
            "save the adapter again"
        ) from error
    names = [] if targets is None or isinstance(targets, str) else targets
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise ValueError(
            f"{folder}/{CONFIG} needs names of modules as target_modules, got {targets!r}; "
            "save the adapter again"
        )
    numbers = [] if blocks is None else blocks if isinstance(blocks, list) else [blocks]
    if not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in numbers):
        raise ValueError(
            f"{folder}/{CONFIG} needs numbers of blocks as layers_to_transform, got {blocks!r}; "
            "save the adapter again"
        )


def _is_target(module: str, block: int, config: Mapping[str, Any]) -> bool:
    """Returns whether PEFT would change the module, so that its tensors must be there."""
    blocks, targets = config.get("layers_to_transform"), config.get("target_modules") or []
    if blocks is not None and block not in ([blocks] if isinstance(blocks, int) else blocks):
        return False
    if isinstance(targets, str):
        return re.fullmatch(targets, module) is not None
    return any(module == target or module.endswith(f".{target}") for target in targets)


def _take(tensors: dict[str, np.ndarray], folder: Path, name: str, *shape: int) -> np.ndarray:
    tensor = tensors.pop(name, None)
    if tensor is None:
        raise ValueError(f"{folder}: the adapter lacks the tensor {name!r}; save it again")
    if tensor.shape != shape:
        raise ValueError(
            f"{folder}: tensor {name!r} has shape {list(tensor.shape)} in place of {list(shape)}; "
            "load the model that the adapter was made for"
        )
    return tensor.astype(np.float32)
