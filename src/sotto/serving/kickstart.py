"""Algorithm `kickstart` of `sotto train`: a student, its teacher, and the ledger of the answers.

It is here because its teacher is a run directory or a service, and algorithms import neither.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from sotto.algorithms.base import Algorithm, AnyLedger, Progress
from sotto.algorithms.kickstarting import gymnasium, student, training
from sotto.algorithms.kickstarting.config import KickstartConfig
from sotto.algorithms.kickstarting.promises import promise
from sotto.algorithms.kickstarting.teacher_run import TeacherRun
from sotto.algorithms.kickstarting.teachers import ExactTeacher, Teacher
from sotto.algorithms.kickstarting.training import check_teacher
from sotto.errors import RunError
from sotto.keys import new_key
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.units import PopulationKind, whose_people
from sotto.rl.envs.gymnasium.described import is_simulator
from sotto.rl.envs.registry import is_native
from sotto.rl.networks import Policy
from sotto.runs.agents.teachers import teacher_policies
from sotto.runs.directory import Named
from sotto.trees import single

_STUDENT = "in-process"
_OF_TEACHER = "see its teacher's certificate"  # status of a run that costs nothing more
_EVALUATION_EPISODES = 16
_GYMNASIUM_EVALUATION_EPISODES = 4
_TEACHER_EPISODES = 64


@dataclass(frozen=True)
class KickstartOptions:
    """Options of a student, which are not settings."""

    teacher_ledger: str | None = None
    """Ledger of a teacher that is a run of dppg, if it is not in that run's directory."""


class Kickstart(Algorithm[KickstartConfig]):
    """Trains a student that asks a private teacher (Gohari et al. 2021). The student learns by PPO
    and follows the teacher's noisy answers, as far as they are likely to be right.

    The teacher is a trained run, or a service at a URL. Every answer is charged before it is
    given. The noise is calibrated such that all answers together cost at most --target-epsilon.
    Several seeds ask the same teacher, each with its own ledger, so their costs add up.
    CartPole-v1 takes about a minute on two cores, and 30 seeds take a few minutes.

    Examples:
      sotto train ppo --seeds 200 --out runs/shards
      sotto train kickstart --teacher runs/shards --teacher-mechanism gaussian-policy \\
        --target-epsilon 8 --out runs/student
      sotto train kickstart --teacher runs/ppo --schedule vanishing --out runs/paper
      sotto train kickstart --teacher runs/ppo --teacher-mechanism exact --out runs/plain
      SOTTO_TEACHER_TOKEN=... sotto train kickstart --teacher https://HOST --out runs/x
    """

    name, summary = "kickstart", "a student that asks a private teacher"
    config_type = KickstartConfig
    options_type = KickstartOptions

    def __init__(self) -> None:
        self._run: TeacherRun | None = None
        self._asked: tuple[Path, bool, str] | None = None  # what `_run` was opened with
        self._service: Teacher | None = None

    def use(
        self, options: KickstartOptions, config: KickstartConfig, named: Mapping[str, str]
    ) -> None:
        """Refuses to send the user's token to a service that only a file names."""
        self.teacher_ledger = options.teacher_ledger
        if config.remote and named.get("teacher") != config.teacher:
            raise RunError(
                f"config.json names the teacher at {config.teacher}, and your token would be sent "
                f"there; give --teacher {config.teacher} again if you trust that"
            )

    def resolved(self, config: KickstartConfig) -> KickstartConfig:
        """Returns the settings with the teacher's path, mechanism and protection filled in."""
        if config.remote:
            service = self._remote(config)
            check_teacher(config, service.observation_size, service.actions, service.statement)
            _require_simulated(config, _met_by_student(config), "train students in a simulator")
            if service.statement is None:
                return config
            # The service knows whose people are behind its teacher. They are the run's.
            return replace(config, population=service.statement.population)
        teacher = self._teacher(config)
        if teacher.env_id != config.env_id:
            raise ValueError(
                f"the teacher {config.teacher} was trained in {teacher.env_id}; "
                f"give --env-id {teacher.env_id}"
            )
        instead = (
            f"use {config.teacher} itself, whose policy is private"
            if teacher.private_training
            else "serve the teacher with sotto serve teacher, and train students in a simulator"
        )
        people = _require_simulated(config, teacher.population, instead)
        config = replace(config, teacher=str(Path(config.teacher).absolute()), population=people)
        if teacher.private_training:
            return _free(config)
        if config.teacher_mechanism == "exact":
            _without_target(config)
            return config
        protect = config.protect or ("training-shards" if teacher.shards else "any-two-teachers")
        if protect == "dppg" or (protect == "training-shards" and not teacher.shards):
            raise ValueError(
                f"the teacher {config.teacher} is "
                f"{'one run' if teacher.teachers == 1 else 'several seeds'} of ppo, so --protect "
                f"{protect} would not be true; training-shards needs several seeds (sotto train "
                "ppo --seeds N), and dppg needs a run of dppg"
            )
        mechanism = config.teacher_mechanism or "dirichlet"
        config = replace(config, teacher_mechanism=mechanism, protect=protect)
        statement, _ = promise(config, teacher)
        check_teacher(config, teacher.observation_size, teacher.actions, statement)
        return config

    def has_ledger(self, config: KickstartConfig) -> bool:
        """Returns whether the teacher is charged here. A service keeps its own ledger."""
        return not config.remote and config.teacher_mechanism != "exact"

    def population(self, config: KickstartConfig) -> PopulationKind:
        """Returns whether the people of the run are simulated or real: those behind the teacher.

        Those whom the student meets are simulated. Runs of earlier versions do not say it; their
        people are simulated.
        """
        return config.population or "simulated"

    def has_sums(self, config: KickstartConfig) -> bool:
        """Returns False: a teacher's answers are noised one by one."""
        del config
        return False

    def create_ledger(
        self, config: KickstartConfig, where: Path | str, run_id: str
    ) -> AnswerLedger:
        """Creates the ledger of the teacher's answers to this student, with the planned budget."""
        statement, budget = promise(config, self._teacher(config))
        ledger = AnswerLedger.create(where, run_id, statement=statement, budget=budget)
        ledger.add_student(_STUDENT)
        return ledger

    def open_ledger(self, where: Path | str, run_id: str) -> AnyLedger:
        """Opens the ledger of an earlier run's answers."""
        return AnswerLedger.open(where, run_id)

    def without_ledger(self, config: KickstartConfig) -> tuple[str, str]:
        """Returns a status and its reason, which say which certificate covers the run."""
        if config.remote:
            return (
                _OF_TEACHER,
                "The teacher is a service, which keeps the ledger. Its own certificate says what "
                "its answers cost and protect.",
            )
        if config.protect == "dppg":
            return (
                _OF_TEACHER,
                "The teacher was trained by DPPG. Its answers are post-processing of its releases, "
                f"and cost nothing more. See the certificate of its teacher, {config.teacher}.",
            )
        return super().without_ledger(config)

    def shared(self, config: KickstartConfig) -> str | None:
        """Returns that all seeds ask the same teacher."""
        del config
        return "are students of the same teacher"

    def initial_states(self, config: KickstartConfig, seeds: Sequence[int]) -> PyTree:
        """Returns students that have asked nothing."""
        made = training if is_native(config.env_id) else gymnasium
        return made.initial_states(config, seeds)

    def train(
        self,
        config: KickstartConfig,
        seeds: Sequence[int],
        ledgers: Sequence[AnswerLedger],
        states: PyTree,
        done: int,
        folders: Sequence[Path],
    ) -> Iterator[Progress]:
        """Makes the remaining updates. Answers are charged before they are given."""
        del folders
        teachers = self._teachers(config, ledgers, len(seeds))
        line = {"teacher_return": self._teacher_return(config)} if _shown(config) else {}
        native = is_native(config.env_id)
        episodes = _EVALUATION_EPISODES if native else _GYMNASIUM_EVALUATION_EPISODES
        if not native:  # the environments start new episodes, whose returns start at zero
            fresh = jnp.zeros_like(states.ppo.returns_so_far)
            states = states._replace(ppo=states.ppo._replace(returns_so_far=fresh))
        lanes = nullcontext(student.collect) if native else gymnasium.collecting(config, seeds)
        with lanes as collect:
            for progress in training.StudentTraining(
                config, seeds, teachers, states, done, collect
            ):
                returns = self.mean_return(config, progress.states, progress.updates, episodes)
                shape = progress.released["answered"].shape
                constant = {name: np.full(shape, value) for name, value in line.items()}
                yield replace(
                    progress, evaluation={"last": returns}, simulated=progress.simulated | constant
                )

    def policies(self, states: PyTree) -> dict[str, Policy]:
        """Returns the last policy of the student."""
        return {"last": states.ppo.networks.policy}

    def _teachers(
        self, config: KickstartConfig, ledgers: Sequence[AnswerLedger], count: int
    ) -> list[Teacher]:
        """Returns the teacher of each run. Runs that ask one service share its student's budget."""
        if config.remote:
            return [self._remote(config)] * count
        teacher = self._teacher(config)
        if ledgers:
            return [teacher.answering(ledger, _STUDENT) for ledger in ledgers]
        return [ExactTeacher(teacher.exact())] * count

    def connect(self, url: str) -> Teacher:
        """Returns the teacher at a URL, with the token from the environment."""
        # needs the extra `serving`
        from sotto.serving.client import RemoteTeacher, token_from_environment

        return RemoteTeacher(url, token_from_environment())

    def _remote(self, config: KickstartConfig) -> Teacher:
        """Returns the service, after connecting to it once."""
        self._service = self._service or self.connect(config.teacher)
        return self._service

    def _teacher(self, config: KickstartConfig) -> TeacherRun:
        """Returns the teacher's run, which is read once. Only an exact one is not protected."""
        path, protected = Path(config.teacher), config.teacher_mechanism != "exact"
        asked = (path.absolute(), protected, config.env_id)
        if self._run is None or self._asked != asked:
            # The user has named the environment, so its module may be imported.
            allowed = Named(ledger=self.teacher_ledger, env_id=config.env_id)
            self._run = teacher_policies(path, protected=protected, named=allowed)
            self._asked = asked
        return self._run

    def _teacher_return(self, config: KickstartConfig) -> float:
        """Returns the mean return of a teacher without protection, to compare students with."""
        stacked = single(self._teacher(config).exact().policy)
        key = new_key(20261)
        return float(self.evaluate(config, stacked, key, _TEACHER_EPISODES, True).mean())


def _met_by_student(config: KickstartConfig) -> PopulationKind | None:
    """Returns whose people a student of a service meets. None: only the user can know.

    An environment of people who are said to be real is not made, which could tell of them.
    """
    if config.population == "real" and not is_native(config.env_id):
        return None
    return "simulated" if is_simulator(config.env_id) else None


def _require_simulated(
    config: KickstartConfig, known: PopulationKind | None, instead: str
) -> PopulationKind:
    """Returns "simulated", if the people whom a student meets are.

    Args:
        config: settings.
        known: the answer that the program knows by itself. None: it knows none.
        instead: words on what to do where they are real.

    Raises:
        ValueError: they are real, or nobody says it.
    """
    people = whose_people(f"in {config.env_id}", known, config.population)
    if people == "real":
        raise ValueError(
            f"the people in {config.env_id} are real, and a student would learn from those "
            f"whom it meets without privacy; {instead}"
        )
    return people


def _shown(config: KickstartConfig) -> bool:
    """Returns whether the teacher's own return may be shown. A protected one only gives answers."""
    return not config.remote and config.teacher_mechanism == "exact"


def _free(config: KickstartConfig) -> KickstartConfig:
    """Returns settings for a run of DPPG, whose answers are post-processing of its releases."""
    if config.protect not in (None, "dppg") or config.teacher_mechanism not in (None, "exact"):
        raise ValueError(
            f"the teacher {config.teacher} is a run of dppg, whose answers are free; "
            "leave out --protect and --teacher-mechanism"
        )
    _without_target(config)
    return replace(config, protect="dppg", teacher_mechanism="exact")


def _without_target(config: KickstartConfig) -> None:
    """Refuses a target that exact answers would not keep."""
    if config.target_epsilon is not None:
        raise ValueError("exact answers get no noise, so leave out --target-epsilon")
