"""A trained run as a teacher: what may be said of it, and answers."""

from dataclasses import dataclass
from pathlib import Path

from sotto.algorithms.kickstarting.teachers import Ensemble, LocalTeacher
from sotto.errors import RunError
from sotto.privacy.answers.distances import Distance
from sotto.privacy.answers.ledger import AnswerLedger


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
