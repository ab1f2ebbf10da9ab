"""Language models read from a folder in Hugging Face's layout, or from a GGUF file."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sotto.extras import require
from sotto.rl.language.architecture import Architecture, even_share, from_config
from sotto.rl.language.model import Decoder
from sotto.rl.language.tokenizer import Tokenizer, gguf_tokenizer, read_tokenizer
from sotto.rl.language.weights import DType, Tensors, build


@dataclass(frozen=True)
class LanguageModel:
    """A decoder with its tokenizer."""

    decoder: Decoder
    tokenizer: Tokenizer
    end: tuple[int, ...]
    """Tokens that end a text."""


def load(path: str | Path, dtype: DType = "bfloat16") -> LanguageModel:
    """Reads a language model.

    Args:
        path: a folder with config.json, tokenizer.json and model.safetensors (or several files and
            model.safetensors.index.json), of a GPT-2 or Llama model; or a GGUF file of a Llama
            model. Nothing is downloaded.
        dtype: type of the weights.

    Raises:
        ValueError: something is missing, does not fit or is not implemented.
    """
    path = Path(path)
    if path.is_dir():
        return _load_folder(path, dtype)
    if path.is_file():
        return _load_gguf(path, dtype)
    raise ValueError(f"there is no model at {path}; name a model's folder or a GGUF file")


def identity(path: str | Path) -> str:
    """Returns the SHA-256 of what a model is read from: its GGUF file, or its folder's files.

    Raises:
        ValueError: the folder is not a whole model.
        OSError: a file cannot be read.
    """
    path = Path(path)
    files = [path]
    if path.is_dir():
        names = ("config.json", "generation_config.json", "tokenizer.json")
        files = [path / name for name in names if (path / name).is_file()]
        files += sorted(path / name for name in _weight_files(path))
    whole = hashlib.sha256()
    for one in files:
        with one.open("rb") as opened:
            whole.update(hashlib.file_digest(opened, "sha256").digest())
    return whole.hexdigest()


def _load_folder(folder: Path, dtype: DType) -> LanguageModel:
    require("safetensors", "tokenizers")
    config = _read_json(folder / "config.json")
    architecture = from_config(config)
    tokenizer = read_tokenizer(folder)
    tokenizer.check(architecture.vocabulary)
    decoder = build(architecture, _folder_tensors(folder, architecture), dtype)
    return LanguageModel(
        decoder, tokenizer, _checked_end(_end_tokens(folder, config), architecture)
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read; the folder is not a whole model") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}); download it again") from error
    if not isinstance(read, dict):
        raise ValueError(f"{path} holds no JSON object; download it again")
    return read


def _end_tokens(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the tokens that end a text: those of generation_config.json, or of config.json."""
    path, name = folder / "generation_config.json", "eos_token_id"
    generation: Mapping[str, Any] = _read_json(path) if path.is_file() else {}
    if name not in generation:
        path, generation = folder / "config.json", config
    end = generation.get(name)
    if end is None:
        return ()
    tokens = end if isinstance(end, list) else [end]
    if any(isinstance(token, bool) or not isinstance(token, int) for token in tokens):
        raise ValueError(
            f"{path} needs a token or a list of tokens as {name}, got {end!r}; correct it"
        )
    return tuple(tokens)


def _weight_files(folder: Path) -> set[str]:
    """Returns the names of the files that hold a folder's weights."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        return {"model.safetensors"}
    if index.is_file():
        named = _read_json(index).get("weight_map")
        given = list(named.values()) if isinstance(named, dict) else [named]
        files = [one for one in given if isinstance(one, str) and Path(one).name == one]
        if len(files) < len(given):
            raise ValueError(f"{index} names no files of its folder; download it again")
        return set(files)
    raise ValueError(
        f"{folder} has no model.safetensors; save the model in that format "
        "(transformers: model.save_pretrained)"
    )


def _folder_tensors(folder: Path, architecture: Architecture) -> Tensors:
    """Returns the tensors of model.safetensors, or of the files that its index names."""
    files = _weight_files(folder)
    places = {name: file for file in files for name in _names(folder / file)}

    # The first GPT-2 files have no prefix before their names.
    bare = architecture.family == "gpt2" and not any(n.startswith("transformer.") for n in places)
    prefix = "transformer." if bare else ""
    names = {name if name.startswith("lm_head.") else prefix + name: name for name in places}

    def read(name: str) -> np.ndarray:
        from safetensors import safe_open

        with safe_open(folder / places[names[name]], framework="np") as file:
            tensor: np.ndarray = file.get_tensor(names[name])
            return tensor

    return Tensors(str(folder), names, read)


def _names(path: Path) -> list[str]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            return list(file.keys())
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read ({error}); download it again") from error


GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Names of the parts of a block in GGUF files, by those in Hugging Face's models."""


def _load_gguf(path: Path, dtype: DType) -> LanguageModel:
    require("gguf", "tokenizers")
    from gguf import GGUFReader, dequantize

    try:
        reader = GGUFReader(path)
    except (ValueError, IndexError, OSError) as error:
        raise ValueError(f"{path} is not a GGUF file ({error}); name another") from error
    fields = {name: field.contents() for name, field in reader.fields.items()}
    stored = {tensor.name: tensor for tensor in reader.tensors}
    architecture = _gguf_architecture(fields, tied="output.weight" not in stored)
    tokenizer = gguf_tokenizer(fields)
    tokenizer.check(architecture.vocabulary)

    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for block in range(architecture.blocks):
        for ours, theirs in GGUF_NAMES.items():
            names[f"model.layers.{block}.{ours}"] = f"blk.{block}.{theirs}"
    known = {f"{theirs}.weight": f"{ours}.weight" for ours, theirs in names.items()}
    found = {known.get(name, name): name for name in stored}

    def read(name: str) -> np.ndarray:
        tensor = stored[found[name]]
        try:
            values: np.ndarray = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            kind = tensor.tensor_type.name
            raise ValueError(f"{path} has weights of type {kind}; take another file") from error
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            return _halves(values, architecture.head_width)
        return values

    end = (fields.get("tokenizer.ggml.eos_token_id"), fields.get("tokenizer.ggml.eot_token_id"))
    if not all(token is None or type(token) is int for token in end):
        raise ValueError(f"{path} has end tokens {end} that are no numbers; convert it again")
    ends = tuple(dict.fromkeys(token for token in end if token is not None))
    return LanguageModel(
        build(architecture, Tensors(str(path), found, read), dtype),
        tokenizer,
        _checked_end(ends, architecture),
    )


def _halves(rows: np.ndarray, head_width: int) -> np.ndarray:
    """Returns rows of queries or keys in Hugging Face's order.

    GGUF files keep the two coordinates of each rotary pair in adjacent rows. Hugging Face's models
    keep all first coordinates of a head before all second ones.
    """
    if rows.ndim != 2 or len(rows) % head_width:
        return rows  # its shape is refused next
    return rows.reshape(-1, head_width // 2, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def _gguf_architecture(fields: Mapping[str, Any], *, tied: bool) -> Architecture:
    family = fields.get("general.architecture")
    if family != "llama":
        raise ValueError(
            f"the GGUF file is of a {family!r} model; sotto reads 'llama' from GGUF files"
        )
    scaling = fields.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise ValueError(
            f"the GGUF file asks for rotary scaling {scaling!r}, which sotto does not implement; "
            "take a model without"
        )

    def whole(name: str, default: int | None = None) -> int:
        value = fields[name] if default is None else fields.get(name, default)
        if type(value) is not int:
            raise TypeError
        return value

    def real(name: str, default: float | None = None) -> float:
        value = fields[name] if default is None else fields.get(name, default)
        if not (type(value) in (int, float) and math.isfinite(value)):
            raise TypeError
        return float(value)

    try:
        width = whole("llama.embedding_length")
        heads = whole("llama.attention.head_count")
        head_width = whole("llama.attention.key_length", 0) or even_share(width, heads)
        if whole("llama.rope.dimension_count", head_width) != head_width:
            raise ValueError(
                "the GGUF file turns only a part of each head, which sotto does not implement; "
                "take another model"
            )
        return Architecture(
            family="llama",
            vocabulary=len(fields["tokenizer.ggml.tokens"]),
            width=width,
            blocks=whole("llama.block_count"),
            heads=heads,
            kv_heads=whole("llama.attention.head_count_kv", heads),
            head_width=head_width,
            hidden=whole("llama.feed_forward_length"),
            positions=whole("llama.context_length"),
            epsilon=real("llama.attention.layer_norm_rms_epsilon"),
            rotary_base=real("llama.rope.freq_base", 10_000.0),
            tied=tied,
        )
    except KeyError as error:
        raise ValueError(f"the GGUF file lacks the field {error}; convert it again") from error
    except TypeError as error:
        raise ValueError(
            "the GGUF file has other numbers in each block, or a field of another type, which "
            "sotto does not implement; take another model"
        ) from error


def _checked_end(end: tuple[int, ...], architecture: Architecture) -> tuple[int, ...]:
    if any(not 0 <= token < architecture.vocabulary for token in end):
        raise ValueError(
            f"the end tokens {list(end)} are not all among the model's {architecture.vocabulary} "
            "tokens; correct eos_token_id"
        )
    return end
