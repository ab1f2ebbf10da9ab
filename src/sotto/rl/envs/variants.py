"""Variants of an environment's physics: the grids for training experts (Sharma et al. 2024).

Environments written in JAX vary in their params, with a leading axis of variants. LunarLander,
which runs in Gymnasium, varies in the options of `gymnasium.make`. Experts are trained on variants,
and all of them are evaluated, logged and queried in the same default environment.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sotto.rl.envs.registry import make

LUNAR_LANDER = "LunarLander-v3"

_GRIDS: dict[str, dict[str, Float[np.ndarray, " values"]]] = {
    "CartPole-v1": {
        "gravity": np.linspace(8.75, 11.0, 10),
        "force_mag": np.linspace(9.0, 11.25, 10),
        "masscart": np.linspace(0.8, 1.25, 10),
    },
    # Both links have one length in the paper; that of the second enters no equation of motion.
    "Acrobot-v1": {
        "link_length_1": np.linspace(0.8, 1.2, 10),
        "link_mass_1": np.linspace(0.9, 1.1, 10),
        "link_mass_2": np.linspace(0.9, 1.1, 10),
    },
    "HIV-v0": {
        "rti_penalty": np.linspace(18_750.0, 21_250.0, 50),
        "pi_penalty": np.linspace(1_850.0, 2_150.0, 20),
        "efficacy_noise": np.array([0.0, 0.01]),
    },
    # The paper's 9 to 11 m/s^2; Gymnasium's default is -10.
    LUNAR_LANDER: {
        "gravity": np.linspace(-11.0, -9.0, 10),
        "wind_power": np.linspace(0.0, 5.0, 10),
        "turbulence_power": np.linspace(0.0, 0.5, 10),
    },
}


class Variants(NamedTuple):
    """Points of an environment's grid."""

    env_id: str
    names: tuple[str, ...]
    """Names of the parameters that vary."""
    values: Float[np.ndarray, "variants names"]
    """Values of the parameters, float64, in the environment's own units."""

    def select(self, rows: Int[np.ndarray, " n"]) -> "Variants":
        """Returns the points of these rows; a row may occur several times."""
        return self._replace(values=self.values[rows])

    def params(self) -> Any:
        """Returns the environment's params, each leaf of shape [variants].

        Raises:
            ValueError: the environment is not written in JAX.
        """
        default = make(self.env_id).default_params
        fields: dict[str, Array] = {
            name: jnp.full(len(self.values), value, jnp.float32)
            for name, value in vars(default).items()
        }
        varied = {
            name: jnp.asarray(column, jnp.float32)
            for name, column in zip(self.names, self.values.T, strict=True)
        }
        return type(default)(**(fields | varied))

    def options(self, row: int) -> Mapping[str, Any]:
        """Returns the options of `gymnasium.make` for one variant of LunarLander.

        Raises:
            ValueError: the environment is not LunarLander.
        """
        if self.env_id != LUNAR_LANDER:
            raise ValueError(f"{self.env_id} varies in its params, not in options; use params().")
        chosen = dict(zip(self.names, self.values[row].tolist(), strict=True))
        return {"enable_wind": True, **chosen}  # without it, Gymnasium ignores the other two


def variants(env_id: str) -> Variants:
    """Returns the whole grid: 1,000 points (HIV-v0: 2,000), the last parameter varying fastest.

    Raises:
        ValueError: the environment has no grid.
    """
    if env_id not in _GRIDS:
        raise ValueError(
            f"There are no variants of {env_id!r} to train experts on; choose {', '.join(_GRIDS)}."
        )
    grid = _GRIDS[env_id]
    points = np.stack(np.meshgrid(*grid.values(), indexing="ij"), axis=-1)
    count = math.prod(len(values) for values in grid.values())
    return Variants(env_id, tuple(grid), points.reshape(count, len(grid)))
