"""What is public about environments of Q-learning that protects rewards, as a table."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """What is public about an environment: where its states and its rewards are, and good nodes."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    nodes: tuple[int, ...]
    rewards: tuple[float, float]


_CARTPOLE = ((-2.4, -2.5, -0.21, -3.0), (2.4, 2.5, 0.21, 3.0))
TASKS = {
    "Line-v0": Task((0.0,), (1.0,), (11,), (0.0, 0.5)),
    "CartPole-v1": Task(*_CARTPOLE, (5, 3, 5, 3), (0.0, 1.0)),
    "CartPoleCentred-v0": Task(*_CARTPOLE, (9, 1, 9, 1), (0.0, 1.0)),
}
"""By environment; settings that are left open are taken from here."""
