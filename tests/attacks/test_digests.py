"""A database of answers in foreign hands: what was asked cannot be read from it.

The attack hashes every candidate, as one does with a one-hot state, and looks for it.
"""

import hashlib
import stat
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import small_teacher
import sqlalchemy as sa
from asking import alike

from sotto.errors import RunError
from sotto.privacy.answers.digests import DigestKey, DigestKeyLost
from sotto.privacy.answers.distances import ObservationDistance
from sotto.privacy.answers.ledger import Answered, AnswerLedger
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.errors import IdempotencyConflict
from sotto.privacy.ledger.entries import canonical
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms.noise import GeneratorSource
from sotto.serving.directory import Service, ServiceSettings, create_service, open_service
from sotto.serving.questions import Question

STATES = 500


def statement() -> AnswerStatement:
    distance = ObservationDistance(radius=0.01, lipschitz=1.0)
    return small_teacher.statement(100, distance=distance, observation_size=STATES)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    settings = ServiceSettings.new(
        run=tmp_path / "run", env_id="Fake-v0", promise={}, ledger=None, command="test"
    )
    budget = Budget(epsilon=8.0, delta=1e-5)
    return create_service(tmp_path / "service", settings, statement(), budget)


def question(state: int) -> Question:
    return Question(np.eye(STATES)[[state]], "key")


def ask(ledger: AnswerLedger, key: DigestKey | None, state: int, name: str = "key"):
    digest = None if key is None else key.digest(ledger.run_id, question(state).contents)
    return answered(ledger, state, idempotency_key=name, request_digest=digest)


def answered(ledger: AnswerLedger, state: int, **request) -> Answered:
    asked, teacher = question(state).observations, alike(ledger.statement)
    return ledger.answer("ann", asked, teacher, GeneratorSource(), **request)


def everything(path: Path) -> str:
    """All text and all bytes of the database, in hexadecimal too."""
    contents = path.read_bytes()
    return contents.decode(errors="replace") + contents.hex()


def test_a_one_hot_state_is_not_found_by_hashing_every_candidate(service):
    ledger = service.open_ledger()
    ledger.add_student("ann")
    secret = 137
    ask(ledger, service.digest_key(ledger), secret)
    held = everything(service.path / "ledger.sqlite")
    for state in range(STATES):
        contents = question(state).contents
        plain = hashlib.sha256(contents).hexdigest()
        entry = hashlib.sha256(canonical(["key", plain]).encode()).hexdigest()
        for found in (plain, entry, contents.hex()):
            assert found not in held
        # Nor with what is public of the key, or with a key that is guessed.
        for guess in (b"", bytes(32), ledger.run_id.encode()):
            assert DigestKey(guess).digest(ledger.run_id, contents).keyed not in held


def test_the_attack_finds_what_earlier_versions_stored(service):
    """So that the test above can fail: the same search, in a ledger with a plain digest."""
    ledger = service.open_ledger()
    old_answer(ledger, 137)
    held = everything(service.path / "ledger.sqlite")
    found = [s for s in range(STATES) if hashlib.sha256(question(s).contents).hexdigest() in held]
    assert found == [137]


def old_answer(ledger: AnswerLedger, state: int) -> bytes:
    """An answer as the version before wrote it, with a plain SHA-256 of what was asked."""

    class Plain:
        kind = ""
        keyed = hashlib.sha256(question(state).contents).hexdigest()

    ledger.add_student("ann")
    given = answered(ledger, state, idempotency_key="key", request_digest=Plain())
    return given.policies.tobytes()


def test_ledgers_of_earlier_versions_open_verify_and_replay(service):
    ledger = service.open_ledger()
    given = old_answer(ledger, 137)
    ledger = service.open_ledger()
    ledger.verify()
    key = service.digest_key(ledger)
    again = ask(ledger, key, 137)
    assert again.replayed
    assert again.policies.tobytes() == given
    with pytest.raises(IdempotencyConflict, match="used for another request"):
        ask(ledger, key, 138)
    ask(ledger, key, 138, "new")
    service.open_ledger().verify()
    assert kinds(ledger) == ["", "hmac-sha256"]


def kinds(ledger: AnswerLedger) -> list[str]:
    query = "SELECT json_extract(payload, '$.digest') FROM entries WHERE kind = 'charge'"
    with ledger._engine.begin() as connection:
        return list(connection.scalars(sa.text(query)))


def test_equal_requests_of_two_ledgers_have_other_digests():
    key, contents = DigestKey(bytes(range(32))), question(1).contents
    names = ("a", "b", "a\0", "")
    digests = {key.digest(name, contents).keyed for name in names}
    assert len(digests) == len(names)
    moved = {key.digest(name, text).keyed for name, text in product(("a", "ab"), (b"bc", b"c"))}
    assert len(moved) == 4  # nothing slides from the name into the request


def test_a_repeated_request_is_recognised_after_a_restart(service):
    ledger = service.open_ledger()
    ledger.add_student("ann")
    first = ask(ledger, service.digest_key(ledger), 7)
    reopened = open_service(service.path)
    again = ask(reopened.open_ledger(), reopened.digest_key(ledger), 7)
    assert again.replayed
    assert again.policies.tobytes() == first.policies.tobytes()


def test_a_lost_key_stops_the_service_and_nothing_is_answered_anew(service):
    ledger = service.open_ledger()
    ledger.add_student("ann")
    ask(ledger, service.digest_key(ledger), 7)
    (service.path / "digests.key").unlink()
    with pytest.raises(RunError, match=r"is missing, by which .* --new-digest-key"):
        service.digest_key(ledger)
    key = service.digest_key(ledger, renew=True)
    for state in (7, 8):  # neither given again, which might be another's, nor drawn anew
        with pytest.raises(IdempotencyConflict, match="is lost; ask under a new idempotency key"):
            ask(ledger, key, state)
    assert ledger.spent().answered == 1
    assert not ask(ledger, key, 7, "new").replayed


def test_a_key_without_answers_may_be_made_anew(service):
    (service.path / "digests.key").unlink()
    service.digest_key(service.open_ledger())
    assert (service.path / "digests.key").exists()


def test_the_key_is_random_private_and_not_half_written(tmp_path):
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        DigestKey.create(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert len(path.read_bytes()) == 32
    assert paths[0].read_bytes() != paths[1].read_bytes()
    before = paths[0].read_bytes()
    DigestKey.create(paths[0])
    assert paths[0].read_bytes() == before
    paths[0].write_bytes(before[:5])
    with pytest.raises(DigestKeyLost, match="does not contain a key"):
        DigestKey.create(paths[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_nobody_else_reads_a_services_directory(service):
    ledger = service.open_ledger()
    ledger.add_student("ann")
    ask(ledger, service.digest_key(ledger), 7)
    service.operator.renew()
    service.write_certificate(ledger)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in service.path.iterdir()}
    assert stat.S_IMODE(service.path.stat().st_mode) == 0o700
    assert set(modes) >= {"service.json", "ledger.sqlite", "certificate.json", "digests.key"}
    assert set(modes.values()) == {0o600}


def test_a_service_of_an_earlier_version_is_closed_to_others(service):
    for path in service.path.iterdir():
        path.chmod(0o644)
    service.path.chmod(0o755)
    service.protect()
    assert {stat.S_IMODE(path.stat().st_mode) for path in service.path.iterdir()} == {0o600}
    assert stat.S_IMODE(service.path.stat().st_mode) == 0o700
