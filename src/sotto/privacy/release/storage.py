"""The file of a released function: noisy values only, appended and synced before they leave.

An SQLite database, for its transactions: a header, and one row for each batch of answers, with a
SHA-256 hash over it and the row before. Rows are never changed. The last hash is in a file beside
it, too, so that the file alone cannot be put back from a backup.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from jaxtyping import Float64

from sotto.privacy.errors import LedgerCorrupt, LedgerMismatch, LedgerUnavailable
from sotto.privacy.ledger import databases
from sotto.privacy.ledger.entries import canonical

_FORMAT = 1
_metadata = sa.MetaData()
_batches = sa.Table(
    "released",
    _metadata,
    sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("points", sa.LargeBinary, nullable=False),
    sa.Column("noisy", sa.LargeBinary, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
)


class ReleaseFile:
    """An open file, from `ReleaseFile.create` or `ReleaseFile.open`.

    Attributes:
        path: of the file.
        header: what the file holds, as JSON values.
    """

    def __init__(self, path: Path, header: dict[str, Any], size: int, head: str) -> None:
        self.path = path
        self.header = header
        self._engine = databases.database(path)
        self._size = size
        self._head = head

    @classmethod
    def create(
        cls,
        path: Path,
        header: dict[str, Any],
        values: Float64[np.ndarray, "..."] | None = None,
    ) -> "ReleaseFile":
        """Starts a file, with a first batch of values without points if they are given.

        It is one transaction: a file that was begun holds all of it, or does not `exist`.

        Raises:
            LedgerMismatch: there is one already.
            LedgerUnavailable: it cannot be written.
        """
        if path.exists():
            raise LedgerMismatch(f"there is a release at {path} already; use another folder")
        engine = databases.database(path)
        text = canonical(header | {"format": _FORMAT}).encode()
        head = _hash("", text, b"")
        rows = [{"sequence": 0, "points": text, "noisy": b"", "hash": head}]
        if values is not None:
            noisy = _bytes(values)
            head = _hash(head, b"", noisy)
            rows.append({"sequence": 1, "points": b"", "noisy": noisy, "hash": head})
        databases.forget_head(engine)
        with databases.ledger_errors(engine, "nothing was released"), engine.begin() as connection:
            _batches.create(connection)
            databases.make_append_only(connection, _batches)
            connection.execute(sa.insert(_batches), rows)
        databases.sync_directory(engine)
        databases.write_head(engine, head)
        return cls(path, header, len(rows) - 1, head)

    @staticmethod
    def exists(path: Path) -> bool:
        """Whether there is a file that `create` has finished; one killed in it leaves none.

        Raises:
            LedgerUnavailable: it cannot be read.
        """
        if not path.is_file():
            return False
        engine = databases.database(path)
        with (
            databases.ledger_errors(engine, "nothing was changed"),
            databases.reading(engine) as connection,
        ):
            return sa.inspect(connection).has_table(_batches.name)

    @classmethod
    def open(cls, path: Path) -> "ReleaseFile":
        """Opens a file and checks every row.

        Raises:
            LedgerUnavailable: there is none, or it cannot be read, or the file beside it lacks the
                last row and cannot be written.
            LedgerCorrupt: it is not what was written, or it is an older copy.
        """
        if not path.is_file():
            raise LedgerUnavailable(f"there is no release at {path}")
        engine = databases.database(path)
        header: dict[str, Any] | None = None
        head, size = "", -1
        beside = databases.read_head(engine)
        held = beside is None
        for sequence, points, noisy, stored in _rows(engine):
            head = _hash(head, points, noisy)
            size += 1
            if (sequence, stored) != (size, head):
                raise LedgerCorrupt(
                    f"the release at {path} is not what was written; restore it from a backup"
                )
            header = json.loads(points) if header is None else header
            held = held or head == beside
        if header is None or header.pop("format", None) != _FORMAT:
            raise LedgerCorrupt(f"the file at {path} is no release that this version can read")
        if not held:
            raise databases.older(engine)
        if beside != head:  # after a kill or a move; what is stored may leave from now on
            databases.write_head(engine, head)
        return cls(path, header, size, head)

    def __len__(self) -> int:
        return self._size

    def append(self, points: Float64[np.ndarray, "..."], noisy: Float64[np.ndarray, "..."]) -> None:
        """Adds a batch; when it returns, the batch is on disk and may leave.

        Raises:
            LedgerMismatch: another process has added something; open the file again.
            LedgerUnavailable: it was not written, or whether it was is not known.
        """
        places, values = _bytes(points), _bytes(noisy)
        head = _hash(self._head, places, values)
        row = {"sequence": self._size + 1, "points": places, "noisy": values, "hash": head}
        with (
            databases.ledger_errors(self._engine, "nothing was released"),
            self._engine.begin() as connection,
        ):
            connection.execute(sa.insert(_batches).values(**row))
        databases.write_head(self._engine, head)  # before the size: what failed is not tried again
        self._size, self._head = self._size + 1, head

    def read(self) -> Iterator[tuple[Float64[np.ndarray, " p"], Float64[np.ndarray, " v"]]]:
        """Yields all batches in order, each as two flat arrays."""
        for sequence, points, noisy, _ in _rows(self._engine):
            if sequence:
                yield np.frombuffer(points, dtype="<f8"), np.frombuffer(noisy, dtype="<f8")


def _rows(engine: sa.Engine) -> Iterator[tuple[int, bytes, bytes, str]]:
    query = sa.select(_batches).order_by(_batches.c.sequence)
    with (
        databases.ledger_errors(engine, "nothing was changed"),
        databases.reading(engine) as connection,
    ):
        for row in connection.execute(query):
            yield row.sequence, row.points, row.noisy, row.hash


def _bytes(numbers: Float64[np.ndarray, "..."]) -> bytes:
    return np.ascontiguousarray(numbers, dtype="<f8").tobytes()


def _hash(previous: str, points: bytes, noisy: bytes) -> str:
    length = len(points).to_bytes(8, "big")
    return hashlib.sha256(previous.encode() + length + points + noisy).hexdigest()
