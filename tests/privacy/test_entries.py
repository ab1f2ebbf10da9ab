"""The entries of a ledger: their chain, their pages, and what else is in the database."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from kinds_of_statements import PERSON, stream

from sotto.privacy import settings
from sotto.privacy.errors import LedgerCorrupt, LedgerMismatch, LedgerUnavailable, PrivacyError
from sotto.privacy.ledger import entries
from sotto.privacy.ledger.databases import database, reading
from sotto.privacy.ledger.entries import GENESIS, Entry
from sotto.privacy.ledger.ledger import NO_TIME, Ledger
from sotto.privacy.ledger.persons import PersonBlock
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.statements import Correlation, Part, Returning

BUDGET = Budget(epsilon=1.5, delta=1e-5)


@pytest.fixture
def engine(tmp_path: Path) -> sa.Engine:
    return database(tmp_path / "ledger")


def chain(engine: sa.Engine, length: int, run_id: str = "run") -> list[Entry]:
    """Writes a run of this many entries, whose contents nobody reads."""
    made: list[Entry] = []
    for sequence in range(length):
        previous = made[-1].hash if made else GENESIS
        kind = "charge" if made else "create"
        made.append(Entry(run_id, sequence, kind, f"[{sequence}]", previous))
        (entries.append if sequence else entries.create)(engine, made[-1])
    return made


def read(engine: sa.Engine) -> list[Entry]:
    """Returns all entries of the run "run"."""
    with reading(engine) as connection:
        return list(entries.follow(connection, "run", 0, GENESIS))


def copy_of_row(engine: sa.Engine, **changes: Any) -> None:
    """Writes the first row again, with these changes, past everything that checks entries."""
    with engine.begin() as connection:
        row = dict(connection.execute(sa.text("SELECT * FROM entries")).mappings().first() or {})
        names = ", ".join(row)
        values = ", ".join(f":{name}" for name in row)
        connection.execute(
            sa.text(f"INSERT INTO entries ({names}) VALUES ({values})"), row | changes
        )


# --- what is written -----------------------------------------------------------------------------


def test_contents_have_one_text_whatever_their_order() -> None:
    assert entries.canonical({"b": 1, "a": [1.5, None]}) == '{"a":[1.5,null],"b":1}'
    for number in (math.nan, math.inf):
        with pytest.raises(ValueError, match="not JSON compliant"):
            entries.canonical({"a": number})


def test_a_hash_covers_every_field() -> None:
    entry = Entry("run", 1, "open", "{}", GENESIS)
    others = [
        Entry("another", 1, "open", "{}", GENESIS),
        Entry("run", 2, "open", "{}", GENESIS),
        Entry("run", 1, "charge", "{}", GENESIS),
        Entry("run", 1, "open", "[]", GENESIS),
        Entry("run", 1, "open", "{}", entry.hash),
    ]
    assert len({entry.hash, *(one.hash for one in others)}) == 6
    assert GENESIS == 64 * "0"
    with pytest.raises(AttributeError):
        entry.payload = "[]"  # type: ignore[misc]


def test_the_database_itself_refuses_a_second_entry_in_the_same_place(engine: sa.Engine) -> None:
    chain(engine, 2)
    with pytest.raises(sa.exc.IntegrityError, match="UNIQUE"):
        copy_of_row(engine)
    copy_of_row(engine, run_id="another")
    copy_of_row(engine, sequence=7)
    for name in ("run_id", "sequence", "kind", "payload", "previous_hash", "hash"):
        with pytest.raises(sa.exc.IntegrityError, match="NOT NULL"):
            copy_of_row(engine, **({"sequence": 8} | {name: None}))


def test_the_name_of_a_run_has_1_to_64_printable_characters(engine: sa.Engine) -> None:
    for name in ("", "x" * 65, "a\nb"):
        with pytest.raises(ValueError, match="1 to 64 printable characters"):
            chain(engine, 1, name)
    for name in ("x", "y" * 64):
        chain(engine, 1, name)
        assert entries.find_run(engine, name) == name


def test_the_name_of_a_new_file_is_synced(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a sync of the folder, a power failure could leave no ledger at all."""
    synced = []

    def fsync(number: int) -> None:
        synced.append(os.path.realpath(f"/proc/self/fd/{number}"))

    monkeypatch.setattr(os, "fsync", fsync)
    chain(engine, 1)
    assert os.path.realpath(tmp_path) in synced


# --- what is read --------------------------------------------------------------------------------


@pytest.mark.parametrize("length", range(1, 9))
def test_pages_hold_every_entry_once(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.setattr(entries, "_PAGE", 4)
    written = chain(engine, length)
    chain(engine, 3, "another")
    assert read(engine) == written
    with engine.begin() as connection:
        for first in range(1, length + 1):
            head = written[first - 1].hash
            assert list(entries.follow(connection, "run", first, head)) == written[first:]


def test_nobody_follows_an_entry_that_is_gone(engine: sa.Engine) -> None:
    written = chain(engine, 3)
    with engine.begin() as connection:
        for sequence, head in ((3, written[1].hash), (4, written[2].hash), (2, GENESIS)):
            with pytest.raises(LedgerCorrupt, match="last entries are gone"):
                list(entries.follow(connection, "run", sequence, head))


def test_a_run_is_found_by_its_name_or_as_the_only_one(engine: sa.Engine) -> None:
    with pytest.raises(LedgerUnavailable, match="there is no ledger"):
        entries.find_run(engine, None)
    chain(engine, 1)
    assert entries.find_run(engine, None) == entries.find_run(engine, "run") == "run"
    with pytest.raises(LedgerMismatch, match="belongs to run 'run', not 'another'"):
        entries.find_run(engine, "another")
    chain(engine, 1, "another")
    assert entries.find_run(engine, "another") == "another"
    with pytest.raises(LedgerMismatch, match="holds 'another', 'run'; say which run to open"):
        entries.find_run(engine, None)


def test_a_database_of_something_else_holds_no_ledger(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE something (x INTEGER)")
    with pytest.raises(LedgerUnavailable, match="holds no ledger; name another file"):
        entries.find_run(engine, None)
    entries._entries.create(engine)
    with pytest.raises(LedgerMismatch, match="no run"):
        entries.find_run(engine, "run")


def test_an_entry_is_held_by_its_own_run_and_read_in_its_place(engine: sa.Engine) -> None:
    written, others = chain(engine, 3), chain(engine, 2, "another")
    assert all(entries.holds(engine, "run", one.hash) for one in written)
    assert not any(entries.holds(engine, "run", one.hash) for one in others)
    assert not entries.holds(engine, "run", GENESIS)
    with engine.begin() as connection:
        assert entries.payload_at(connection, "run", 2) == "[2]"
        assert entries.payload_at(connection, "another", 2) is None


# --- what a ledger makes of them -----------------------------------------------------------------


def create(folder: Path, **options: Any) -> Ledger:
    return Ledger.create(folder / "ledger", "run", unit=PERSON, budget=BUDGET, **options)


def test_a_ledger_says_how_it_was_made(tmp_path: Path) -> None:
    made = create(tmp_path, created=NO_TIME)
    made.open_stream(stream())
    for one in (made, Ledger.open(tmp_path / "ledger")):
        assert (one.created, one.sharing, one.unplanned) == (NO_TIME, "planned", False)
        assert one.versions == entries.versions()
        assert one.stream_versions == (entries.versions(),)
        assert one.stream_settings == (settings.in_force(),)
    first = read(database(tmp_path / "ledger"))[0]
    assert json.loads(first.payload)["format"] == 1
    unnamed = Ledger.create(tmp_path / "second", unit=PERSON, budget=BUDGET)
    assert len(unnamed.run_id) == 32
    assert unnamed.created > "2025"


def test_an_earlier_state_of_a_ledger_can_be_read(tmp_path: Path) -> None:
    made = create(tmp_path)
    heads = [made.head_hash]
    handle = made.open_stream(stream())
    heads.append(made.head_hash)
    for release in range(3):
        handle.charge(release, 1, [PersonBlock(release, release + 1)])
        heads.append(made.head_hash)
    for persons, head in zip((0, 0, 1, 2, 3), heads, strict=True):
        then = made.at(head)
        assert then is not None
        assert (then.head_hash, then.persons) == (head, persons)
        assert made.holds(head)
    assert made.at(GENESIS) is None
    assert not made.holds(GENESIS)


@pytest.mark.parametrize("wrong", [{"noise_multiplier": -3.0}, {"clip_norm": math.nan}])
def test_a_statement_that_could_not_be_read_back_is_not_written(
    tmp_path: Path, wrong: dict[str, float]
) -> None:
    """`model_copy` checks nothing. The ledger could never be opened again."""
    made = create(tmp_path)
    (name, part), *_ = stream().parts.items()
    parts = {name: part.model_copy(update=wrong)}
    before = made.head_hash
    with pytest.raises(ValueError, match=next(iter(wrong))):
        made.open_stream(stream().model_copy(update={"parts": parts}))
    with pytest.raises(ValueError, match=next(iter(wrong))):
        stream(parts=parts)
    assert Ledger.open(tmp_path / "ledger").head_hash == before


@pytest.mark.parametrize(
    ("kind", "contents", "message"),
    [
        ("create", {}, "out of place"),
        ("charge", {"stream": 5, "persons": [], "first_release": 0, "count": 0}, "breaks"),
        ("charge", {"stream": 0, "persons": [[[0, 1]]], "first_release": 3, "count": 1}, "number"),
        (
            "charge",
            {"stream": 0, "persons": [[[0, 1]]] * 9, "first_release": 0, "count": 9},
            "9 mo",
        ),
        ("open", {"statement": {}, "versions": {}}, "breaks"),
    ],
)
def test_entries_that_break_the_rules_are_found(
    tmp_path: Path, kind: Any, contents: dict[str, Any], message: str
) -> None:
    """Their hashes are true: whoever wrote them has used the ledger, and not its checks."""
    made = create(tmp_path)
    made.open_stream(stream())
    written = read(made._engine)
    entry = Entry("run", len(written), kind, entries.canonical(contents), made.head_hash)
    entries.append(made._engine, entry)
    with pytest.raises(LedgerCorrupt, match=f"entry 2 of the ledger .*{message}"):
        Ledger.open(tmp_path / "ledger")


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("open", {}, "out of place"),
        ("create", {"format": 2}, "has format 2, not 1"),
        ("create", {"sharing": "adaptive"}, "give it a finite epsilon"),
        ("create", {"sharing": "whatever"}, "breaks its rules"),
    ],
)
def test_a_first_entry_that_no_ledger_begins_with_is_refused(
    engine: sa.Engine, kind: Any, changes: dict[str, Any], message: str
) -> None:
    """The budget of this one is infinite, so that an adaptive ledger would state nothing."""
    contents = {
        "format": 1,
        "created": NO_TIME,
        "unit": entries.json_values(PERSON),
        "budget": {"epsilon": "Infinity", "delta": 1e-5},
        "versions": {},
    }
    text = entries.canonical(contents | changes)
    entries.create(engine, Entry("run", 0, kind, text, GENESIS))
    with pytest.raises(PrivacyError, match=message):
        Ledger(engine, "run")


def test_nothing_is_charged_under_a_setting_that_is_not_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = create(tmp_path)
    handle = made.open_stream(stream())

    def refuse() -> dict[str, str]:
        raise PrivacyError("this setting is not understood")

    monkeypatch.setattr(settings, "in_force", refuse)
    with pytest.raises(PrivacyError, match="not understood"):
        handle.charge(0, 1, [PersonBlock(0, 1)])
    assert handle.releases == 0


def test_the_last_of_several_equal_streams_goes_on(tmp_path: Path) -> None:
    made = create(tmp_path)
    handles = [made.open_stream(stream(name=n)) for n in ("first", "second", "first", "first")]
    handles[3].charge(0, 2, [PersonBlock(0, 1), PersonBlock(1, 2)])
    later = Ledger.open(tmp_path / "ledger")
    resumed = later.resume_stream(stream(name="first"))
    assert (resumed.index, resumed.releases) == (3, 2)
    resumed.charge(2, 1, [PersonBlock(2, 3)])
    with pytest.raises(LedgerMismatch, match="no interrupted stream"):
        later.resume_stream(stream(name="first"))
    assert later.resume_stream(stream(name="second")).index == 1


@pytest.mark.parametrize("charged", [0, 1])
def test_correlated_noise_is_forgotten_by_the_stream_that_was_charged(
    tmp_path: Path, charged: int
) -> None:
    correlated = stream(correlation=Correlation(kind="prefix-sum"))
    made = create(tmp_path)
    handles = [made.open_stream(correlated) for _ in range(2)]
    handles[charged].charge(0, 1, [PersonBlock(0, 1)])
    later = Ledger.open(tmp_path / "ledger")
    if charged == 1:
        with pytest.raises(LedgerMismatch, match="is correlated over releases"):
            later.resume_stream(correlated)
    else:
        assert later.resume_stream(correlated).index == 1


def test_each_equal_stream_of_an_interrupted_plan_is_taken_up_once(tmp_path: Path) -> None:
    """Two users of one stream would share what only one of them is charged for."""
    cheap = stream(
        participation=Returning(max_participations=1, min_separation=1),
        parts={"policy": Part(clip_norm=1.0, noise_multiplier=30.0)},
    )
    made = create(tmp_path)
    assert [made.open_stream(cheap).index for _ in range(2)] == [0, 1]
    later = Ledger.open(tmp_path / "ledger")
    assert [later.open_stream(cheap).index for _ in range(3)] == [0, 1, 2]


def test_a_stream_of_an_earlier_law_is_named_among_others(tmp_path: Path) -> None:
    made = create(tmp_path)
    for name in ("another", "old"):
        made.open_stream(stream(name=name))
    with pytest.raises(LedgerMismatch, match="'old' was opened by an earlier version"):
        Ledger.open(tmp_path / "ledger").resume_stream(stream(name="old", noise_law="on-grid"))
