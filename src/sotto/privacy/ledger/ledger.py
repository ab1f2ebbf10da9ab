"""The ledger: durable, append-only, charged before a release is made, never refunded.

One run is one chain of entries: `create`, then `join` if it shares a budget with other products,
then `open` for every stream and `charge` for its releases. Every entry holds the SHA-256 hash of
its contents and of the entry before it, so that a changed, missing or foreign entry is found when
the ledger is opened. An entry is one transaction, synced to disk before `charge` returns. A run
that is killed at any moment leaves a ledger that holds at least its releases. A charge without a
release stays.

Entries hold statements, enrolment numbers and counts: no data, no parameters, no noise keys.
"""

import json
import os
import re
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from pydantic import TypeAdapter

from sotto.privacy import settings
from sotto.privacy.claims import same_stream
from sotto.privacy.errors import LedgerCorrupt, LedgerMismatch, PrivacyError
from sotto.privacy.ledger import entries
from sotto.privacy.ledger.chain import Chain
from sotto.privacy.ledger.costs import Spent
from sotto.privacy.ledger.databases import database
from sotto.privacy.ledger.entries import GENESIS, Entry, canonical, json_values, now, versions
from sotto.privacy.ledger.joining import Joining, Numbers, Said, check_stream
from sotto.privacy.ledger.persons import PersonBlock
from sotto.privacy.ledger.records import StreamRecord, blocks_of, not_interrupted
from sotto.privacy.ledger.shared import SharedBudget
from sotto.privacy.ledger.spending import Account, Budget
from sotto.privacy.ledger.streams import LedgerStream
from sotto.privacy.statements import Sharing, StreamStatement
from sotto.privacy.units import Unit

_FORMAT = 1
_SHARING: TypeAdapter[Sharing] = TypeAdapter(Sharing)
NO_TIME = "1970-01-01T00:00:00+00:00"
"""Time of a ledger whose true time is withheld."""


class Ledger(Chain):
    """The durable account of one run, from `Ledger.create` or `Ledger.open`.

    It has one writer. What another process writes in the meantime is refused, since streams go on
    from what this object has charged. Threads may share it.

    Attributes:
        created: when, ISO 8601 in UTC.
        versions: of the software that created it, by distribution name.
        joined: the shared budget, the digest of people's numbers and the limits, as `join` wrote
            them; None for a ledger that shares no budget.
    """

    name = "the ledger"
    created: str
    versions: dict[str, str]
    joined: Said | None
    _account: Account

    def __init__(self, engine: sa.Engine, run_id: str, last: str | None = None) -> None:
        super().__init__(engine, run_id, last)
        # Makes our entries differ from those of another process that writes the same ones.
        self._writer = uuid.uuid4().hex
        self._joining: Joining | None = None
        self._live: list[int] = []
        self._account.check_people()

    @classmethod
    def create(
        cls,
        where: Path | str,
        run_id: str | None = None,
        *,
        unit: Unit,
        budget: Budget,
        adaptive: bool = False,
        created: str | None = None,
    ) -> "Ledger":
        """Starts the ledger of a new run.

        Args:
            where: path of an SQLite file, or the SQLAlchemy URL of an SQLite or PostgreSQL
                database; it may hold other runs.
            run_id: name of the run; a random one by default.
            unit: whom the ledger protects; every stream must have the same.
            budget: the most that the worst person may pay.
            adaptive: whether streams about the same people may be opened after a charge. They are
                then Gaussian, and the certificate states the budget from the first charge on.
                Otherwise all are opened before the first charge, and cost what they cost together.
            created: when, ISO 8601 in UTC; None: now. `NO_TIME` where a time would tell too much.

        Raises:
            LedgerMismatch: the run exists.
            LedgerUnavailable: it cannot be written.
            ValueError: an adaptive ledger without a finite epsilon, or a time of another form.
        """
        if created is not None and not re.fullmatch(entries.TIME, created):
            raise ValueError(f"created is a time in UTC to the second, such as {NO_TIME}")
        sharing: Sharing = "adaptive" if adaptive else "planned"
        Account(unit, budget, sharing=sharing)  # refuses a rule that the budget does not allow
        engine = database(where)
        run_id = run_id or uuid.uuid4().hex
        contents = {
            "format": _FORMAT,
            "created": created or now(),
            "unit": json_values(unit),
            "budget": json_values(budget),
            "sharing": sharing,
            "versions": versions(),
        }
        entry = Entry(run_id, 0, "create", canonical(contents), GENESIS)
        entries.create(engine, entry)
        return cls(engine, run_id)

    @classmethod
    def open(cls, where: Path | str, run_id: str | None = None) -> "Ledger":
        """Opens the ledger of an earlier run, verifies every entry and goes on from there.

        Streams that were open stay as they are: open a new one, or `resume_stream`.

        Args:
            where: as for `create`.
            run_id: the run it must belong to; None takes the only one there is.

        Raises:
            LedgerMismatch: it belongs to another run, or holds several and none was named.
            LedgerCorrupt: its entries are not what was written.
            LedgerUnavailable: there is none, or it cannot be read.
        """
        engine = database(where)
        return cls(engine, entries.find_run(engine, run_id))

    @property
    def unit(self) -> Unit:
        """Unit that the ledger protects."""
        return self._account.unit

    @property
    def budget(self) -> Budget:
        """The most that the worst person may pay."""
        return self._account.budget

    @property
    def sharing(self) -> Sharing:
        """Rule for streams that the same people may take part in."""
        return self._account.sharing

    @property
    def unplanned(self) -> bool:
        """Whether a stream of shared people was opened after one of them was charged."""
        return self._account.unplanned

    @property
    def streams(self) -> tuple[StreamRecord, ...]:
        """All streams, with statement, releases charged and persons. Callers do not change them."""
        return tuple(self._account.streams)

    @property
    def stream_versions(self) -> tuple[dict[str, str], ...]:
        """Versions of the software that opened each stream."""
        return tuple(self._stream_versions)

    @property
    def stream_settings(self) -> tuple[dict[str, str], ...]:
        """Settings of JAX and XLA that each stream was opened under; old ledgers have none."""
        return tuple(self._stream_settings)

    @property
    def persons(self) -> int:
        """Number of persons who were charged, or may have under Poisson sampling."""
        return len(self._account.everyone)

    @property
    def next_person(self) -> int:
        """The first enrolment number that nobody has."""
        return self._account.next_person

    def spent(self) -> Spent:
        """Returns the cost for the worst person (`Account.spent`), and changes nothing."""
        return self._account.spent()

    def join(self, budget: SharedBudget, numbers: Numbers | None = None) -> None:
        """Charges a budget that this run shares with other products, too, from now on.

        It is written into a new ledger. A ledger that has joined makes no release without the
        shared budget, and takes it again here whenever it is opened.

        Args:
            budget: the shared budget.
            numbers: the operator's numbers of this run's people; None if they enrol under them.

        Raises:
            LedgerMismatch: streams are open already, or the run shares another budget, or has
                other numbers.
            LedgerCorrupt: the shared budget lacks charges of this run.
            LedgerUnavailable: a ledger cannot be read or written.
        """
        joining = Joining(budget, self.run_id, self._join_entry, self.budget.delta, numbers)
        with self._mutex:
            joining.check_ledger(self.joined, self._shared_head, bool(self.streams), self.holds)
            if self.joined is None:
                self._write("join", joining.said)
            self._joining = replace(joining, entry=self._join_entry)

    def open_stream(self, statement: StreamStatement) -> LedgerStream:
        """Writes the statement down, if the budget covers the stream to its horizon.

        Streams that this object opened before are counted in full, too, since they may still go on.
        The check is made here, before any data is touched; charging cannot exceed the budget. An
        equal stream of a plan that an earlier process opened and never charged is taken up.

        Raises:
            BudgetExceeded: over budget, vacuous delta, too little noise for the sampler, or opened
                after a stream about the same people was charged (`adaptive`).
            PrivacyError: a setting of JAX or XLA is in force that is not understood.
            LedgerMismatch: another unit, or another process has written to the ledger.
            LedgerUnavailable: the ledger cannot be written.
        """
        with self._mutex:
            check_stream(self._joining, self.joined, statement)
            if (unused := self._account.unused(statement, self._live)) is not None:
                return self._opened(unused)
            self._account.check_open(statement, self._live)
            contents = {
                "statement": json_values(statement),
                "versions": versions(),
                "settings": settings.in_force(),
            }
            self._write("open", contents)
            return self._opened(len(self._account.streams) - 1)

    def resume_stream(self, statement: StreamStatement) -> LedgerStream:
        """Goes on with the last stream of an earlier process that has this statement.

        The statement covers the releases that are left, because the noise of one release is
        independent of that of all others. Correlated noise is refused once a release was charged,
        since its earlier draws are gone.

        Raises:
            LedgerMismatch: there is no such stream, or its noise is correlated over releases.
            BudgetExceeded: streams opened since have taken what it would need.
        """
        with self._mutex:
            check_stream(self._joining, self.joined, statement)
            stored = [record.statement for record in self.streams]
            found = [i for i, one in enumerate(stored) if same_stream(one, statement)]
            if not found or found[-1] in self._live:
                raise not_interrupted(stored, statement)
            correlated = statement.correlation.kind != "independent"
            if correlated and self.streams[found[-1]].releases:
                raise LedgerMismatch(
                    f"the noise of {statement.name!r} is correlated over releases, and what was "
                    "drawn is forgotten; open a new stream"
                )
            self._account.check_resume(found[-1], self._live)
            return self._opened(found[-1])

    def verify(self) -> None:
        """Reads every entry again and compares the chain with what this object holds.

        Raises:
            LedgerCorrupt: an entry was changed, or the last ones are gone.
            LedgerMismatch: another process has written to the ledger.
        """
        stored = Ledger(self._engine, self.run_id)
        if stored._next_sequence < self._next_sequence:
            raise LedgerCorrupt("the ledger's last entries are gone; restore it from a backup")
        if stored.head_hash != self.head_hash:
            raise LedgerMismatch(entries.WRITTEN_BY_ANOTHER)

    def _opened(self, index: int) -> LedgerStream:
        """Returns a stream that goes on, and opens it in the shared budget."""
        if self._joining is not None:
            self._joining.open_stream(index, self.streams[index].statement)
        self._live.append(index)
        return LedgerStream(self, index)

    def _charge(
        self,
        index: int,
        first_release: int,
        count: int,
        blocks: Sequence[tuple[PersonBlock, ...]] | None,
    ) -> None:
        contents: dict[str, Any] = {"stream": index, "persons": blocks}
        contents |= {"first_release": first_release, "count": count}
        taking_part = self._account.taking_part(index, count, blocks)
        with self._mutex:
            self._account.check_charge(index, first_release, taking_part)
            self._account.streams[index].check_devices(taking_part)
            if self._joining is not None:
                contents["shared"] = self._joining.charge(index, taking_part)
            self._write("charge", contents)
            if self._joining is not None:
                self._joining.see(self.head_hash, self.holds)

    def _write(self, kind: Literal["join", "open", "charge"], contents: dict[str, Any]) -> None:
        """Writes an entry durably, then adds it to the account."""
        # A forked process is another writer, although it has our name.
        entry = self._next(kind, contents | {"writer": f"{self._writer}-{os.getpid()}"})
        entries.append(self._engine, entry)
        self._append(entry, json.loads(entry.payload))

    def _check(self, entry: Entry, contents: dict[str, Any]) -> None:
        if entry.kind == "create" and contents["format"] != _FORMAT:
            raise LedgerMismatch(
                f"run {entry.run_id!r} is no training that this version can open; it has format "
                f"{contents['format']}, not {_FORMAT}"
            )
        if entry.kind == "join" and entry.sequence != 1:
            raise PrivacyError("an entry of kind 'join' is out of place")
        if entry.kind == "open":
            self._account.check_order(StreamStatement.model_validate(contents["statement"]))
        if entry.kind == "charge":
            index, count = contents["stream"], contents["count"]
            blocks = blocks_of(contents["persons"])
            taking_part = self._account.taking_part(index, count, blocks)
            self._account.check_charge(index, contents["first_release"], taking_part)
            self._account.streams[index].check_devices(taking_part)

    def _add_up(self, entry: Entry, contents: dict[str, Any]) -> None:
        if entry.kind == "create":
            self.created, self.versions = contents["created"], contents["versions"]
            self._account = Account(
                Unit.model_validate(contents["unit"]),
                Budget.model_validate(contents["budget"]),
                sharing=_SHARING.validate_python(contents.get("sharing", "assumed")),
            )
            self.joined, self._join_entry = None, ""
            self._shared_head: str | None = None  # of the shared budget, at the last charge
            self._stream_versions: list[dict[str, str]] = []
            self._stream_settings: list[dict[str, str]] = []
        elif entry.kind == "join":
            self.joined = {name: said for name, said in contents.items() if name != "writer"}
            self._join_entry = entry.hash
        elif entry.kind == "open":
            self._account.apply_open(StreamStatement.model_validate(contents["statement"]))
            self._stream_versions.append(contents["versions"])
            self._stream_settings.append(contents.get("settings", {}))
        else:
            index, blocks = contents["stream"], blocks_of(contents["persons"])
            taking_part = self._account.taking_part(index, contents["count"], blocks)
            self._account.apply_charge(index, taking_part)
            self._shared_head = contents.get("shared")
