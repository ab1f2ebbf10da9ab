"""Trained run as a teacher, with its public facts and its answers."""

from dataclasses import dataclass
from pathlib import Path

from sotto.algorithms.kickstarting.teachers import Ensemble, LocalTeacher
from sotto.errors import RunError
from sotto.privacy.answers.distances import Distance
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.units import PopulationKind


@dataclass(frozen=True)
class TeacherRun:
    """Run, or runs of several seeds, that answer observations with rows of probabilities.

    A protected teacher gives answers and public facts, but neither rows nor returns.

    Attributes:
        path: directory of the run.
        env_id: environment in which it was trained.
        private_training: whether it is a DPPG run with a verified certificate. Its policy is then
            released, so that answers cost no more privacy.
        shards: whether the seeds are separate PPO trainings, which share no data.
        protected: whether it only gives answers.
        population: whether the people of its training are simulated or real: those of a DPPG run's
            ledger, and those of a simulator. None: only the user can know.
    """

    path: Path
    env_id: str
    private_training: bool
    shards: bool
    protected: bool
    population: PopulationKind | None
    _ensemble: Ensemble

    def answering(self, ledger: AnswerLedger, student: str) -> LocalTeacher:
        """Returns a teacher for one student. All answers are noisy, and charged to the ledger."""
        return LocalTeacher(self._ensemble, ledger, student)

    def exact(self) -> Ensemble:
        """Returns the mean over seeds, which has rows without noise, and a policy.

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
        """Number of policies over which the mean is taken."""
        return self._ensemble.teachers

    @property
    def lipschitz(self) -> float:
        """Certified L2 Lipschitz constant of the mean row, input scaling included."""
        return self._ensemble.lipschitz

    @property
    def rounding(self) -> float:
        """Bound on the distance by which rounding moves a row, for accepted observations."""
        return self._ensemble.rounding

    def moves_within(self, distance: Distance) -> bool:
        """Returns whether rows are proved to move by at most the stated distance."""
        return self._ensemble.moves_within(distance)
