"""The certificate of a teacher's answers: all of them, whoever asked, and what they can come to."""

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asking import ask
from commands import text_of
from pydantic_core import to_json
from small import answers

from sotto.privacy.accounting.composition import gaussian_epsilon
from sotto.privacy.answers.distances import (
    AnyTwoTeachers,
    ObservationDistance,
    PolicyDistance,
    TrainingShards,
)
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.answers.statement import Schedule
from sotto.privacy.bounds import at_most
from sotto.privacy.certificates.derive import Certificate, derive, verify
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms.policies import Dirichlet, TruncatedDirichlet
from sotto.privacy.statements import Gap
from sotto.privacy.units import Unit

NO_TARGET = Budget(epsilon=math.inf, delta=1e-5)


def ledger_of(path: Path, asked: dict[str, int], **changes: Any) -> AnswerLedger:
    statement = answers(**{"name": "kartini"} | changes)
    ledger = AnswerLedger.create(path, "run-a", statement=statement, budget=NO_TARGET)
    for name, rows in asked.items():
        ledger.add_student(name)
        if rows:
            ask(ledger, name, rows, idempotency_key="k")
    return ledger


def epsilon(answers: int) -> float:
    return gaussian_epsilon(0.5 / (math.sqrt(2) / 100) / math.sqrt(answers), 1e-5)


def test_a_certificate_says_what_all_students_together_learnt(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path / "ledger", {"ann": 30, "bob": 12, "cem": 0})
    certificate = derive(ledger)
    assert certificate.status == "proved"
    assert certificate.epsilon == pytest.approx(epsilon(100), rel=1e-5)
    answers = certificate.answers
    assert answers is not None
    assert answers.answered == 42
    assert answers.planned_epsilon == pytest.approx(epsilon(100), rel=1e-5)
    assert answers.spent_epsilon == pytest.approx(epsilon(42), rel=1e-5)
    assert [one.epsilon for one in answers.students] == pytest.approx(
        [epsilon(60), epsilon(60), 0], rel=1e-5
    )
    assert [one.spent_epsilon for one in answers.students] == pytest.approx(
        [epsilon(30), epsilon(12), 0], rel=1e-5
    )
    assert answers.statement == ledger.statement
    assert (certificate.unit.kind, certificate.streams, certificate.persons) == (
        "trajectory",
        (),
        0,
    )
    assert certificate.head_hash == ledger.head_hash
    assert dict(map(reversed, certificate.curve))[1e-5] == pytest.approx(certificate.epsilon)
    words = text_of(certificate)
    for line in (
        f"Proved: epsilon {at_most(certificate.epsilon)} at delta 1e-05. An observer who sees "
        "every answer",
        "42 of 100 answers of teacher 'kartini', the policy with Gaussian noise",
        f"all 100 of them cost at most epsilon {at_most(epsilon(100))}",
        f"given so far cost epsilon {at_most(epsilon(42))}, if their number was fixed in advance",
        f"ann: 30 of 60 answers, epsilon {at_most(epsilon(60))} for all they may get",
        "mean of 100 teachers trained on disjoint people",
    ):
        assert line in words
    assert "persons" not in words


def test_json_brings_back_an_equal_certificate(tmp_path: Path) -> None:
    schedule = Schedule(kind="vanishing", coefficient=0.1, queries_per_rollout=10, rollouts=6)
    for number, mechanism in enumerate(
        (
            Dirichlet(actions=3, concentration=5, floor=0.1),
            TruncatedDirichlet.sized(actions=3, concentration=1, floor=0.1, threshold=1e-4),
        )
    ):
        ledger = ledger_of(
            tmp_path / f"{number}", {"ann": 15}, mechanism=mechanism, schedule=schedule
        )
        certificate = derive(ledger)
        path = tmp_path / f"{number}.json"
        certificate.write(path)
        assert Certificate.model_validate_json(path.read_bytes()) == certificate
        assert verify(path, AnswerLedger.open(tmp_path / f"{number}")).status == "verified"
        assert "levels in all" in text_of(certificate)


def test_certificates_of_training_runs_stay_what_they_were(tmp_path: Path) -> None:
    unit = Unit(kind="trajectory", adjacency="zero-out")
    derive(Ledger.create(tmp_path / "ledger", unit=unit, budget=NO_TARGET)).write(tmp_path / "c")
    stored = json.loads((tmp_path / "c").read_text())
    assert "answers" not in stored
    assert stored["schema_version"] == 2
    assert Certificate.model_validate(stored).answers is None


@pytest.mark.parametrize(
    ("changes", "answers", "status", "words"),
    [
        ({}, {"ann": 1}, "proved", "Proved"),
        ({}, {"ann": 0}, "none", "nothing has been released yet"),
        ({"entropy": "fixed-seed"}, {"ann": 1}, "none", "came from a fixed seed"),
        (
            {"gaps": (Gap(name="exact rows", why="no noise"),)},
            {"ann": 1},
            "paper-claim",
            "exact rows: no noise",
        ),
    ],
)
def test_status(
    tmp_path: Path, changes: dict[str, Any], answers: dict[str, int], status: str, words: str
) -> None:
    ledger = ledger_of(tmp_path / "ledger", answers, **changes)
    certificate = derive(ledger)
    assert certificate.status == status
    assert words in text_of(certificate)
    certificate.write(tmp_path / "certificate.json")
    assert verify(tmp_path / "certificate.json", ledger).status == "verified"


@pytest.mark.parametrize(
    ("distance", "kind", "sentence"),
    [
        (ObservationDistance(radius=0.25, lipschitz=1.0), "observation", "b = 0.25"),
        (PolicyDistance(l2=0.01), "policy", "0.01 in L2 norm"),
        (AnyTwoTeachers(), "teacher", "whole teacher"),
        (TrainingShards(teachers=100), "trajectory", "whole of their trajectory"),
    ],
)
def test_what_is_protected_and_what_is_not(
    tmp_path: Path, distance: Any, kind: str, sentence: str
) -> None:
    certificate = derive(ledger_of(tmp_path / "ledger", {"ann": 5}, distance=distance))
    assert certificate.unit.kind == kind
    assert sentence in certificate.unit_sentence
    shards = kind == "trajectory"
    not_protected = " ".join(certificate.does_not_protect)
    assert ("claim about training data" in not_protected) != shards
    assumptions = {one.statement: one.enforced_by for one in certificate.assumptions}
    assert any("1 / (number of people" in line for line in assumptions) == shards
    assert [by for line, by in assumptions.items() if "charged before it leaves" in line] == [
        "code"
    ]


def test_no_secret_is_in_a_certificate(tmp_path: Path) -> None:
    mechanism = Dirichlet(actions=3, concentration=5, floor=0.1)  # no probability is 0 or 1
    ledger = ledger_of(tmp_path / "ledger", {}, mechanism=mechanism)
    token = ledger.add_student("ann")
    answered = ask(ledger, "ann", 2, idempotency_key="the key")
    text = derive(ledger).model_dump_json() + text_of(derive(ledger))
    for secret in (token, hashlib.sha256(token.encode()).hexdigest(), "the key"):
        assert secret not in text
    assert str(answered.policies[0, 0]) not in text


# --- verification --------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, Path]:
    mechanism = Dirichlet(actions=3, concentration=5, floor=0.1)
    ledger = ledger_of(tmp_path / "ledger", {"ann": 20, "bob": 5}, mechanism=mechanism)
    derive(ledger).write(tmp_path / "certificate.json")
    return tmp_path / "certificate.json", tmp_path / "ledger"


def edit(*path: Any, to: Any) -> Callable[[Any], None]:
    def change(certificate: Any) -> None:
        for key in path[:-1]:
            certificate = certificate[key]
        certificate[path[-1]] = to(certificate[path[-1]]) if callable(to) else to

    return change


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("epsilon", edit("epsilon", to=lambda e: 0.99 * e)),
        ("answers", edit("answers", "planned_epsilon", to=lambda e: 0.99 * e)),
        ("answers", edit("answers", "spent_epsilon", to=lambda e: 0.99 * e)),
        ("answers", edit("answers", "answered", to=24)),
        ("answers", edit("answers", "students", 0, "answered", to=19)),
        ("answers", edit("answers", "students", 0, "epsilon", to=lambda e: 0.99 * e)),
        ("answers", edit("answers", "students", 1, "revoked", to=True)),
        ("answers", edit("answers", "students", to=lambda s: s[:1])),
        ("answers", edit("answers", "statement", "distance", "teachers", to=101)),
        ("answers", edit("answers", "statement", "mechanism", "concentration", to=5 + 1e-9)),
        ("answers", edit("answers", "statement", "queries", to=101)),
        ("worst_person", edit("worst_person", "events", 0, "count", to=24)),
        (
            "worst_person",
            edit("worst_person", "events", 0, "divergences", 7, to=lambda d: 0.99 * d),
        ),
        ("unit", edit("unit", "kind", to="observation")),
        ("claims", edit("claims", to=[])),
        ("claims", edit("claims", 0, "numbers", "teachers", to="1000")),
        ("budget", edit("budget", to={"epsilon": 1.0, "delta": 1e-5})),
        ("head_hash", edit("head_hash", to="0" * 64)),
        ("status", edit("status", to="none")),
    ],
)
def test_an_edited_certificate_fails(run: tuple[Path, Path], field: str, change: Any) -> None:
    path, ledger_path = run
    stored = json.loads(path.read_text())
    change(stored)
    path.write_bytes(to_json(stored, indent=2) + b"\n")
    (mismatch,) = verify(path, AnswerLedger.open(ledger_path)).mismatches
    assert mismatch.startswith(f"{field} is not what the ledger gives")


def test_arithmetic_of_another_machine_is_forgiven(run: tuple[Path, Path]) -> None:
    path, ledger_path = run
    stored = json.loads(path.read_text())
    for change in (
        edit("epsilon", to=lambda e: e * (1 + 1e-9)),
        edit("answers", "planned_epsilon", to=lambda e: e * (1 + 1e-9)),
        edit("worst_person", "events", 0, "divergences", 7, to=lambda d: d * (1 + 1e-9)),
    ):
        change(stored)
    path.write_bytes(to_json(stored, indent=2) + b"\n")
    assert verify(path, AnswerLedger.open(ledger_path)).status == "verified"


def test_a_ledger_that_goes_on_makes_its_certificate_old(run: tuple[Path, Path]) -> None:
    path, ledger_path = run
    opened = AnswerLedger.open(ledger_path)
    ask(AnswerLedger.open(ledger_path), "ann", 1)
    found = verify(path, opened)
    assert (found.status, found.mismatches) == ("stale", ())
    assert found.current is not None
    assert found.current.answers is not None
    assert found.current.answers.answered == 26


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("DELETE FROM entries WHERE sequence = 4", "last entries are gone"),
        (
            "UPDATE entries SET payload = replace(payload, ':20', ':10') WHERE sequence = 2",
            "entry 2",
        ),
        ("UPDATE answers SET rows = zeroblob(480) WHERE sequence = 2", "answer of entry 2"),
    ],
)
def test_a_changed_ledger_fails(run: tuple[Path, Path], change: str, words: str) -> None:
    path, ledger_path = run
    ledger = AnswerLedger.open(ledger_path)
    with ledger._engine.begin() as connection:
        for name in ("no_update", "no_delete"):
            connection.exec_driver_sql(f"DROP TRIGGER {name}")
        assert connection.exec_driver_sql(change).rowcount == 1
    assert any(words in line for line in verify(path, ledger).mismatches)
