"""Marks: the last ledger entry at the time when a file of a run was written.

Every checkpoint, line of metrics and certificate contains the last entry of the ledger, and its
number of charges, at the time of writing. So does a file that a service writes with every answer.
A ledger without that entry is older than the file: it was restored from a backup, and later charges
are missing. `refuse_older` detects this. `Run.open_ledger` calls it, so that such a ledger is never
used.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from sotto.errors import RunError
from sotto.frozen import FrozenModel
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.errors import LedgerOlder
from sotto.privacy.ledger.ledger import Ledger

FILE = "ledger.json"
"""File name of the mark in a checkpoint's folder, and in the directory of a service."""


class Mark(FrozenModel):
    """An entry of a ledger.

    Attributes:
        head_hash: hash of the entry, in hexadecimal.
        charges: number of releases, or of a teacher's answered rows, that are charged up to it.
    """

    head_hash: str = Field(pattern="^[0-9a-f]{64}$")
    charges: int = Field(ge=0)


def mark(ledger: Ledger | AnswerLedger) -> Mark:
    """Returns the mark of the ledger's present end."""
    if isinstance(ledger, AnswerLedger):
        answered = sum(one.answered for one in ledger.students())
        return Mark(head_hash=ledger.head_hash, charges=answered)
    charges = sum(stream.releases for stream in ledger.streams)
    return Mark(head_hash=ledger.head_hash, charges=charges)


def refuse_older(run: Path, ledger: Ledger | AnswerLedger) -> None:
    """Refuses a ledger that is older than a file of its run.

    Args:
        run: run directory.
        ledger: ledger of the run.

    Raises:
        LedgerOlder: a file is newer than the ledger; the message names it.
        RunError: a mark or the certificate cannot be read.
        LedgerUnavailable: the ledger cannot be read.
    """
    for what, one in _marks(run):
        if not ledger.holds(one.head_hash):
            raise LedgerOlder(f"the ledger of {run}", what, one.charges, mark(ledger).charges)


def _marks(run: Path) -> Iterator[tuple[str, Mark]]:
    """Yields the files with marks, and their marks; files of earlier versions may have none."""
    for path in sorted(run.glob(f"checkpoints/*/{FILE}"), reverse=True):
        if path.parent.name.isdecimal():
            yield f"the checkpoint {path.parent}", _read(path, f"remove {path.parent}")
    if (path := run / FILE).exists():
        yield f"the mark {path}", _read(path, "remove it if the ledger is the newest")
    # A line of metrics comes after its checkpoint, and a certificate before it.
    if (found := _last_line(run / "metrics.jsonl")) is not None:
        yield f"the last line of {run / 'metrics.jsonl'}", found
    if (path := run / "certificate.json").exists():
        yield f"the certificate {path}", of_certificate(path)


def of_certificate(path: Path) -> Mark:
    """Returns the mark of a certificate's file.

    Raises:
        RunError: it is damaged.
    """
    return _read(path, "remove it if the ledger is the newest")


def _read(path: Path, remedy: str) -> Mark:
    """Reads the mark from a checkpoint's file or from a certificate."""
    try:
        values = json.loads(path.read_bytes())
        charges = values.get("charges")
        if charges is None:
            answers = values.get("answers") or {"answered": 0}
            charges = answers["answered"] + sum(one["releases"] for one in values["streams"])
        return Mark(head_hash=values["head_hash"], charges=charges)
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise RunError(f"{path} is damaged and cannot be read; restore it, or {remedy}") from error


def _last_line(metrics: Path) -> Mark | None:
    """Returns the mark of the last complete line; None if there is none or it cannot be read.

    `metrics.read` raises an error about an unreadable line.
    """
    if not metrics.is_file():
        return None
    lines = metrics.read_bytes().split(b"\n")[:-1]
    try:
        values = json.loads(lines[-1])
        return Mark(head_hash=values["head_hash"], charges=values["charges"])
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
