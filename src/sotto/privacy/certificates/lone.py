"""Verification of a certificate alone: does everything in it follow from its own statements?

The statements of a certificate, its sentences and the person who pays most are put back into the
account of a ledger. The certificate of this account must be the one in the file.
"""

import json
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Literal

from sotto.files import read_at_most
from sotto.privacy.accounting.composition import NoGuarantee
from sotto.privacy.answers.account import AnswerAccount, AnswersSpent, Student
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.certificates import possible
from sotto.privacy.certificates.check import (
    LARGEST,
    AnyCertificate,
    corrections,
    facts_of,
    mismatches,
    read_stored,
    same,
)
from sotto.privacy.certificates.derive import derive, verify
from sotto.privacy.certificates.described import contradictions
from sotto.privacy.certificates.model import (
    CertifiedAnswers,
    CertifiedStudent,
    DescribedCertificate,
)
from sotto.privacy.claims import Reference, by_name, corrected, said, same_sentences
from sotto.privacy.errors import PrivacyError
from sotto.privacy.ledger.costs import Spent
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.persons import PersonBlock
from sotto.privacy.ledger.records import StreamRecord
from sotto.privacy.ledger.spending import Account
from sotto.privacy.statements import Sharing

_RULES: tuple[Sharing, ...] = ("planned", "adaptive", "assumed")


@dataclass(frozen=True)
class FileVerification:
    """The result of verifying one file.

    Attributes:
        status: "true" if the claims give everything in it; "stale" if it was true and its ledger
            has more entries now, which only a ledger shows; "false" if it contradicts itself or its
            ledger; "unverifiable" if the file does not hold what it would take.
        reasons: one sentence for each difference, or the reason why there is no answer.
        corrections: sentences in earlier words that turned out to be untrue.
        certificate: the certificate in the file; None if it cannot be read.
    """

    status: Literal["true", "stale", "false", "unverifiable"]
    reasons: tuple[str, ...] = ()
    corrections: tuple[str, ...] = ()
    certificate: AnyCertificate | DescribedCertificate | None = None


def verify_file(
    path: Path, where: str | None = None, signed_by: Path | None = None
) -> FileVerification:
    """Verifies the certificate at `path` by itself, or against the ledger at `where`.

    Args:
        path: file of the certificate.
        where: file or URL of its ledger.
        signed_by: public key in PEM of whoever must have signed it.

    Raises:
        PrivacyError: there is no such file, or the ledger cannot be opened.
        ValueError: the public key cannot be read.
    """
    if path.is_dir():
        raise PrivacyError(
            f"{path} is a folder; give the file {path / 'certificate.json'}, or verify a run with "
            f"its ledger: sotto certificate {path} --verify"
        )
    if not path.is_file():
        raise PrivacyError(f"there is no file {path}; give the certificate.json of a run")
    if signed_by is not None:
        # Only signatures need the package cryptography.
        from sotto.privacy.certificates.signature import SignatureMissing, require_signed

        try:
            require_signed(path, signed_by)
        except SignatureMissing as error:
            return FileVerification("unverifiable", (str(error),))
        except PrivacyError as error:
            return FileVerification("false", (str(error),))
    if later := _of_a_later_version(path):
        return FileVerification("unverifiable", (later,))
    try:
        stored = read_stored(path)
    except PrivacyError as error:
        return FileVerification("false", (str(error),))
    if isinstance(stored, DescribedCertificate):
        return _described(stored, where)
    if where is None:
        return _alone(stored)
    kind = Ledger if stored.answers is None else AnswerLedger
    found = verify(path, kind.open(where, stored.run_id))
    status: Literal["true", "stale", "false"] = (
        "true" if found.status == "verified" else found.status
    )
    return FileVerification(status, found.mismatches, found.corrections, stored)


def _of_a_later_version(path: Path) -> str:
    """Returns what in the file this version of sotto does not know; empty if there is nothing."""
    try:
        contents = json.loads(read_at_most(path, LARGEST))
        version, claims = contents["schema_version"], contents.get("claims", ())
        named = [(one["claim"], one["version"]) for one in claims if "claim" in one]
        if isinstance(version, int) and version > 2:
            return f"it has schema version {version}; verify it with a later version of sotto"
        for name, number in named:
            if (name, number) not in by_name():
                return (
                    f"it says {name!r} in version {number}, which this version of sotto does not "
                    "know; verify it with a later one"
                )
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        pass  # `read` says what is wrong with it
    return ""


def _described(stored: DescribedCertificate, where: str | None) -> FileVerification:
    if where is not None:
        reason = "it was described, and no ledger recorded it; leave out --ledger"
        return FileVerification("unverifiable", (reason,), (), stored)
    try:
        found = contradictions(stored)
    except PrivacyError as error:
        found = [str(error)]
    except (ArithmeticError, ValueError) as error:
        return _beyond_arithmetic(stored, error)
    if found:
        return FileVerification("false", tuple(found), (), stored)
    return FileVerification("true", (), corrected(stored.claims), stored)


def _alone(stored: AnyCertificate) -> FileVerification:
    told: Ledger | AnswerLedger
    try:
        _check_possible(stored)
        if stored.answers is not None:
            told = _ToldAnswers(stored, stored.answers)
        else:
            told = _told(stored)
            if told.sharing == "adaptive":
                possible.check_filter(stored.streams, stored.persons, stored.budget)
            if reason := _untold(stored, told):
                return FileVerification("unverifiable", (reason,), (), stored)
        found = mismatches(stored, derive(told), told, "the rest")
    except PrivacyError as error:
        return FileVerification("false", (str(error),), (), stored)
    except (ArithmeticError, ValueError) as error:
        return _beyond_arithmetic(stored, error)
    if found:
        return FileVerification("false", tuple(found), (), stored)
    return FileVerification("true", (), corrections(stored, told), stored)


def _check_possible(stored: AnyCertificate) -> None:
    """Refuses numbers that no ledger has together.

    Raises:
        PrivacyError: there are some.
    """
    possible.check_budget(stored.epsilon, stored.budget)
    if stored.answers is not None:
        possible.check_answers(stored.answers)
    else:
        possible.check_counts(stored.streams, stored.persons, stored.budget)
        possible.check_functions(stored.streams)
    if (limits := _shared_budget(stored)) is not None:
        possible.check_shared_budget(stored.streams, limits, stored.delta)


def _beyond_arithmetic(
    stored: AnyCertificate | DescribedCertificate, error: ArithmeticError | ValueError
) -> FileVerification:
    reason = f"its numbers are too large or too small to compute with ({error})"
    return FileVerification("unverifiable", (reason,), (), stored)


# --- the ledger that a certificate tells of ------------------------------------------------------


class _Told(Ledger):
    """A ledger of which only its certificate is known. It has an account and no entries."""

    def __init__(self, stored: AnyCertificate, sharing: Sharing, unplanned: bool) -> None:
        self.run_id, self.created, self.versions = stored.run_id, stored.created, stored.versions
        self.joined = _shared_budget(stored)
        self.head_hash = stored.head_hash
        self._stream_versions = [one.versions for one in stored.streams]
        self._stream_settings = [one.settings for one in stored.streams]
        self._people = stored.persons
        self._account = Account(stored.unit, stored.budget, sharing=sharing)
        for one in stored.streams:
            self._account.check_order(one.statement)
            self._account.streams.append(StreamRecord(one.statement))
        self._account.unplanned = unplanned
        self.worst = _worst(stored)
        apart = max((one.persons for one in stored.streams), default=0)
        for index, (one, record) in enumerate(
            zip(stored.streams, self._account.streams, strict=True)
        ):
            record.releases = one.releases
            start = 0 if index in self.worst else apart
            apart += 0 if index in self.worst else one.persons
            record.persons.add(PersonBlock(start, start + one.persons))

    def spent(self) -> Spent:
        """Returns the cost of the account, with the number of people that is stated."""
        return replace(super().spent(), persons=self._people)


def _told(stored: AnyCertificate) -> _Told:
    """Returns the ledger under the rule that the sentences name; if none fits, that of today."""
    if stored.schema_version == 1:
        return _Told(stored, "assumed", False)
    # Only a stream of which nothing is proved may be opened after the first charge.
    late = any(isinstance(one.statement.event, NoGuarantee) for one in stored.streams)
    for sharing, unplanned in product(_RULES, (False, True) if late else (False,)):
        try:
            told = _Told(stored, sharing, unplanned)
        except ValueError:  # a rule that these streams or this budget do not allow
            continue
        if same_sentences(stored.claims, said(facts_of(told))):
            return told
    return _Told(stored, "assumed", False)


def _worst(stored: AnyCertificate) -> frozenset[int]:
    """Returns the streams of the person who pays most, by their names and costs."""
    left = dict(enumerate(stored.streams))
    worst = stored.worst_person
    for name, event in zip(worst.streams, worst.events, strict=False):
        for index, one in left.items():
            if one.statement.name == name and same(event, one.statement.event, "events"):
                del left[index]
                break
    return frozenset(range(len(stored.streams))) - left.keys()


def _untold(stored: AnyCertificate, told: _Told) -> str:
    """Returns the reason why the cost cannot follow: only the ledger knows who was in what."""
    charged = {i for i, one in enumerate(told.streams) if one.releases and one.statement.is_shared}
    if told.sharing == "assumed" and len(charged) > 1 and not charged <= told.worst:
        names = ", ".join(sorted({repr(stored.streams[i].statement.name) for i in charged}))
        return f"the same people may have taken part in {names}; only the ledger says who did"
    return ""


def _shared_budget(stored: AnyCertificate) -> dict[str, float] | None:
    """Returns the limits of the budget that the run shares, which a sentence states.

    Raises:
        PrivacyError: they are no numbers.
    """
    for one in getattr(stored, "claims", ()):
        if isinstance(one, Reference) and one.claim == "ledger.shared-budget":
            try:
                return {name: float(text) for name, text in one.numbers.items()}
            except ValueError:
                raise PrivacyError("its shared budget is no epsilon and delta") from None
    return None


class _ToldAnswers(AnswerLedger):
    """A teacher's ledger of which only its certificate is known."""

    def __init__(self, stored: AnyCertificate, answers: CertifiedAnswers) -> None:
        self.run_id, self.created, self.versions = stored.run_id, stored.created, stored.versions
        self.statement, self.budget = answers.statement, stored.budget
        self._told_head = stored.head_hash
        self._account = account = AnswerAccount(answers.statement, stored.budget)
        try:
            account.check_create()
            for one in answers.students:
                _repeat(account, one)
        except ValueError as error:
            raise PrivacyError(f"no ledger gives this certificate: {error}") from None
        most = answers.statement.queries_per_student
        for one, cost in zip(answers.students, self.spent().students, strict=True):
            if not same(one.epsilon, cost.epsilon, "epsilon"):  # their allowance was changed
                account.students[one.name] = replace(account.students[one.name], planned=most)

    def spent(self) -> AnswersSpent:
        """Returns the cost of the account."""
        return self._account.spent(self._told_head)

    def students(self) -> tuple[Student, ...]:
        """Returns the students in the certificate."""
        return tuple(self._account.students.values())


def _repeat(account: AnswerAccount, one: CertifiedStudent) -> None:
    """Makes the entries of one student, each after the checks of a ledger.

    A student with more answers than queries was added again with fewer queries.

    Raises:
        PrivacyError, ValueError: a ledger refuses one of them.
    """
    most = max(one.queries, one.answered)
    account.check_add(one.name, most)
    account.apply_add(one.name, most)
    if one.answered:
        account.check_charge(one.name, one.answered)
        account.apply_charge(one.name, one.answered)
    if most > one.queries:
        account.apply_revoke(one.name)
        account.check_add(one.name, one.queries)
        account.apply_add(one.name, one.queries)
    if one.revoked:
        account.apply_revoke(one.name)
