"""Kickstarting as a run: where its teacher comes from, and the ledger of the teacher's answers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray, PyTree

from sotto.algorithms.kickstarting import training as kickstarting_training
from sotto.algorithms.kickstarting.config import KickstartConfig
from sotto.algorithms.kickstarting.promises import promise
from sotto.algorithms.kickstarting.teachers import ExactTeacher, Teacher
from sotto.algorithms.kickstarting.training import check_teacher
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.keys import new_key
from sotto.rl.networks import Policy
from sotto.runs.adapters import Algorithm, Chunk, evaluate_native
from sotto.runs.directory import Named, RunError
from sotto.runs.teachers import TeacherRun, teacher_policies

Connect = Callable[[str], Teacher]
"""From the URL of a service to the teacher there."""

_STUDENT = "in-process"
_EVALUATION_EPISODES = 16
_TEACHER_EPISODES = 64


def kickstart(connect: Connect | None = None, teacher_ledger: str | None = None) -> Algorithm:
    """Kickstarting as an algorithm of runs.

    Args:
        connect: to a teacher's service; needed to train with one, and for nothing else.
        teacher_ledger: where the ledger of a run of dppg is that teaches, if it is not in the run.
    """
    return _Kickstart(connect, teacher_ledger)


class _Kickstart:
    config_type = KickstartConfig
    default_policy = "last"

    def __init__(self, connect: Connect | None, teacher_ledger: str | None) -> None:
        self._connect = connect
        self._named = Named(ledger=teacher_ledger)
        self._run: TeacherRun | None = None
        self._asked: tuple[Path, bool] | None = None  # what `_run` was read for
        self._service: Teacher | None = None

    def resolved(self, config: KickstartConfig) -> KickstartConfig:
        if config.remote:
            service = self._remote(config)
            check_teacher(config, service.observation_size, service.actions, service.statement)
            return config
        teacher = self._teacher(config)
        if teacher.env_id != config.env_id:
            raise ValueError(
                f"the teacher {config.teacher} was trained in {teacher.env_id}; "
                f"give --env-id {teacher.env_id}"
            )
        config = replace(config, teacher=str(Path(config.teacher).absolute()))
        if teacher.private_training:
            return _free(config)
        if config.teacher_mechanism == "exact":
            return config
        protect = config.protect or ("training-shards" if teacher.shards else "any-two-teachers")
        if protect == "dppg" or (protect == "training-shards" and not teacher.shards):
            raise ValueError(
                f"the teacher {config.teacher} is "
                f"{'a run' if teacher.teachers == 1 else 'an experiment'} of ppo, so --protect "
                f"{protect} would not be true; training-shards needs several seeds (sotto train "
                "ppo --seeds N), and dppg a run of dppg"
            )
        mechanism = config.teacher_mechanism or "dirichlet"
        config = replace(config, teacher_mechanism=mechanism, protect=protect)
        statement, _ = promise(config, teacher)
        check_teacher(config, teacher.observation_size, teacher.actions, statement)
        return config

    def has_ledger(self, config: KickstartConfig) -> bool:
        return not config.remote and config.teacher_mechanism != "exact"

    def create_ledger(
        self, config: KickstartConfig, where: Path | str, run_id: str
    ) -> AnswerLedger:
        statement, budget = promise(config, self._teacher(config))
        ledger = AnswerLedger.create(where, run_id, statement=statement, budget=budget)
        ledger.add_student(_STUDENT)
        return ledger

    def updates(self, config: KickstartConfig) -> int:
        return config.num_updates

    def steps_per_update(self, config: KickstartConfig) -> int:
        return config.batch_size

    def initial_states(self, config: KickstartConfig, seeds: Sequence[int]) -> PyTree:
        return kickstarting_training.initial_states(config, seeds)

    def chunks(
        self,
        config: KickstartConfig,
        seeds: Sequence[int],
        ledgers: Sequence[AnswerLedger],
        states: PyTree,
        done: int,
    ) -> Iterator[Chunk]:
        teachers = self._teachers(config, ledgers, len(seeds))
        line = {"teacher_return": self._teacher_return(config)} if _shown(config) else {}
        training = kickstarting_training.Training(config, seeds, teachers, states, done)
        for progress in training:
            key = jax.random.fold_in(new_key(20260), progress.updates)
            policy = self.policies(progress.states)["last"]
            returns = self.evaluate(config, policy, key, _EVALUATION_EPISODES, True)
            metrics = dict(progress.metrics)
            answered = metrics.pop("answered")
            constant = {name: np.full(answered.shape, value) for name, value in line.items()}
            yield Chunk(
                progress.updates,
                progress.states,
                {"answered": answered},
                {"last": returns.mean(axis=1)},
                metrics | constant,
            )

    def policies(self, states: PyTree) -> dict[str, Policy]:
        return {"last": states.ppo.networks.policy}

    def evaluate(
        self,
        config: KickstartConfig,
        policy: Policy,
        key: PRNGKeyArray,
        episodes: int,
        greedy: bool,
    ) -> Float[np.ndarray, "runs episodes"]:
        return evaluate_native(config.env_id, policy, key, episodes, greedy)

    def _teachers(
        self, config: KickstartConfig, ledgers: Sequence[AnswerLedger], count: int
    ) -> list[Teacher]:
        """The teacher of each run. Runs that ask one service share what it allows its student."""
        if config.remote:
            return [self._remote(config)] * count
        teacher = self._teacher(config)
        if ledgers:
            return [teacher.answering(ledger, _STUDENT) for ledger in ledgers]
        return [ExactTeacher(teacher.exact(), teacher.actions, teacher.observation_size)] * count

    def _remote(self, config: KickstartConfig) -> Teacher:
        """The service, connected to once."""
        if self._connect is None:
            raise RunError(f"there is no connection to the teacher at {config.teacher}")
        self._service = self._service or self._connect(config.teacher)
        return self._service

    def _teacher(self, config: KickstartConfig) -> TeacherRun:
        """The teacher's run, read once; protected unless the settings say that nobody is."""
        path, protected = Path(config.teacher), config.teacher_mechanism != "exact"
        asked = (path.absolute(), protected)
        if self._run is None or self._asked != asked:
            self._run = teacher_policies(path, protected=protected, named=self._named)
            self._asked = asked
        return self._run

    def _teacher_return(self, config: KickstartConfig) -> float:
        """What students of a teacher without protection are measured by: its mean return."""
        stacked = jax.tree.map(lambda x: x[None], self._teacher(config).exact().policy)
        key = new_key(20261)
        return float(self.evaluate(config, stacked, key, _TEACHER_EPISODES, True).mean())


def _shown(config: KickstartConfig) -> bool:
    """Whether the teacher's own return may be seen: nothing of a protected one but answers is."""
    return not config.remote and config.teacher_mechanism == "exact"


def _free(config: KickstartConfig) -> KickstartConfig:
    """Answers of a run of DPPG are post-processing of what it released."""
    if config.protect not in (None, "dppg") or config.teacher_mechanism not in (None, "exact"):
        raise ValueError(
            f"the teacher {config.teacher} is a run of dppg, whose answers are free; "
            "leave out --protect and --teacher-mechanism"
        )
    return replace(config, protect="dppg", teacher_mechanism="exact")
