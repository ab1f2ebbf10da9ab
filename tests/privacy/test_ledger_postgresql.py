"""The ledger on a real PostgreSQL server: as durable, and as hard to fool, as on SQLite."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from small import UNIT, statement

from sotto.privacy.errors import LedgerCorrupt, LedgerMismatch, LedgerUnavailable
from sotto.privacy.ledger import databases, entries
from sotto.privacy.ledger.allowances import Allowance
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.persons import PersonBlock
from sotto.privacy.ledger.shared import SharedBudget
from sotto.privacy.ledger.spending import Budget

BUDGET = Budget(epsilon=1.3, delta=1e-5)
STATEMENT = statement(horizon=100_000)


@pytest.fixture
def ledger(postgresql_url: str) -> Ledger:
    return Ledger.create(postgresql_url, "run-a", unit=UNIT, budget=BUDGET)


def state(ledger: Ledger) -> Any:
    held = [(one.statement, one.releases, one.persons.blocks) for one in ledger.streams]
    return ledger.head_hash, ledger.persons, ledger.next_person, ledger.spent().epsilon, held


@contextmanager
def connected(url: str) -> Iterator[sa.Connection]:
    """A connection of somebody else's, who commits at once."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def test_a_url_need_not_name_the_driver(ledger: Ledger, postgresql_url: str) -> None:
    short = postgresql_url.replace("+psycopg", "")
    assert state(Ledger.open(short)) == state(ledger)


def test_the_wrong_ledger_is_refused(ledger: Ledger, postgresql_url: str) -> None:
    with pytest.raises(LedgerMismatch, match="belongs to run 'run-a', not 'run-b'"):
        Ledger.open(postgresql_url, "run-b")
    with pytest.raises(LedgerMismatch, match="has a ledger already"):
        Ledger.create(postgresql_url, "run-a", unit=UNIT, budget=BUDGET)
    for name in ("x" * 65, "a\x00b", ""):
        with pytest.raises(ValueError, match="run's name"):
            Ledger.create(postgresql_url, name or "\n", unit=UNIT, budget=BUDGET)


def test_a_database_without_a_ledger_says_so(postgresql_url: str) -> None:
    with pytest.raises(LedgerUnavailable, match=r"there is no ledger at .*create it first"):
        Ledger.open(postgresql_url)


@pytest.mark.parametrize(
    "change",
    [
        lambda url: url.replace("/test", "/missing").replace("sotto@", "sotto:hunter2@"),
        lambda url: url.split("?")[0].replace("@/", "@127.0.0.1:1/") + "?password=hunter2",
    ],
)
def test_a_server_that_does_not_answer_is_one_sentence(
    postgresql_url: str, change: Callable[[str], str]
) -> None:
    for refused in (
        lambda url: Ledger.open(url),
        lambda url: Ledger.create(url, unit=UNIT, budget=BUDGET),
    ):
        with pytest.raises(LedgerUnavailable, match="cannot be used") as caught:
            refused(change(postgresql_url))
        assert "hunter2" not in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("same", [True, False])
def test_everybody_creates_at_once(postgresql_url: str, same: bool) -> None:
    def create(number: int) -> str:
        name = "run" if same else f"run-{number}"
        try:
            return Ledger.create(postgresql_url, name, unit=UNIT, budget=BUDGET).run_id
        except LedgerMismatch:
            return "refused"

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(create, range(8)))
    assert made.count("refused") == (7 if same else 0)
    assert len(set(made) - {"refused"}) == (1 if same else 8)


# --- several writers -----------------------------------------------------------------------------


def test_writers_that_write_at_the_same_moment(ledger: Ledger, postgresql_url: str) -> None:
    writers = [Ledger.open(postgresql_url) for _ in range(6)]

    def write(one: Ledger) -> int:
        try:
            one.open_stream(STATEMENT)
        except LedgerMismatch:
            return 0
        return 1

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(write, writers)) == 1
    assert len(Ledger.open(postgresql_url).streams) == 1


def test_a_ledger_is_read_while_another_process_writes(ledger: Ledger, postgresql_url: str) -> None:
    other = Ledger.open(postgresql_url)
    with other._engine.begin() as connection:
        connection.execute(sa.text("LOCK TABLE entries IN EXCLUSIVE MODE"))
        assert state(Ledger.open(postgresql_url)) == state(ledger)


def test_a_run_is_locked_from_its_first_entry_on_and_no_other_run_is(
    ledger: Ledger, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "LOCK_WAIT_SECONDS", 0.2)
    Ledger.create(postgresql_url, "run-b", unit=UNIT, budget=BUDGET)
    engine = databases.database(postgresql_url)
    with engine.begin() as first:
        entries.lock(first, "run-a")
        with engine.begin() as second:
            entries.lock(second, "run-b")
            with pytest.raises(sa.exc.OperationalError, match="lock timeout"):
                entries.lock(second, "run-a")


def test_nobody_waits_for_ever(postgresql_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "LOCK_WAIT_SECONDS", 0.2)
    ledger = Ledger.create(postgresql_url, unit=UNIT, budget=BUDGET)
    other = Ledger.open(postgresql_url)
    with other._engine.begin() as connection:
        connection.execute(sa.text("LOCK TABLE entries IN EXCLUSIVE MODE"))
        with pytest.raises(LedgerUnavailable, match=r"lock timeout\); nothing was charged"):
            ledger.open_stream(STATEMENT)
    ledger.open_stream(STATEMENT)


def test_a_server_that_does_not_answer_is_given_up(postgresql_url: str) -> None:
    def parameters(url: str) -> dict[str, str]:
        engine = databases.database(url)
        with engine.connect() as connection:
            found: dict[str, str] = connection.connection.dbapi_connection.info.get_parameters()
        engine.dispose()
        return found

    ours = parameters(postgresql_url)
    assert (ours["connect_timeout"], ours["tcp_user_timeout"]) == ("10", "30000")
    assert ours["keepalives_idle"] == ours["keepalives_interval"] == "10"
    own = parameters(postgresql_url + "&connect_timeout=3")
    assert (own["connect_timeout"], own["tcp_user_timeout"]) == ("3", "30000")


# --- durability ----------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["synchronous_commit", "fsync"])
def test_a_server_that_may_forget_is_refused(
    ledger: Ledger, postgresql_url: str, setting: str
) -> None:
    stream = ledger.open_stream(STATEMENT)
    with connected(postgresql_url) as admin:
        admin.execute(sa.text(f"ALTER SYSTEM SET {setting} = off"))
        try:
            admin.execute(sa.text("SELECT pg_reload_conf()"))
            wait_until(ledger, setting, "off")
            with pytest.raises(LedgerUnavailable, match=f"turn {setting} on"):
                stream.charge(0, 1, [np.array([0])])
            with pytest.raises(LedgerUnavailable, match=f"turn {setting} on"):
                Ledger.create(postgresql_url, "run-b", unit=UNIT, budget=BUDGET)
        finally:
            admin.execute(sa.text(f"ALTER SYSTEM RESET {setting}"))
            admin.execute(sa.text("SELECT pg_reload_conf()"))
    wait_until(ledger, setting, "on")
    stream.charge(0, 1, [np.array([0])])
    assert Ledger.open(postgresql_url).streams[0].releases == 1


def wait_until(ledger: Ledger, setting: str, value: str) -> None:
    for _ in range(200):
        with databases.reading(ledger._engine) as connection:
            if connection.scalar(sa.text(f"SELECT current_setting('{setting}')")) == value:
                return
        time.sleep(0.02)
    pytest.fail(f"{setting} did not become {value}")


@pytest.mark.parametrize("recorded", [True, False])
def test_a_commit_that_reports_failure_is_charged_once(
    ledger: Ledger, postgresql_url: str, monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    """The server goes away just before, or just after, it commits."""
    stream = ledger.open_stream(STATEMENT)
    before = state(ledger)
    commit = ledger._engine.dialect.do_commit

    def failing(connection: Any) -> None:
        if recorded:
            commit(connection)
        with connected(postgresql_url) as admin:
            pid = connection.dbapi_connection.info.backend_pid
            admin.execute(sa.text(f"SELECT pg_terminate_backend({pid}, 5000)"))
        connection.execute("SELECT 1")

    with monkeypatch.context() as patch:
        patch.setattr(ledger._engine.dialect, "do_commit", failing)
        with pytest.raises(LedgerUnavailable, match="cannot be used") as caught:
            stream.charge(0, 1, [np.array([0])])
    assert "\n" not in str(caught.value)
    assert state(ledger) == before
    stream.charge(0, 1, [np.array([0])])
    stream.charge(1, 1, [np.array([1])])
    assert stream.releases == 2
    assert state(Ledger.open(postgresql_url)) == state(ledger)


def test_a_commit_with_a_warning_has_failed(ledger: Ledger, postgresql_url: str) -> None:
    """As if somebody had cancelled its wait for a synchronous standby."""
    stream = ledger.open_stream(STATEMENT)
    with connected(postgresql_url) as admin:
        admin.exec_driver_sql(
            "CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE WARNING 'no standby has it'; RETURN NULL; END $$"
        )
        admin.exec_driver_sql(
            "CREATE CONSTRAINT TRIGGER warning AFTER INSERT ON entries "
            "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION warn()"
        )
        with pytest.raises(LedgerUnavailable, match=r"no standby has it"):
            stream.charge(0, 1, [np.array([0])])
        admin.exec_driver_sql("DROP TRIGGER warning ON entries")
    stream.charge(0, 1, [np.array([0])])
    assert stream.releases == 1
    assert state(Ledger.open(postgresql_url)) == state(ledger)


@pytest.mark.parametrize(
    "forgets",
    [
        "CREATE RULE forget AS ON INSERT TO entries DO INSTEAD NOTHING",
        "CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;"
        "CREATE TRIGGER forget BEFORE INSERT ON entries FOR EACH ROW EXECUTE FUNCTION forget()",
    ],
)
def test_a_database_that_forgets_charges_is_refused(
    ledger: Ledger, postgresql_url: str, forgets: str
) -> None:
    stream = ledger.open_stream(STATEMENT)
    with connected(postgresql_url) as admin:
        admin.exec_driver_sql(forgets)
    with pytest.raises(LedgerCorrupt, match="does not keep what is written into the ledger"):
        stream.charge(0, 1, [np.array([0])])
    assert stream.releases == 0


_DEFERRED = """
CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN DELETE FROM entries WHERE sequence = NEW.sequence; RETURN NULL; END $$;
DROP TRIGGER no_change ON entries;
CREATE CONSTRAINT TRIGGER forget AFTER INSERT ON entries
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION forget()
"""


def test_a_charge_that_is_forgotten_at_its_commit_is_refused(
    ledger: Ledger, postgresql_url: str
) -> None:
    stream = ledger.open_stream(STATEMENT)
    with connected(postgresql_url) as admin:
        admin.exec_driver_sql(_DEFERRED)
    for _ in range(2):
        with pytest.raises(LedgerCorrupt, match="does not keep what is written into the ledger"):
            stream.charge(0, 1, [np.array([0])])
    assert stream.releases == 0


def test_a_shared_budget_that_forgets_at_a_commit_is_refused(postgresql_url: str) -> None:
    budget = SharedBudget.create(postgresql_url, Allowance(epsilon=5.0, delta=1e-3))
    with connected(postgresql_url) as admin:
        admin.exec_driver_sql(_DEFERRED)
    with pytest.raises(LedgerCorrupt, match="does not keep what is written into the ledger"):
        budget.see("run-a 0", None, "0" * 64)


@pytest.mark.parametrize(
    ("made", "named"),
    [
        (_DEFERRED, "the trigger 'forget'"),
        ("CREATE RULE lost AS ON INSERT TO entries DO INSTEAD NOTHING", "the rule 'lost'"),
        ("CREATE POLICY hidden ON entries USING (false)", "the policy 'hidden'"),
        ("ALTER TABLE entries ENABLE ROW LEVEL SECURITY", "the unusual table 'entries'"),
        ("ALTER TABLE entries SET UNLOGGED", "the unusual table 'entries'"),
        (
            "ALTER TABLE entries RENAME TO kept; CREATE VIEW entries AS SELECT * FROM kept",
            "the rule '_RETURN'",
        ),
        (
            "CREATE TABLE others (run_id varchar PRIMARY KEY); INSERT INTO others VALUES ('run-a');"
            "ALTER TABLE entries ADD FOREIGN KEY (run_id) REFERENCES others ON DELETE CASCADE",
            "the trigger 'RI_",
        ),
        (
            "DROP TRIGGER no_change ON entries; CREATE TRIGGER no_change BEFORE UPDATE ON entries "
            "FOR EACH STATEMENT EXECUTE FUNCTION sotto_append_only()",
            "the trigger 'no_change'",
        ),
    ],
)
def test_a_database_that_could_forget_charges_is_not_opened(
    ledger: Ledger, postgresql_url: str, made: str, named: str
) -> None:
    with connected(postgresql_url) as admin:
        admin.exec_driver_sql(made)
    for refused in (
        lambda: Ledger.open(postgresql_url),
        lambda: Ledger.create(postgresql_url, "run-b", unit=UNIT, budget=BUDGET),
    ):
        with pytest.raises(LedgerCorrupt, match=f"holds {named}.*could drop or hide"):
            refused()


_VICTIM = """
import sys
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.persons import PersonBlock
from sotto.privacy.statements import StreamStatement

ledger = Ledger.open(sys.argv[1])
stream = ledger.open_stream(StreamStatement.model_validate_json(sys.argv[2]))
while True:
    a = ledger.next_person
    stream.charge(stream.releases, 2, [PersonBlock(a, a + 3), PersonBlock(a + 4, a + 7)])
    print(stream.releases, flush=True)
"""


def test_killed_at_any_moment_it_holds_all_that_was_charged(
    ledger: Ledger, postgresql_url: str
) -> None:
    for index, released in enumerate((1, 40, 97)):
        victim = subprocess.Popen(
            [sys.executable, "-c", _VICTIM, postgresql_url, STATEMENT.model_dump_json()],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert victim.stdout
        for _ in range(released):
            victim.stdout.readline()
        victim.send_signal(signal.SIGKILL)
        lines = victim.stdout.read().split()
        assert victim.wait(10) == -signal.SIGKILL
        seen = 2 * (released + len(lines))
        time.sleep(0.2)  # the server finishes what it was sent
        assert seen <= Ledger.open(postgresql_url).streams[index].releases <= seen + 2


# --- tampering -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", ["UPDATE entries SET payload = ''", "DELETE FROM entries", "TRUNCATE entries"]
)
def test_rows_cannot_be_changed_by_accident(
    ledger: Ledger, postgresql_url: str, change: str
) -> None:
    with (
        connected(postgresql_url) as connection,
        pytest.raises(sa.exc.DBAPIError, match="append-only"),
    ):
        connection.execute(sa.text(change))
    assert state(Ledger.open(postgresql_url)) == state(ledger)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE entries SET payload = replace(payload, '3.0', '9.0') WHERE sequence = 1",
        "UPDATE entries SET hash = previous_hash WHERE sequence = 2",
        "DELETE FROM entries WHERE sequence = 2",
        "UPDATE entries SET run_id = 'run-b'",
    ],
)
def test_tampering_is_found(ledger: Ledger, postgresql_url: str, change: str) -> None:
    stream = ledger.open_stream(STATEMENT)
    stream.charge(0, 1, [PersonBlock(4, 9)])
    stream.charge(1, 1, [PersonBlock(20, 22)])
    with connected(postgresql_url) as connection:
        connection.execute(sa.text("ALTER TABLE entries DISABLE TRIGGER no_change"))
        assert connection.execute(sa.text(change)).rowcount > 0
    with pytest.raises(LedgerCorrupt, match=r"entry . of the ledger is not what was written"):
        Ledger.open(postgresql_url)
