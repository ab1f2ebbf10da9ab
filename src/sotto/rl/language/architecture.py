"""Sizes of a decoder, as its config.json or its GGUF file states them.

Two families are known. `gpt2` is Radford et al. 2019, with learned positions, layer normalisation,
biases and GELU. `llama` is Touvron et al. 2023, with rotary positions, RMS normalisation and gated
SiLU; several query heads may share a key-value head (Ainslie et al. 2023).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Family = Literal["gpt2", "llama"]
Parts = tuple[tuple[str, int], ...]
"""Linear maps that share one matrix: the name of each within a block, and its number of outputs."""


@dataclass(frozen=True)
class Architecture:
    """Sizes and constants of a decoder."""

    family: Family
    vocabulary: int
    """Rows of the embedding."""
    width: int
    """Numbers in the residual stream."""
    blocks: int
    heads: int
    """Query heads of a block."""
    kv_heads: int
    """Key-value heads of a block; `heads` is a multiple."""
    head_width: int
    hidden: int
    """Width of the feed-forward layer."""
    positions: int
    """Number of tokens that the model can see at once."""
    epsilon: float
    """Term added to the variance in normalisation."""
    rotary_base: float | None
    """Base of the rotary frequencies; None for learned positions."""
    tied: bool
    """Whether the output matrix is the embedding."""

    def __post_init__(self) -> None:
        sizes = ("vocabulary", "width", "blocks", "heads", "kv_heads", "head_width", "hidden")
        for name in (*sizes, "positions"):
            if (size := getattr(self, name)) < 1:
                raise ValueError(f"the model's {name} is {size}; it must be at least 1")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"{self.heads} query heads cannot share {self.kv_heads} key-value heads; "
                "the first number must be a multiple of the second"
            )
        if self.rotary_base is not None and self.head_width % 2:
            raise ValueError(f"rotary positions need an even head width, got {self.head_width}")

    @property
    def qkv(self) -> Parts:
        """Names and widths of the maps to queries, keys and values."""
        queries, keys = self.heads * self.head_width, self.kv_heads * self.head_width
        if self.family == "gpt2":
            return (("attn.c_attn", queries + 2 * keys),)
        names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        return tuple(zip(names, (queries, keys, keys), strict=True))

    @property
    def out(self) -> Parts:
        """Name and width of the map from the heads to the residual stream."""
        return (("attn.c_proj" if self.family == "gpt2" else "self_attn.o_proj", self.width),)

    @property
    def up(self) -> Parts:
        """Names and widths of the maps into the feed-forward layer: gate first, if there is one."""
        if self.family == "gpt2":
            return (("mlp.c_fc", self.hidden),)
        return (("mlp.gate_proj", self.hidden), ("mlp.up_proj", self.hidden))

    @property
    def down(self) -> Parts:
        """Name and width of the map from the feed-forward layer to the residual stream."""
        return (("mlp.c_proj" if self.family == "gpt2" else "mlp.down_proj", self.width),)

    @property
    def maps(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of the linear maps of a block, by name in Hugging Face's models."""
        inputs = (self.width, self.heads * self.head_width, self.width, self.hidden)
        fused = (self.qkv, self.out, self.up, self.down)
        return {
            name: (size, outputs)
            for size, parts in zip(inputs, fused, strict=True)
            for name, outputs in parts
        }

    def block_path(self, block: int) -> str:
        """Returns the path of a block in Hugging Face's models."""
        return f"transformer.h.{block}." if self.family == "gpt2" else f"model.layers.{block}."


class _Fields:
    """Fields of a config.json, read with a sentence for each that is missing or unknown."""

    def __init__(self, fields: Mapping[str, Any]):
        self.fields = fields

    def number(self, name: str, default: float | None = None) -> Any:
        """Returns a number; a field that is absent or null has the default."""
        value = self.fields.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"config.json needs a number for {name!r}, got {value!r}")
        return value

    def whole(self, name: str, default: int | None = None) -> int:
        """Returns a whole number; a field that is absent or null has the default."""
        value = self.number(name, default)
        if not isinstance(value, int):
            raise ValueError(f"config.json needs a whole number for {name!r}, got {value!r}")
        return value

    def only(self, name: str, *known: Any) -> None:
        """Raises ValueError unless the field is absent or has one of the known values."""
        value = self.fields.get(name, known[0])
        if value not in known:
            raise ValueError(
                f"config.json says {name}={value!r}, which sotto does not implement; "
                f"take a model with {known[0]!r}"
            )


def from_config(config: Mapping[str, Any]) -> Architecture:
    """Returns the architecture that a config.json of Hugging Face's describes.

    Raises:
        ValueError: it is of another family, lacks a field, or asks for something unknown.
    """
    fields, family = _Fields(config), config.get("model_type")
    if family == "gpt2":
        return _gpt2(fields)
    if family == "llama":
        return _llama(fields)
    found = f"is of a {family!r} model" if family else "has no model_type"
    raise ValueError(f"config.json {found}; sotto reads 'gpt2' and 'llama'")


def _gpt2(fields: _Fields) -> Architecture:
    fields.only("activation_function", "gelu_new", "gelu_pytorch_tanh")
    fields.only("scale_attn_weights", True)
    fields.only("scale_attn_by_inverse_layer_idx", False)
    fields.only("add_cross_attention", False)
    width, heads = fields.whole("n_embd"), fields.whole("n_head")
    return Architecture(
        family="gpt2",
        vocabulary=fields.whole("vocab_size"),
        width=width,
        blocks=fields.whole("n_layer"),
        heads=heads,
        kv_heads=heads,
        head_width=even_share(width, heads),
        hidden=fields.whole("n_inner", 4 * width),
        positions=fields.whole("n_positions"),
        epsilon=fields.number("layer_norm_epsilon", 1e-5),
        rotary_base=None,
        tied=fields.fields.get("tie_word_embeddings", True),
    )


def _llama(fields: _Fields) -> Architecture:
    fields.only("hidden_act", "silu")
    fields.only("attention_bias", False)
    fields.only("mlp_bias", False)
    rotary: dict[str, Any] = {}
    for name in ("rope_scaling", "rope_parameters"):  # the second is of transformers 5
        value = fields.fields.get(name) or {}
        if not isinstance(value, dict):
            raise ValueError(f"config.json needs an object for {name!r}, got {value!r}")
        rotary |= value
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    if kind != "default":
        raise ValueError(
            f"config.json asks for rotary scaling {kind!r}, which sotto does not implement; "
            "take a model with 'default'"
        )
    width, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    base = _Fields(rotary).number("rope_theta", fields.number("rope_theta", 10_000.0))
    return Architecture(
        family="llama",
        vocabulary=fields.whole("vocab_size"),
        width=width,
        blocks=fields.whole("num_hidden_layers"),
        heads=heads,
        kv_heads=fields.whole("num_key_value_heads", heads),
        head_width=fields.whole("head_dim", 0) or even_share(width, heads),
        hidden=fields.whole("intermediate_size"),
        positions=fields.whole("max_position_embeddings"),
        epsilon=fields.number("rms_norm_eps", 1e-6),
        rotary_base=float(base),
        tied=fields.fields.get("tie_word_embeddings", False),
    )


def even_share(width: int, heads: int) -> int:
    """Returns the width of a head, if its width is not stated.

    Raises:
        ValueError: the heads cannot share the width of the model.
    """
    if heads < 1 or width % heads:
        raise ValueError(
            f"a width of {width} cannot be divided into {heads} heads; check the model"
        )
    return width // heads
