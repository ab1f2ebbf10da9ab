"""What a training-set certificate costs the student: speed-up against epsilon.

Gohari et al. protect observations, not the people a teacher learnt from. Here the teacher is the
mean of many small teachers, each trained on people of its own, so that one person changes one of
them: its answers have a certificate about training data, at any epsilon, with Dirichlet, truncated
Dirichlet or Gaussian noise.
"""

import functools
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp

from sotto.algorithms.baselines.ppo import PPOConfig
from sotto.algorithms.kickstarting.config import KickstartConfig
from sotto.algorithms.kickstarting.promises import CONCENTRATIONS, STDDEVS, promise
from sotto.algorithms.kickstarting.teachers import Ensemble
from sotto.experiments.gohari2021.arms import Arm, ppo_config
from sotto.keys import new_key
from sotto.rl.envs.base import Discrete
from sotto.rl.envs.registry import make
from sotto.rl.networks import Policy

Mechanism = Literal["dirichlet", "truncated-dirichlet", "gaussian-policy"]
NativeName = Literal["CartPole-v1", "Acrobot-v1"]
MECHANISMS: tuple[Mechanism, ...] = ("gaussian-policy", "dirichlet", "truncated-dirichlet")
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
DELTA = 1e-5
TEACHERS = 200
SHARD_SEED = 1_000_000
"""Seed of the first small teacher; students have seeds 0, 1, 2, ..., and so people of their own."""

_PER_UPDATE, _ASKING_UPDATES = 128, 4
_FLOOR_SHARE = 0.8
_THRESHOLD = 0.03


@dataclass(frozen=True)
class Point:
    """One certificate: a mechanism, and the epsilon it is calibrated to."""

    mechanism: Mechanism
    epsilon: float

    @property
    def arm(self) -> Arm:
        """Its curve."""
        return Arm(f"{self.mechanism}-epsilon-{self.epsilon:g}", f"epsilon {self.epsilon:g}")


SHARD = Arm("shard", "small teachers", "teacher")
PLAIN = Arm("plain", "student alone", "student")
EXACT = Arm("exact-shards", "exact answers of the mean")


def points(epsilons: tuple[float, ...]) -> list[Point]:
    """All certificates, mechanism by mechanism."""
    return [Point(mechanism, epsilon) for mechanism in MECHANISMS for epsilon in epsilons]


def shard_config(env_id: NativeName, scale: float) -> PPOConfig:
    """PPO of a small teacher."""
    return replace(ppo_config(env_id, scale), hidden=(64, 64))


def plain_config(env_id: NativeName, scale: float) -> PPOConfig:
    """PPO of a student that asks nobody."""
    return replace(ppo_config(env_id, scale), hidden=(32, 32))


def student_config(env_id: NativeName, scale: float, point: Point | None) -> KickstartConfig:
    """A student of the mean, which asks little, early, and remembers.

    Few answers with little noise each; the floor is large for Dirichlet noise, whose cost it
    bounds, small for the truncated one, which its threshold protects, and none for Gaussian noise.
    All of this is chosen from public parameters alone.

    Args:
        env_id: the environment.
        scale: of the number of environment steps.
        point: the certificate; None for exact answers, which protect nobody.
    """
    chosen: dict[str, Any] = asdict(plain_config(env_id, scale)) | {
        "teacher": "mean of small teachers",
        "queries_per_update": _PER_UPDATE,
        "kickstart_weight": 5.0,
        "radius_factor": 0.0,
    }
    if point is None:
        return KickstartConfig(**chosen, teacher_mechanism="exact", stop_after=_ASKING_UPDATES)
    action = make(env_id).action
    assert isinstance(action, Discrete)
    floors: dict[Mechanism, float] = {
        "gaussian-policy": 0.0,
        "dirichlet": _FLOOR_SHARE / action.n,
        "truncated-dirichlet": 0.05,
    }
    return KickstartConfig(
        **chosen,
        teacher_mechanism=point.mechanism,
        protect="training-shards",
        floor=floors[point.mechanism],
        threshold=_THRESHOLD,
        queries=_PER_UPDATE * _ASKING_UPDATES,
        target_epsilon=point.epsilon,
        delta=DELTA,
    )


@functools.cache
def least_epsilon(env_id: NativeName, scale: float, mechanism: Mechanism, teachers: int) -> float:
    """What all answers cost with the most noise there is: not zero for Dirichlet noise."""
    config = student_config(env_id, scale, Point(mechanism, 1.0))  # the noise is given below
    noisiest: dict[str, Any] = {"target_epsilon": None}
    if mechanism == "gaussian-policy":
        noisiest["noise_stddev"] = STDDEVS[1]
    else:
        noisiest["concentration"] = CONCENTRATIONS[0]
    env = make(env_id)
    policy = Policy(env.observation_size, env.action, (1,), new_key(0))
    anybody = Ensemble(jax.tree.map(lambda x: jnp.stack([x] * teachers), policy))
    statement, _ = promise(replace(config, **noisiest), anybody)
    return statement.planned_epsilon(DELTA)
