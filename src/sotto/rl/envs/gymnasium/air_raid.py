"""AirRaid, the Atari game, seen through its 128 bytes of memory (Gohari et al. 2021).

The paper's AirRaid-ram-v0 is no longer registered. AirRaid-v0 with RAM observations and a limit of
10,000 steps is the same game: actions repeated 2 to 4 frames at random, sticky with probability
1/4. It runs in the Arcade Learning Environment, outside JAX.
"""

import warnings
from dataclasses import replace

import gymnasium as gym

from sotto.rl.envs.gymnasium.bridge import GymnasiumUsers
from sotto.rl.envs.gymnasium.described import Described

AIR_RAID = "AirRaid"
"""Name of the game in sotto."""

_STEPS = 10_000


def air_raid(games: int) -> tuple[GymnasiumUsers, Described]:
    """Returns so many parallel games, and their public facts.

    Observations are bytes divided by 255.

    Raises:
        ValueError: the Arcade Learning Environment is not installed.
    """
    try:
        import ale_py
    except ImportError as error:
        raise ValueError(
            "AirRaid needs the Arcade Learning Environment: pip install 'sotto[atari]'"
        ) from error
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    gym.register_envs(ale_py)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium warns of a newer version, which differs
        users = GymnasiumUsers(
            "AirRaid-v0",
            games,
            observation_scale=1 / 255,
            obs_type="ram",
            max_episode_steps=_STEPS,
        )
    # A random player earns about one point a step.
    return users, replace(users.described(), id=AIR_RAID, reward_per_step=1.0)
