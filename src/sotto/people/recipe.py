"""Known environments as campaigns, for trials with simulated people.

The recipe of `sotto train dppg` gives the settings of learning. Where the recipe repeats actions, a
person's device repeats them: a step of the campaign is one decision.
"""

from typing import Any

from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.presets import preset
from sotto.people.spaces import Spaces
from sotto.rl.envs.base import AnyEnvironment
from sotto.rl.envs.registry import make


def world(env_id: str) -> AnyEnvironment:
    """Returns the environment of this name as a person of a campaign lives in it.

    Raises:
        ValueError: there is no such environment, or it is not written in JAX.
    """
    return make(env_id, _recipe(env_id).action_repeat)


def spaces(env_id: str) -> Spaces:
    """Returns the spaces of a campaign whose people live in this environment."""
    return Spaces.of(world(env_id))


def settings(env_id: str) -> dict[str, Any]:
    """Returns the settings of learning for this environment, as a campaign has them."""
    found = _recipe(env_id)
    discount = found.discount**found.action_repeat
    return vars(found) | {"action_repeat": 1, "discount": discount}


def num_updates(env_id: str) -> int:
    """Returns the number of updates of the recipe."""
    return _recipe(env_id).num_updates


def _recipe(env_id: str) -> DPPGConfig:
    return preset("sotto", env_id, target_epsilon=1.0)
