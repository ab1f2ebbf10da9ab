"""Trainings of learning curves that are kept as they finish (`kept_jobs`).

Teachers come first, since students read their policies.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp

from sotto.algorithms.baselines.ppo import PPOConfig
from sotto.algorithms.kickstarting.config import KickstartConfig
from sotto.algorithms.kickstarting.teachers import Ensemble
from sotto.experiments import curve_files, kept_jobs
from sotto.experiments.gohari2021.arms import Arm
from sotto.experiments.gohari2021.training import blank_policy, train
from sotto.experiments.kept_jobs import Say
from sotto.experiments.learning_curves import Curve
from sotto.rl.envs.gymnasium.air_raid import AIR_RAID
from sotto.rl.networks import Policy

_FORMAT = 1  # of what is kept: raise it when training or evaluation changes
_STARTING = 20.0  # seconds to import and compile
_PER_UPDATE, _PER_HOSTED_UPDATE = 0.02, 0.25  # on one core; AirRaid plays on the host
_PER_SEED, _PER_ROW = 0.006, 6e-6  # more for every update, and for every answer it looks at


@dataclass(frozen=True)
class Job:
    """One arm, trained with some seeds side by side.

    Attributes:
        folder: where results are kept.
        arm: which curve.
        config: its settings.
        seeds: of the runs.
        teachers: jobs whose final policies the student asks.
        shards: the mean of all of them teaches every seed; else teacher i teaches seed i.
    """

    folder: Path
    arm: Arm
    config: PPOConfig
    seeds: tuple[int, ...]
    teachers: tuple["Job", ...] = ()
    shards: bool = False

    @cached_property
    def path(self) -> Path:
        """Of the curve; the name holds everything it depends on."""
        teachers = [teacher.path.name for teacher in self.teachers]
        what = [_FORMAT, self.arm.name, asdict(self.config), self.seeds, teachers, self.shards]
        digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]
        return self.folder / f"{self.config.env_id}-{self.arm.name}-{digest}.parquet"

    @property
    def done(self) -> bool:
        """Whether it is kept: the curve is written last."""
        return self.path.exists()

    @property
    def seconds(self) -> float:
        """About how long it takes."""
        config = self.config
        rows = 0
        if isinstance(config, KickstartConfig):
            rows = config.queries_per_update * config.remember_updates
        update = _PER_HOSTED_UPDATE if config.env_id == AIR_RAID else _PER_UPDATE
        update += len(self.seeds) * (_PER_SEED + _PER_ROW * rows)
        return _STARTING + config.num_updates * update

    def curve(self) -> Curve:
        """The curve that was kept."""
        return curve_files.read(self.path)

    def policies(self) -> Policy:
        """The final policies that were kept, with a leading axis of seeds."""
        blank = blank_policy(self.config.env_id, self.config.hidden, len(self.seeds))
        policies: Policy = eqx.tree_deserialise_leaves(self._policies, blank)
        return policies

    @property
    def _policies(self) -> Path:
        return self.path.with_suffix(".eqx")

    def train(self) -> None:
        """Trains, and keeps the result."""
        curve, policies = train(
            self.config, self.arm, self.seeds, self._ensembles(), kept_jobs.reporting(str(self))
        )
        if self.arm.role == "teacher":
            partial = self._policies.with_suffix(".partial-policies")
            eqx.tree_serialise_leaves(partial, policies)
            partial.replace(self._policies)
        curve_files.write(self.path, [curve])

    def _ensembles(self) -> list[Ensemble]:
        """The teacher of each seed."""
        if not self.teachers:
            return []
        policies = together([teacher.policies() for teacher in self.teachers])
        if self.shards:
            return [Ensemble(policies)] * len(self.seeds)
        return [
            Ensemble(jax.tree.map(lambda x, i=index: x[i : i + 1], policies))
            for index in range(len(self.seeds))
        ]

    def __str__(self) -> str:
        seeds = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        return f"{self.config.env_id} {self.arm.name}, {seeds}"


def together(policies: Sequence[Policy]) -> Policy:
    """Policies of several jobs, as if they were one's."""
    joined: Policy = jax.tree.map(lambda *parts: jnp.concatenate(parts), *policies)
    return joined


def train_all(jobs: Sequence[Job], workers: int, say: Say) -> None:
    """Trains what is not kept, teachers first.

    Args:
        jobs: students need their teachers among them.
        workers: processes; 1 trains in this one.
        say: told beforehand how long it takes, and then what is done.
    """
    alone = [job for job in jobs if not job.teachers]
    asking = [job for job in jobs if job.teachers]
    kept_jobs.train_all([alone, asking], workers, say)
