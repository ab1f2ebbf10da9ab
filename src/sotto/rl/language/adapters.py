"""Small trainable changes to a frozen language model.

A low-rank change adds scale * up @ (down @ inputs) to the outputs of a linear map (Hu et al. 2021,
section 4.1, with scale = lora_alpha / r). A steering vector is added to the residual stream after a
block, at every position (Subramani et al. 2022). An `Adapter` holds any number of both and is the
pytree that training differentiates and changes.
"""

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.rl.language.architecture import Architecture


class LowRank(eqx.Module):
    """A low-rank change to one linear map: PEFT's lora_A and lora_B."""

    down: Float[Array, "rank inputs"]
    up: Float[Array, "outputs rank"]
    scale: float = eqx.field(static=True)

    def __call__(self, inputs: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        """Returns the change of the map's outputs."""
        exact = jax.lax.Precision.HIGHEST
        inner = jnp.dot(inputs, self.down.T, precision=exact)
        return self.scale * jnp.dot(inner, self.up.T, precision=exact)


class Adapter(eqx.Module):
    """Low-rank changes and steering vectors; every array in it is trainable and float32."""

    low_rank: tuple[dict[str, LowRank], ...]
    """Changes of each block, by the name of the linear map (`Architecture.maps`)."""
    steering: tuple[Float[Array, " width"] | None, ...]
    """Vector added to the residual stream after each block, or None."""


def lora(
    architecture: Architecture,
    key: PRNGKeyArray,
    *,
    rank: int,
    alpha: float,
    targets: Sequence[str],
    blocks: Sequence[int] | None = None,
) -> Adapter:
    """Returns an adapter whose low-rank changes are zero at first.

    `down` is uniform in ±1/sqrt(inputs), as PEFT draws it, and `up` is zero.

    Args:
        architecture: the model's sizes.
        key: key of the random numbers.
        rank: PEFT's `r`.
        alpha: PEFT's `lora_alpha`; the scale is alpha / rank.
        targets: linear maps to change: a name of `Architecture.maps` or its last part, as in
            PEFT's `target_modules` ("q_proj"; GPT-2's "c_proj" means both maps of that name).
        blocks: numbers of the blocks to change; None means all.

    Raises:
        ValueError: the rank is below 1, or no map or block has a given name or number.
    """
    if rank < 1:
        raise ValueError(f"an adapter's rank must be at least 1, got {rank}")
    maps = architecture.maps
    chosen: set[str] = set()
    for target in targets:
        found = {name for name in maps if name == target or name.endswith(f".{target}")}
        if not found:
            raise ValueError(f"no linear map is called {target!r}; name some of {sorted(maps)}")
        chosen |= found
    changed = range(architecture.blocks) if blocks is None else blocks
    low_rank: list[dict[str, LowRank]] = [{} for _ in range(architecture.blocks)]
    for block in changed:
        _check_block(architecture, block)
        for number, (name, (inputs, outputs)) in enumerate(maps.items()):
            if name not in chosen:
                continue
            own = jax.random.fold_in(jax.random.fold_in(key, block), number)
            bound = 1 / math.sqrt(inputs)
            down = jax.random.uniform(own, (rank, inputs), jnp.float32, -bound, bound)
            up = jnp.zeros((outputs, rank), jnp.float32)
            low_rank[block][name] = LowRank(down, up, alpha / rank)
    return Adapter(tuple(low_rank), (None,) * architecture.blocks)


def steering(architecture: Architecture, blocks: Sequence[int]) -> Adapter:
    """Returns an adapter with a zero steering vector after each of the given blocks.

    Raises:
        ValueError: the model has no such block.
    """
    for block in blocks:
        _check_block(architecture, block)
    vectors = tuple(
        jnp.zeros((architecture.width,), jnp.float32) if block in blocks else None
        for block in range(architecture.blocks)
    )
    return Adapter(tuple({} for _ in vectors), vectors)


def _check_block(architecture: Architecture, block: int) -> None:
    if not 0 <= block < architecture.blocks:
        raise ValueError(
            f"the model has no block {block}; they go from 0 to {architecture.blocks - 1}"
        )
