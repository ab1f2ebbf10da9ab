"""The chain of entries of an answer ledger (`ledger.chain`), added up to an account."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from sotto.privacy.answers.account import AnswerAccount
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.errors import LedgerMismatch
from sotto.privacy.ledger.chain import Chain
from sotto.privacy.ledger.entries import Entry, Kind
from sotto.privacy.ledger.spending import Budget

FORMAT = "answers-1"


class AnswerChain(Chain):
    """The entries of one run, added up as far as they have been read.

    Attributes:
        created: time of creation, ISO 8601 in UTC.
        versions: versions of the software that created it.
    """

    name = "the ledger"
    created: str
    versions: dict[str, str]
    _account: AnswerAccount

    def current(self) -> tuple[AnswerAccount, str]:
        """Returns the account of all committed entries, and the hash of the last one.

        Raises:
            LedgerCorrupt: an entry was changed, or entries are missing.
            LedgerMismatch: the run is not a teacher's.
            LedgerUnavailable: the database cannot be read.
        """
        with self._up_to_date():
            return self._account.copy(), self.head_hash

    @contextmanager
    def writing(self, consequence: str) -> Iterator[tuple[sa.Connection, AnswerAccount]]:
        """Yields a transaction that is alone on the run, and the account of all entries before it.

        Args:
            consequence: text for the user if the database fails.
        """
        with self._alone(consequence) as connection:
            yield connection, self._account

    def insert(self, connection: sa.Connection, kind: Kind, contents: dict[str, Any]) -> int:
        """Adds an entry to a transaction of `writing` and returns its number."""
        return self._insert(connection, kind, contents).sequence

    def _check(self, entry: Entry, contents: dict[str, Any]) -> None:
        match entry.kind:
            case "create":
                if contents["format"] != FORMAT:
                    raise LedgerMismatch(
                        f"run {entry.run_id!r} is a training run and not a teacher who answers; "
                        "open it as a `Ledger`"
                    )
            case "student":
                self._account.check_add(contents["student"], contents["queries"])
            case "revoke":
                self._account.student(contents["student"])
            case "charge":
                name, rows = contents["student"], contents["rows"]
                self._account.check_charge(name, rows)
                if contents["first_query"] != self._account.students[name].answered:
                    raise ValueError("its first query is not the student's next one")
            case other:
                raise ValueError(f"an answer ledger has no entries of kind {other!r}")

    def _add_up(self, entry: Entry, contents: dict[str, Any]) -> None:
        if entry.kind == "create":
            self.created, self.versions = contents["created"], contents["versions"]
            self._account = AnswerAccount(
                AnswerStatement.model_validate(contents["statement"]),
                Budget.model_validate(contents["budget"]),
            )
        elif entry.kind == "student":
            self._account.apply_add(contents["student"], contents["queries"])
        elif entry.kind == "revoke":
            self._account.apply_revoke(contents["student"])
        else:
            self._account.apply_charge(contents["student"], contents["rows"])
