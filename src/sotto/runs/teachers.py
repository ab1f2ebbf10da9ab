"""A trained run as a teacher: its policies, and what may be said of whom they were trained on."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from sotto.algorithms.kickstarting.teachers import Ensemble, LocalTeacher, RowsFunction
from sotto.privacy.answers.distances import Distance
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.certificates.derive import derive, verify
from sotto.rl.envs.registry import from_data
from sotto.rl.networks import Policy
from sotto.runs import states
from sotto.runs.adapters import DPPG_RUNS, Algorithm
from sotto.runs.baselines import PPO_RUNS
from sotto.runs.directory import (
    NOTHING_NAMED,
    AlgorithmName,
    Experiment,
    Named,
    RunError,
    open_experiment,
)

_TEACHERS: dict[AlgorithmName, Algorithm] = {"dppg": DPPG_RUNS, "ppo": PPO_RUNS}


@dataclass(frozen=True)
class TeacherRun:
    """A run, or the runs of several seeds, that answers observations with rows of probabilities.

    A protected teacher offers answers and public facts, and neither rows nor returns.

    Attributes:
        path: of the run.
        env_id: the environment it was trained in.
        private_training: a DPPG run whose certificate was verified. Its policy is released, so
            what it answers costs nobody anything.
        shards: the seeds are PPO trainings of their own, which share no data.
        protected: whether nothing of it may leave but answers.
    """

    path: Path
    env_id: str
    private_training: bool
    shards: bool
    protected: bool
    _ensemble: Ensemble

    def answering(self, ledger: AnswerLedger, student: str) -> LocalTeacher:
        """The teacher of one student, all of whose answers are noisy and charged to the ledger."""
        return LocalTeacher(self._ensemble, ledger, student)

    def exact(self) -> Ensemble:
        """The mean over seeds: its rows without noise, and its policy.

        Raises:
            RunError: the teacher is protected.
        """
        if self.protected:
            raise RunError(f"the teacher {self.path} is protected: nothing leaves it but answers")
        return self._ensemble

    @property
    def actions(self) -> int:
        """Length of a row."""
        return self._ensemble.actions

    @property
    def observation_size(self) -> int:
        """Length of an observation."""
        return self._ensemble.observation_size

    @property
    def teachers(self) -> int:
        """How many policies the mean is taken over."""
        return self._ensemble.teachers

    @property
    def lipschitz(self) -> float:
        """Certified L2 Lipschitz constant of the mean row, input scaling included."""
        return self._ensemble.lipschitz

    @property
    def rounding(self) -> float:
        """How far rounding moves a row at most, for observations that are not refused."""
        return self._ensemble.rounding

    def moves_within(self, distance: Distance) -> bool:
        """Whether rows are proved to move by no more than a distance says."""
        return self._ensemble.moves_within(distance)


def rows_to_serve(teacher: TeacherRun) -> RowsFunction:
    """The teacher's own rows, for a service, which adds noise and charges before they leave."""
    return teacher._ensemble


def teacher_policies(
    path: Path, *, protected: bool = True, named: Named = NOTHING_NAMED
) -> TeacherRun:
    """The policies of a finished or interrupted run, as a teacher.

    Args:
        path: of the run.
        protected: whether nothing of it may leave but answers. A run of DPPG is released already.
        named: what its settings may name outside of its directory.

    Raises:
        RunError: no run, no checkpoint, a run of kickstart or without a finite set of actions, or
            a DPPG run whose certificate is not proved.
        PrivacyError: a DPPG run's ledger is damaged or another run's.
    """
    experiment = open_experiment(path, named)
    settings = experiment.settings
    algorithm = _TEACHERS.get(settings.algorithm)
    if algorithm is None:
        raise RunError(f"{path} is a run of {settings.algorithm}; a teacher is one of ppo or dppg")
    private = settings.algorithm == "dppg"
    if private:
        _verify(experiment)
    from_data(settings.config.get("env_id", ""), path / "config.json", named.env_id)
    config = TypeAdapter(algorithm.config_type).validate_python(settings.config)
    trained = states.load(algorithm, config, experiment, states.last_checkpoint(experiment))
    policy = algorithm.policies(trained)[algorithm.default_policy]
    if not isinstance(policy, Policy):
        raise RunError(
            f"{path} cannot be a teacher: its policy has inputs standardised by released "
            "statistics, for which no distance is certified; train it without them"
        )
    try:
        ensemble = Ensemble(policy)
    except ValueError as error:
        raise RunError(f"{path} cannot be a teacher: {error}") from error
    return TeacherRun(
        path=path,
        env_id=config.env_id,
        private_training=private,
        shards=not private and len(experiment.runs) > 1,
        protected=protected and not private,
        _ensemble=ensemble,
    )


def _verify(experiment: Experiment) -> None:
    """A DPPG run answers freely only while its certificate is proved and true."""
    for run in experiment.runs:
        ledger = run.open_ledger()
        found = verify(run.certificate, ledger)
        if found.status == "false":
            raise RunError(
                f"the teacher's certificate at {run.certificate} is not true: {found.mismatches[0]}"
            )
        status = derive(ledger).status
        if status != "proved":
            raise RunError(
                f"the teacher's certificate at {run.certificate} has status {status!r}, so its "
                "answers are not free; train it so that it is proved"
            )
