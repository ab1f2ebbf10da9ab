"""Where one run of Q-learning is charged, and what a killed training finds of its releases.

A release is charged, then written to its file, then used. A training that was killed later than
that finds the file and goes on with it at no cost. One killed in between has paid for nothing.
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
    """One of a run's releases that were written, or the one to make next.

    Attributes:
        charge: how many releases the ledger was charged before it. Steps are collected with random
            numbers of this one: the same ones for a release that is found again, new ones for a new
            one.
        file: None: it is still to be made.
    """

    charge: int
    file: Path | None


@dataclass(frozen=True)
class Account:
    """Where releases of one run are charged and kept.

    Attributes:
        ledger: of the run.
        folder: for files of released values; None keeps nothing, and what a kill loses is lost.
    """

    ledger: Ledger
    folder: Path | None = None

    @property
    def charged(self) -> int:
        """Releases charged so far."""
        return sum(stream.releases for stream in self.ledger.streams)

    @property
    def written(self) -> tuple[Place, ...]:
        """Releases whose values are on disk, in order."""
        files = () if self.folder is None else kept_files(self.ledger, self.folder)
        return tuple(Place(i, file) for i, file in enumerate(files) if file is not None)

    def place(self, number: int) -> Place:
        """The `number`-th release that was written, or else the one to make next."""
        written = self.written
        return written[number] if number < len(written) else Place(self.charged, None)

    def keep(self, values: np.ndarray) -> None:
        """Writes what the ledger was charged for last; when it returns, it is on disk."""
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
        """What to say where the budget is short because a release was lost."""
        return BudgetExceeded(
            f"run {self.ledger.run_id} was charged for a release whose values were never written: "
            "nothing was released, the charge stays, and the budget does not cover another "
            "release; start a new run, whose cost adds to this one's"
        )


@contextmanager
def explaining(accounts: Sequence[Account]) -> Iterator[None]:
    """Says so where the budget does not cover a release because an earlier one was lost."""
    lost = [account for account in accounts if account.lost]
    try:
        yield
    except BudgetExceeded as error:
        if not lost:
            raise
        raise lost[0].nothing_left() from error
