"""Environments of the user's own, where real people could be met: `clinics:TestClinic-v0`.

Each plays a game of Gymnasium's, but its class is here, as that of a user would be elsewhere.
"""

from typing import ClassVar

import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.classic_control.pendulum import PendulumEnv


class Clinic(CartPoleEnv):
    """Two actions, four numbers to see. Every reset meets the person whose number it is given."""

    metadata: ClassVar = {**CartPoleEnv.metadata, "meets_person": True}


class Dosage(PendulumEnv):
    """An action that is a number. Every reset meets the person whose number it is given."""

    metadata: ClassVar = {**PendulumEnv.metadata, "meets_person": True}


class Bedside(gym.Wrapper):
    """A wrapper of the user's own around any game."""


gym.register("TestClinic-v0", entry_point="clinics:Clinic", max_episode_steps=500)
gym.register("TestDosage-v0", entry_point="clinics:Dosage", max_episode_steps=200)
