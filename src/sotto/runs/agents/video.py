"""Videos of one episode of a policy, as GIF.

Gymnasium plays and draws the episode. An environment written in JAX can be drawn if Gymnasium has
one of the same name.
"""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from PIL import Image

from sotto.keys import new_key
from sotto.rl.envs.gymnasium import bridge
from sotto.rl.envs.gymnasium.bridge import GymnasiumUsers
from sotto.rl.envs.gymnasium.specs import spec_of
from sotto.rl.envs.registry import is_native
from sotto.rl.rollout import Actor
from sotto.runs.directory import RunSettings

_FRAMES_PER_SECOND = 30  # if the environment does not state it
_FASTEST = 50  # frames per second; programs show no more


def record(settings: RunSettings, policy: Actor, seed: int, greedy: bool, file: Path) -> float:
    """Plays one episode and writes its pictures.

    Args:
        settings: settings of the run.
        policy: policy of one run.
        seed: seed of the episode and of sampled actions.
        greedy: whether actions are the policy's mode; otherwise they are sampled.
        file: file that ends in .gif; it is replaced if it exists.

    Returns:
        The episode's return.

    Raises:
        ValueError: the file has another ending, the environment meets real people, it cannot be
            drawn, or a package is missing. Nothing is written.
    """
    if file.suffix != ".gif":
        raise ValueError(f"a video is a GIF file; give a name that ends in .gif, not {file.name}")
    env_id = settings.config.get("env_id")
    if env_id is None:
        raise ValueError(f"a run of {settings.algorithm} has no environment that could be drawn")
    if settings.population == "real" and not is_native(env_id):
        raise ValueError(f"{env_id} meets real people, who must not be filmed")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")  # the renderer also looks for a sound card
    pause = 1000 / min(_FASTEST, _pace(env_id))
    act = partial(bridge.greedy if greedy else bridge.sampled, policy)
    with GymnasiumUsers(env_id, 1, render_mode="rgb_array") as users:
        try:
            pictures, total = _play(users.film(act, new_key(seed), seed))
        except gym.error.DependencyNotInstalled as error:
            raise ValueError(
                f"drawing {env_id} needs a package that is not installed: "
                "pip install 'sotto[video]'"
            ) from error
    first, *others = (Image.fromarray(picture) for picture in pictures)
    first.save(file, save_all=True, append_images=others, duration=pause, loop=0)
    return total


def _play(film: Iterator[tuple[np.ndarray, float]]) -> tuple[list[np.ndarray], float]:
    """Returns the pictures, and the sum of the rewards."""
    pictures, total = [], 0.0
    for picture, reward in film:
        pictures.append(picture)
        total += reward
    return pictures, total


def _pace(env_id: str) -> float:
    """Returns the frames per second of an environment; it raises if it cannot be drawn."""
    try:
        env: Any = gym.make(spec_of(env_id), disable_env_checker=True)
    except ValueError as error:
        if is_native(env_id):
            raise ValueError(f"{env_id} has no pictures") from error
        raise
    metadata = env.metadata
    env.close()
    if "rgb_array" not in metadata.get("render_modes", ()):
        raise ValueError(f"{env_id} has no pictures: its environment has no mode rgb_array")
    return float(metadata.get("render_fps", _FRAMES_PER_SECOND))
