"""The ledger of a teacher's answers, on SQLite and PostgreSQL: charged once, before it leaves."""

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from asking import Unasked, alike, ask
from small import UNIT, answers

from sotto.privacy.accounting.composition import compose, gaussian_epsilon
from sotto.privacy.answers.digests import DigestKey, RequestDigest
from sotto.privacy.answers.distances import PolicyDistance
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.answers.statement import AnswerStatement, Schedule
from sotto.privacy.errors import (
    BudgetExceeded,
    IdempotencyConflict,
    LedgerCorrupt,
    LedgerMismatch,
    LedgerUnavailable,
    StudentExists,
    UnknownStudent,
)
from sotto.privacy.ledger import databases
from sotto.privacy.ledger.entries import Entry, canonical, insert
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms.noise import GeneratorSource
from sotto.privacy.mechanisms.policies import Dirichlet, GaussianPolicy
from sotto.privacy.statements import Gap

NO_TARGET = Budget(epsilon=math.inf, delta=1e-5)


@pytest.fixture
def ledger(where: str) -> AnswerLedger:
    return AnswerLedger.create(where, "run-a", statement=answers(), budget=NO_TARGET)


@pytest.fixture
def places(where: str, request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Two databases of one kind."""
    if where.startswith("postgresql"):
        return where, request.getfixturevalue("postgresql_server").new_database()
    return where, str(tmp_path / "second.sqlite")


def digest(request: str) -> RequestDigest:
    return DigestKey(bytes(32)).digest("run-a", request.encode())


def execute(ledger: AnswerLedger, *commands: str) -> None:
    """Executes a statement as somebody with all rights on the database."""
    with ledger._engine.begin() as connection:
        if connection.dialect.name == "sqlite":
            connection.execute(sa.text("DROP TRIGGER IF EXISTS no_update"))
            connection.execute(sa.text("DROP TRIGGER IF EXISTS no_delete"))
        else:
            connection.execute(sa.text("ALTER TABLE entries DISABLE TRIGGER no_change"))
        for command in commands:
            assert connection.exec_driver_sql(command).rowcount > 0


def everything(ledger: AnswerLedger) -> str:
    """Returns the whole database as text."""
    with databases.reading(ledger._engine) as connection:
        tables = ("entries", "tokens", "answers")
        return str([list(connection.execute(sa.text(f"SELECT * FROM {t}"))) for t in tables])


# --- the ordinary course -------------------------------------------------------------------------


def test_an_answer_is_charged_and_returned(ledger: AnswerLedger, where: str) -> None:
    ledger.add_student("ann")
    answered = ask(ledger, "ann", 2)
    assert (answered.policies.shape, answered.policies.dtype) == ((2, 3), np.float64)
    assert (answered.levels.tolist(), answered.replayed, answered.remaining) == ([0, 0], False, 58)
    ask(ledger, "ann", 3, idempotency_key="k")

    again = AnswerLedger.open(where)
    (ann,) = again.students()
    assert (ann.name, ann.queries, ann.answered, ann.revoked) == ("ann", 60, 5, False)
    assert again.remaining("ann") == 55
    assert (again.statement, again.budget) == (answers(), NO_TARGET)
    assert (again.run_id, again.created) == ("run-a", ledger.created)
    ledger.verify()
    assert again.head_hash == ledger.head_hash
    ledger.close()


def test_levels_follow_the_students_own_count(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vanishing = answers(
        mechanism=Dirichlet(actions=3, concentration=5, floor=0.2),
        schedule=Schedule(kind="vanishing", coefficient=0.1, queries_per_rollout=3, rollouts=4),
        queries_per_student=12,
    )
    ledger = AnswerLedger.create(where, statement=vanishing, budget=NO_TARGET)
    ledger.add_student("ann")
    ledger.add_student("bob")
    seen: list[list[int]] = []
    randomize = AnswerStatement.randomize

    def noisy(self: AnswerStatement, rows: Any, levels: Sequence[int], noise: Any) -> np.ndarray:
        seen.append(list(levels))
        return randomize(self, rows, levels, noise)

    monkeypatch.setattr(AnswerStatement, "randomize", noisy)
    for name, rows, key in (("ann", 4, "1"), ("bob", 2, "1"), ("ann", 5, "2"), ("bob", 2, "2")):
        ask(ledger, name, rows, idempotency_key=key)
    assert seen == [[0, 0, 0, 1], [0, 0], [1, 1, 2, 2, 2], [0, 1]]
    again = ask(ledger, "ann", 5, Unasked, idempotency_key="2")
    assert again.levels.tolist() == [1, 1, 2, 2, 2]
    by_level = compose(vanishing.events({0: 6, 1: 4, 2: 3}))
    assert ledger.spent().spent_epsilon == pytest.approx(by_level.epsilon(1e-5))
    assert [event.count for event in ledger.spent().events] == [100]  # at the dearest level


def test_two_objects_see_each_others_answers(ledger: AnswerLedger, where: str) -> None:
    other = AnswerLedger.open(where)
    token = ledger.add_student("ann")
    assert other.authenticate(token) == "ann"
    for rows, one in ((1, other), (2, ledger), (3, ledger), (4, other)):
        ask(one, "ann", rows)
    assert ledger.remaining("ann") == other.remaining("ann") == 50
    assert ledger.spent().head_hash == other.spent().head_hash
    ledger.verify()
    other.verify()


def test_the_database_holds_no_policy_and_no_token(ledger: AnswerLedger) -> None:
    token = ledger.add_student("ann")
    true = np.array([[0.123456789, 0.2, 0.676543211]])
    ask(ledger, "ann", 1, lambda observations: true)
    held = everything(ledger)
    assert token not in held
    assert hashlib.sha256(token.encode()).hexdigest() in held
    assert "0.123" not in held
    assert np.float64(0.123456789).tobytes().hex() not in held


def test_sqlite_syncs_before_it_returns(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    ledger = AnswerLedger.create(path, statement=answers(), budget=NO_TARGET)
    with ledger._engine.begin() as connection:
        settings = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("synchronous", "journal_mode")
        ]
    assert settings == [3, "persist"]  # EXTRA


def slower(places: Sequence[str], answer: Callable[..., Any]) -> float:
    """Times as much work as a charge without a history that one after 250 others is.

    Charges of both are made in turn, so that other work on the machine slows both.
    """
    near = PolicyDistance(l2=0.1)
    many = answers(queries=10**6, queries_per_student=10**6, distance=near)
    long, short = (AnswerLedger.create(place, statement=many, budget=NO_TARGET) for place in places)
    teacher, noise = alike(many), GeneratorSource()
    asked = np.zeros((64, many.observation_size))
    for ledger in (long, short):
        ledger.add_student("ann")
    for number in range(250):
        long.answer("ann", asked, teacher, noise, idempotency_key=str(number))
    seconds: dict[AnswerLedger, list[float]] = {long: [], short: []}
    for number in range(250, 270):
        for ledger, taken in seconds.items():
            start = time.process_time()
            answer(ledger, "ann", asked, teacher, noise, idempotency_key=str(number))
            taken.append(time.process_time() - start)
    return float(np.median(seconds[long]) / np.median(seconds[short]))


def test_a_charge_is_quick_however_long_the_history(places: Sequence[str]) -> None:
    assert slower(places, AnswerLedger.answer) < 1.5


def test_a_charge_that_reads_the_history_is_found_to_be_slow(places: Sequence[str]) -> None:
    def reads_all(ledger: AnswerLedger, *asked: Any, **named: Any) -> None:
        ledger.verify()
        ledger.answer(*asked, **named)

    assert slower(places, reads_all) > 1.5


# --- students ------------------------------------------------------------------------------------


def test_a_token_is_its_students_until_revoked(ledger: AnswerLedger, where: str) -> None:
    ann, bob = ledger.add_student("ann"), ledger.add_student("bob", 7)
    assert ann != bob
    assert len(ann) == 43  # 256 bits in base64
    assert (ledger.authenticate(ann), ledger.authenticate(bob)) == ("ann", "bob")
    for other in ("", "x", ann[:-1], ann + "x", ann.swapcase(), "é", "\ud800", "x" * 10**5):
        assert ledger.authenticate(other) is None
    other_process = AnswerLedger.open(where)
    other_process.revoke("ann")
    assert ledger.authenticate(ann) is None
    for refused in (
        lambda: ask(ledger, "ann", 1, Unasked),
        lambda: ledger.remaining("ann"),
        lambda: ledger.revoke("ann"),
    ):
        with pytest.raises(UnknownStudent, match="was revoked"):
            refused()
    assert ledger.authenticate(bob) == "bob"
    assert [(s.name, s.queries, s.revoked) for s in ledger.students()] == [
        ("ann", 60, True),
        ("bob", 7, False),
    ]


def test_a_student_who_returns_goes_on_where_they_stopped(ledger: AnswerLedger) -> None:
    first = ledger.add_student("ann")
    ask(ledger, "ann", 20, idempotency_key="k")
    ledger.revoke("ann")
    second = ledger.add_student("ann", 50)
    assert ledger.authenticate(first) is None
    assert ledger.authenticate(second) == "ann"
    assert ledger.remaining("ann") == 30
    assert ask(ledger, "ann", 20, Unasked, idempotency_key="k").replayed


def test_strangers_and_namesakes_are_refused(ledger: AnswerLedger) -> None:
    ledger.add_student("ann")
    before = everything(ledger)
    with pytest.raises(StudentExists, match="'ann' already"):
        ledger.add_student("ann")
    for refused in (lambda: ask(ledger, "eve", 1, Unasked), lambda: ledger.revoke("eve")):
        with pytest.raises(UnknownStudent, match="no student 'eve'"):
            refused()
    for name in ("", "-a", "a b", "a/b", "é", "a\n", "x" * 65, "<script>"):
        with pytest.raises(ValueError, match="a student's name"):
            ledger.add_student(name)
    for queries in (0, -1, 61):
        with pytest.raises(ValueError, match="has 1 to 60 queries"):
            ledger.add_student("bob", queries)
    assert everything(ledger) == before


# --- budgets -------------------------------------------------------------------------------------


def epsilon(answers: int) -> float:
    """Returns epsilon of Gaussian answers: n of them are one with the noise over sqrt(n)."""
    return gaussian_epsilon(0.5 / (math.sqrt(2) / 100) / math.sqrt(answers), 1e-5)


def covered(budget: float) -> int:
    return sum(epsilon(answers) <= budget for answers in range(1, 101))


def test_no_student_gets_more_than_their_own(ledger: AnswerLedger) -> None:
    ledger.add_student("ann", 10)
    ask(ledger, "ann", 8)
    before = everything(ledger)
    with pytest.raises(BudgetExceeded, match="'ann' has 2 of 10 queries left, and 3 rows were"):
        ask(ledger, "ann", 3, Unasked)
    assert everything(ledger) == before
    assert ask(ledger, "ann", 2).remaining == 0
    with pytest.raises(BudgetExceeded, match="0 of 10"):
        ask(ledger, "ann", 1, Unasked)


def test_all_students_together_get_no_more_than_stated(ledger: AnswerLedger) -> None:
    for name in ("ann", "bob"):
        ledger.add_student(name)
    ask(ledger, "ann", 60)
    assert ledger.remaining("bob") == 40
    with pytest.raises(BudgetExceeded, match="40 of 100 queries left for all students together"):
        ask(ledger, "bob", 41, Unasked)
    assert ask(ledger, "bob", 40).remaining == 0
    assert ledger.spent().answered == 100


def test_nothing_is_asked_for_less_than_one_row(ledger: AnswerLedger) -> None:
    ledger.add_student("ann")
    for refused in (
        lambda: ask(ledger, "ann", 0, Unasked),
        lambda: ledger._account.check_charge("ann", -1),
    ):
        with pytest.raises(ValueError, match="at least one row"):
            refused()
    assert ledger.spent().answered == 0


@pytest.mark.parametrize(
    ("changes", "budget", "words"),
    [
        ({}, 0.5, f"it covers {covered(0.5)} queries: allow fewer"),
        ({"queries": 60}, 0.05, "it covers not one query"),
        ({"entropy": "fixed-seed"}, 10.0, "fixed seed.*only a budget of epsilon infinity"),
        ({"gaps": (Gap(name="g", why="w"),)}, 10.0, "g.*only a budget of epsilon infinity"),
    ],
)
def test_a_budget_that_does_not_cover_the_plan_is_refused(
    tmp_path: Path, changes: dict[str, Any], budget: float, words: str
) -> None:
    path = tmp_path / "answers.sqlite"
    with pytest.raises(BudgetExceeded, match=words):
        AnswerLedger.create(
            path, statement=answers(**changes), budget=Budget(epsilon=budget, delta=1e-5)
        )
    assert not path.exists()


def test_a_vacuous_delta_is_refused(tmp_path: Path) -> None:
    budget = Budget(epsilon=math.inf, delta=0.01)
    with pytest.raises(BudgetExceeded, match="vacuous for 100 shards or more people"):
        AnswerLedger.create(tmp_path / "answers", statement=answers(), budget=budget)


def test_all_answers_are_charged_from_the_first_one_on(ledger: AnswerLedger) -> None:
    assert ledger.spent().epsilon == 0
    for name, rows in (("ann", 10), ("bob", 20), ("ann", 5)):
        if rows > 5:
            ledger.add_student(name)
        ask(ledger, name, rows)
    spent = ledger.spent()
    assert spent.epsilon == pytest.approx(epsilon(100), rel=1e-5)
    assert spent.spent_epsilon == pytest.approx(epsilon(35), rel=1e-5)
    alone = {student.name: student.spent_epsilon for student in spent.students}
    assert alone == pytest.approx({"ann": epsilon(15), "bob": epsilon(20)}, rel=1e-5)


# --- the same request again ----------------------------------------------------------------------


def test_the_same_request_gets_the_same_answer_for_nothing(
    ledger: AnswerLedger, where: str
) -> None:
    ledger.add_student("ann")
    first = ask(ledger, "ann", 3, idempotency_key="k", request_digest=digest("d"))
    for one in (ledger, AnswerLedger.open(where)):
        again = ask(one, "ann", 3, Unasked, idempotency_key="k", request_digest=digest("d"))
        assert again.replayed
        assert again.policies.tobytes() == first.policies.tobytes()
        assert again.levels.tolist() == first.levels.tolist()
        assert again.remaining == 57
    ask(ledger, "ann", 57)  # the kept answer stays when no query is left
    assert ask(ledger, "ann", 3, Unasked, idempotency_key="k", request_digest=digest("d")).replayed


def test_a_key_is_for_one_request_of_one_student(ledger: AnswerLedger) -> None:
    for name in ("ann", "bob"):
        ledger.add_student(name)
    ann = ask(ledger, "ann", 5, idempotency_key="k", request_digest=digest("d"))
    with pytest.raises(IdempotencyConflict, match="used for another request"):
        ask(ledger, "ann", 5, Unasked, idempotency_key="k", request_digest=digest("e"))
    bob = ask(ledger, "bob", 5, idempotency_key="k", request_digest=digest("d"))
    assert not bob.replayed
    assert bob.policies.tolist() != ann.policies.tolist()
    assert ledger.spent().answered == 10


@pytest.mark.parametrize("key", ["", "x" * 256, "a\nb", "é"])
def test_keys_are_short_and_printable(ledger: AnswerLedger, key: str) -> None:
    ledger.add_student("ann")
    with pytest.raises(ValueError, match="printable ASCII"):
        ask(ledger, "ann", 1, Unasked, idempotency_key=key, request_digest=digest("d"))


@pytest.mark.parametrize("threads", [True, False])
def test_identical_requests_at_the_same_moment(
    ledger: AnswerLedger, where: str, threads: bool
) -> None:
    ledger.add_student("ann")
    objects = [ledger] * 6 if threads else [AnswerLedger.open(where) for _ in range(6)]
    for number in range(5):
        with ThreadPoolExecutor(6) as pool:
            answers = list(
                pool.map(
                    lambda one, key=f"k{number}": ask(one, "ann", 2, idempotency_key=key),
                    objects,
                )
            )
        assert len({answer.policies.tobytes() for answer in answers}) == 1
        assert sum(not answer.replayed for answer in answers) == 1
    assert ledger.spent().answered == 10


# --- failures ------------------------------------------------------------------------------------


def test_nothing_is_charged_for_what_is_interrupted(ledger: AnswerLedger) -> None:
    def interrupted(observations: np.ndarray) -> np.ndarray:
        if len(observations) == 2:
            raise KeyboardInterrupt
        return np.ones((1, 3))

    ledger.add_student("ann")
    before = everything(ledger)
    with pytest.raises(KeyboardInterrupt):
        ask(ledger, "ann", 2, interrupted, idempotency_key="k")
    assert everything(ledger) == before
    assert not ask(ledger, "ann", 2, idempotency_key="k").replayed


@pytest.mark.parametrize("recorded", [True, False])
def test_a_commit_that_reports_failure_is_charged_once(
    ledger: AnswerLedger, where: str, monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    ledger.add_student("ann")

    def commit(connection: Any) -> None:
        if recorded:
            connection.commit()
        raise ledger._engine.dialect.dbapi.OperationalError("the lights went out")

    with monkeypatch.context() as patch:
        patch.setattr(ledger._engine.dialect, "do_commit", commit)
        with pytest.raises(LedgerUnavailable, match=r"lights went out\); nothing was answered"):
            ask(ledger, "ann", 2, idempotency_key="k")
    answered = ask(ledger, "ann", 2, idempotency_key="k")
    assert answered.replayed == recorded
    assert ledger.spent().answered == 2
    ask(ledger, "ann", 2)
    AnswerLedger.open(where).verify()


def test_a_ledger_locked_by_another_is_not_waited_for(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "LOCK_WAIT_SECONDS", 0.1)
    ledger = AnswerLedger.create(where, statement=answers(), budget=NO_TARGET)
    other = AnswerLedger.open(where)
    token = ledger.add_student("ann")

    def during(observations: np.ndarray) -> np.ndarray:
        if len(observations) == 1:
            return np.ones((1, 3))
        with pytest.raises(LedgerUnavailable, match="nothing was answered"):
            ask(other, "ann", 1, Unasked)
        assert other.authenticate(token) == "ann"
        assert other.remaining("ann") == 60
        seen.append(len(observations))
        return np.ones((2, 3))

    seen: list[int] = []
    ask(ledger, "ann", 2, during)
    assert set(seen) == {2}
    assert ask(other, "ann", 1).remaining == 57


# --- the wrong ledger, and tampering -------------------------------------------------------------


def test_a_training_run_is_no_teacher_and_no_teacher_a_training_run(
    ledger: AnswerLedger, where: str
) -> None:
    Ledger.create(where, "training", unit=UNIT, budget=NO_TARGET)
    with pytest.raises(LedgerMismatch, match="open it as a `Ledger`"):
        AnswerLedger.open(where, "training")
    with pytest.raises(LedgerMismatch, match="format answers-1"):
        Ledger.open(where, "run-a")
    with pytest.raises(LedgerMismatch, match="say which run"):
        AnswerLedger.open(where)
    with pytest.raises(LedgerMismatch, match="has a ledger already"):
        AnswerLedger.create(where, "training", statement=answers(), budget=NO_TARGET)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE entries SET payload = replace(payload, '\"rows\":2', '\"rows\":1') "
        "WHERE sequence = 2",
        "UPDATE entries SET payload = replace(payload, '\"queries\":60', '\"queries\":61') "
        "WHERE sequence = 1",
        "UPDATE entries SET payload = replace(payload, '0.5', '5.0') WHERE sequence = 0",
        "DELETE FROM entries WHERE sequence = 2",
        "UPDATE entries SET kind = 'revoke' WHERE sequence = 2",
    ],
)
def test_changed_entries_are_found(ledger: AnswerLedger, where: str, change: str) -> None:
    ledger.add_student("ann")
    for key in "ab":
        ask(ledger, "ann", 2, idempotency_key=key)
    execute(ledger, change)
    with pytest.raises(LedgerCorrupt, match="is not what was written"):
        AnswerLedger.open(where)
    with pytest.raises(LedgerCorrupt):
        ledger.verify()


def test_an_entry_that_breaks_the_rules_is_found(ledger: AnswerLedger, where: str) -> None:
    """They are found even if all hashes are computed again."""
    ledger.add_student("ann")
    head = ledger.spent().head_hash
    charge = {"student": "ann", "first_query": 0, "rows": 61, "answer": "", "request": None}
    with ledger._engine.begin() as connection:
        insert(connection, Entry("run-a", 2, "charge", canonical(charge), head))
    for refused in (lambda: AnswerLedger.open(where), lambda: ask(ledger, "ann", 1, Unasked)):
        with pytest.raises(LedgerCorrupt, match=r"entry 2 .* breaks its rules .*60 of 60"):
            refused()


def test_entries_that_go_missing_stop_the_ledger(ledger: AnswerLedger, where: str) -> None:
    """A database restored from an old backup lacks answers that were given."""
    ledger.add_student("ann")
    for _ in range(3):
        ask(ledger, "ann", 2)
    ledger.spent()
    execute(ledger, "DELETE FROM entries WHERE sequence = 4")
    for refused in (lambda: ask(ledger, "ann", 1, Unasked), ledger.verify, ledger.spent):
        with pytest.raises(LedgerCorrupt, match="last entries are gone"):
            refused()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE answers SET rows = (SELECT rows FROM answers WHERE sequence = 3) "
        "WHERE sequence = 2",
        "UPDATE answers SET request_digest = 'd' WHERE sequence = 3",
        "UPDATE answers SET idempotency_key = 'x' WHERE sequence = 3",
        "DELETE FROM answers WHERE sequence = 2",
        "UPDATE answers SET sequence = 9 WHERE sequence = 2",
    ],
)
def test_changed_answers_are_found(ledger: AnswerLedger, where: str, change: str) -> None:
    ledger.add_student("ann")
    for key in "ab":
        ask(ledger, "ann", 2, idempotency_key=key)
    ask(ledger, "ann", 2)
    ledger.verify()
    execute(ledger, change)
    with pytest.raises(LedgerCorrupt, match=r"the answer of entry . is not what was written"):
        AnswerLedger.open(where).verify()


def test_a_changed_answer_is_not_given_again(ledger: AnswerLedger) -> None:
    ledger.add_student("ann")
    for key in "ab":
        ask(ledger, "ann", 2, idempotency_key=key)
    swap = "UPDATE answers SET rows = (SELECT rows FROM answers WHERE sequence = 3)"
    execute(ledger, f"{swap} WHERE sequence = 2")
    with pytest.raises(LedgerCorrupt, match="the answer of entry 2 is not what was written"):
        ask(ledger, "ann", 2, Unasked, idempotency_key="a")


def test_errors_say_nothing_secret(ledger: AnswerLedger, where: str) -> None:
    token = ledger.add_student("ann")
    hashed = hashlib.sha256(token.encode()).hexdigest()
    with ledger._engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE tokens"))
    with pytest.raises(LedgerUnavailable) as caught:
        ledger.authenticate(token)
    message = str(caught.value)
    assert token not in message
    assert hashed not in message
    assert "\n" not in message


def test_a_delta_below_what_the_noise_sampler_leaves_out_is_refused(tmp_path: Path) -> None:
    gaussian = answers(mechanism=GaussianPolicy(actions=3, noise_stddev=2.0))
    budget = Budget(epsilon=1e3, delta=1e-24)
    with pytest.raises(BudgetExceeded, match="finer than the noise sampler's precision"):
        AnswerLedger.create(tmp_path / "ledger", statement=gaussian, budget=budget)
    coarser = budget.model_copy(update={"delta": 1.1e-23})
    AnswerLedger.create(tmp_path / "ledger", statement=gaussian, budget=coarser)
    many = gaussian.model_copy(update={"queries": 10**8})
    assert many.least_delta == pytest.approx(1e-21)
