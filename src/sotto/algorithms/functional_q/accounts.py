"""The ledger and the released files of one run of Q-learning.

A release is first charged, then written to its file, then used. A training that was killed after
the file was written reads the file and continues at no cost. A training that was killed between the
charge and the file has paid for a release that is lost.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sotto.privacy.errors import BudgetExceeded
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.release.functions import kept_files, release_file
from sotto.privacy.release.released import ReleasedValues


class Place(NamedTuple):
    """A release of a run that is on disk, or the next one to make.

    Attributes:
        charge: number of releases that the ledger was charged for before this one. It seeds the
            random numbers with which the steps are collected. So a release that is read from disk
            belongs to the same steps again, and a new release to new steps.
        file: file of the release; None if it is still to be made.
    """

    charge: int
    file: Path | None


@dataclass(frozen=True)
class RunAccount:
    """The place where the releases of one run are charged and kept.

    Attributes:
        ledger: ledger of the run.
        folder: folder for the files of released values. None keeps no files, so that releases do
            not survive a kill.
    """

    ledger: Ledger
    folder: Path | None = None

    @property
    def charged(self) -> int:
        """Number of releases charged so far."""
        return sum(stream.releases for stream in self.ledger.streams)

    @property
    def written(self) -> tuple[Place, ...]:
        """Releases whose values are on disk, in order."""
        files = () if self.folder is None else kept_files(self.ledger, self.folder)
        return tuple(Place(i, file) for i, file in enumerate(files) if file is not None)

    def place(self, number: int) -> Place:
        """Returns the release of this number on disk, or the next one to make."""
        written = self.written
        return written[number] if number < len(written) else Place(self.charged, None)

    def keep(self, values: np.ndarray) -> None:
        """Writes the values of the last release that was charged; they are on disk on return."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            stream = len(self.ledger.streams) - 1
            number = self.ledger.streams[stream].releases - 1
            path = release_file(self.folder, self.ledger.run_id, stream, number)
            ReleasedValues(np.array(values, np.float64)).save(path)

    @property
    def lost(self) -> bool:
        """Whether something was charged whose values were never written."""
        return self.charged > len(self.written)

    def nothing_left(self) -> BudgetExceeded:
        """Returns the error for a budget that is short because a release was lost."""
        return BudgetExceeded(
            f"run {self.ledger.run_id} was charged for a release whose values were never written: "
            "nothing was released, the charge stays, and the budget does not cover another "
            "release; start a new run, whose cost adds to this one's"
        )


@contextmanager
def explaining(accounts: Sequence[RunAccount]) -> Iterator[None]:
    """Explains an exceeded budget by the release that was lost, if there is one."""
    lost = [account for account in accounts if account.lost]
    try:
        yield
    except BudgetExceeded as error:
        if not lost:
            raise
        raise lost[0].nothing_left() from error
