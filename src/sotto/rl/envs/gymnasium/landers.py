"""Steps of many LunarLanders at once, equal to Gymnasium's bit for bit.

More than half of the time of a step of Gymnasium's LunarLander is Python code around Box2D, most of
it arithmetic on single numbers. Here each lander's thrust is computed in plain Python, and the
observations and rewards of all landers together.
"""

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from jaxtyping import Int

from sotto.rl.envs.gymnasium.at_once import Taken, TimeLimits, made_by

_ENTRY = "gymnasium.envs.box2d.lunar_lander:LunarLander"
_LEFT, _MAIN, _RIGHT = 1, 2, 3  # actions; 0 fires no engine


class Landers:
    """LunarLanders with discrete actions. The caller resets the environments."""

    def __init__(self, envs: Sequence[gym.Env[Any, Any]]) -> None:
        from gymnasium.envs.box2d import lunar_lander  # needs Box2D, which is loaded already

        self._rules = lunar_lander
        self._landers: list[Any] = [env.unwrapped for env in envs]
        self._limits = TimeLimits(envs)

    def step(self, rows: Int[np.ndarray, " rows"], actions: Int[np.ndarray, " rows"]) -> Taken:
        """Steps the environments of these numbers, with one action each.

        Raises:
            ValueError: an action is not one of the four.
        """
        numbers, chosen = rows.tolist(), actions.tolist()
        if wrong := set(chosen) - {0, _LEFT, _MAIN, _RIGHT}:
            raise ValueError(f"LunarLander has the actions 0 to 3; {wrong.pop()} is none of them")
        landers = [self._landers[row] for row in numbers]
        motion = np.array(
            [self._move(one, action) for one, action in zip(landers, chosen, strict=True)]
        )
        states, awake = self._states(landers[0], motion[:, :8]), motion[:, 8] > 0
        before = np.array([one.prev_shaping for one in landers])
        shaping = _shaping(states)
        sideways = (actions == _LEFT) | (actions == _RIGHT)
        rewards = shaping - before - (actions == _MAIN) * 0.30 - sideways * 0.03
        for one, value in zip(landers, shaping.tolist(), strict=True):
            one.prev_shaping = value
        lost = np.array([one.game_over for one in landers]) | (np.abs(states[:, 0]) >= 1.0)
        rewards = np.where(awake, np.where(lost, -100.0, rewards), 100.0)
        seen = states.astype(np.float32)
        return Taken(seen, rewards, lost | ~awake, self._limits.count(numbers))

    def _move(self, env: Any, action: int) -> tuple[float, ...]:
        """Moves a lander for one step; returns what `_states` reads, and whether it is awake."""
        rules, lander = self._rules, env.lander
        if env.enable_wind and not (env.legs[0].ground_contact or env.legs[1].ground_contact):
            wind, torque = int(env.wind_idx), int(env.torque_idx)
            lander.ApplyForceToCenter((_gust(wind) * env.wind_power, 0.0), True)
            lander.ApplyTorque(_gust(torque) * env.turbulence_power, True)
            env.wind_idx, env.torque_idx = wind + 1, torque + 1
        random = env.np_random.random  # uniform(-1, 1) is -1 + 2 random(), in numpy, too
        across = (-1.0 + 2.0 * random()) / rules.SCALE
        along = (-1.0 + 2.0 * random()) / rules.SCALE
        if action == _MAIN:
            self._fire_main(lander, across, along)
        elif action in (_LEFT, _RIGHT):
            self._fire_side(lander, across, along, action - _MAIN)
        env.world.Step(1.0 / rules.FPS, 6 * 30, 2 * 30)
        position, velocity = lander.position, lander.linearVelocity
        return (
            position.x,
            position.y,
            velocity.x,
            velocity.y,
            lander.angle,
            lander.angularVelocity,
            env.legs[0].ground_contact,
            env.legs[1].ground_contact,
            lander.awake,
        )

    def _fire_main(self, lander: Any, across: float, along: float) -> None:
        rules, sine, cosine = self._rules, math.sin(lander.angle), math.cos(lander.angle)
        down = rules.MAIN_ENGINE_Y_LOCATION / rules.SCALE + 2 * across
        x = sine * down + -cosine * along
        y = -cosine * down - sine * along
        power, position = rules.MAIN_ENGINE_POWER, lander.position
        where = (position.x + x, position.y + y)
        lander.ApplyLinearImpulse((-x * power, -y * power), where, True)

    def _fire_side(self, lander: Any, across: float, along: float, direction: int) -> None:
        rules, sine, cosine = self._rules, math.sin(lander.angle), math.cos(lander.angle)
        away = 3 * along + direction * rules.SIDE_ENGINE_AWAY / rules.SCALE
        x = sine * across + -cosine * away
        y = -cosine * across - sine * away
        power, position = rules.SIDE_ENGINE_POWER, lander.position
        where = (
            position.x + x - sine * 17 / rules.SCALE,  # 17 is in Gymnasium's code, too
            position.y + y + cosine * rules.SIDE_ENGINE_HEIGHT / rules.SCALE,
        )
        lander.ApplyLinearImpulse((-x * power, -y * power), where, True)

    def _states(self, env: Any, motion: np.ndarray) -> np.ndarray:
        """Returns observations in float64 from positions, velocities and contacts of legs."""
        rules = self._rules
        x, y, right, up, angle, spin, left_leg, right_leg = motion.T
        half_width = rules.VIEWPORT_W / rules.SCALE / 2
        half_height = rules.VIEWPORT_H / rules.SCALE / 2
        return np.stack(
            [
                (x - half_width) / half_width,
                (y - (env.helipad_y + rules.LEG_DOWN / rules.SCALE)) / half_height,
                right * half_width / rules.FPS,
                up * half_height / rules.FPS,
                angle,
                20.0 * spin / rules.FPS,
                left_leg,
                right_leg,
            ],
            axis=1,
        )


def landers_of(envs: Sequence[gym.Env[Any, Any]]) -> Landers | None:
    """Returns the landers of environments that were made alike, or None if others must step them.

    Flames are bodies of Box2D where they are drawn, so rendered landers are stepped one by one.
    """
    if made_by(envs) != _ENTRY:
        return None
    first: Any = envs[0].unwrapped
    return None if first.continuous or first.render_mode is not None else Landers(envs)


def _gust(index: int) -> float:
    """Returns the strength of the wind, or of the turbulence, between -1 and 1."""
    return math.tanh(math.sin(0.02 * index) + math.sin(math.pi * 0.01 * index))


def _shaping(states: np.ndarray) -> np.ndarray:
    """Returns the potential of each state, whose differences are the rewards."""
    x, y, right, up, angle, _, left_leg, right_leg = states.T
    potential: np.ndarray = (
        -100 * np.sqrt(x * x + y * y)
        - 100 * np.sqrt(right * right + up * up)
        - 100 * np.abs(angle)
        + 10 * left_leg
        + 10 * right_leg
    )
    return potential
