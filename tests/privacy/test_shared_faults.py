"""A shared budget survives kills, several writers and changed files, on both databases."""

import json
import math
import random
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import products
import pytest
import sqlalchemy as sa
from products import charge, product, statement

from sotto.privacy.errors import BudgetExceeded, LedgerCorrupt, LedgerMismatch, LedgerUnavailable
from sotto.privacy.ledger import chain, databases
from sotto.privacy.ledger.allowances import Allowance
from sotto.privacy.ledger.entries import canonical
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.shared import SharedBudget
from sotto.privacy.ledger.shared_account import SharedAccount
from sotto.privacy.ledger.standing import person_standing

ALLOWANCE = Allowance(epsilon=2.0, delta=1e-5)
ONCE = math.sqrt(1.5 / ALLOWANCE.squared_shift)
"""A noise multiplier with which a person has room for one stream, and not for two."""


def started(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, products.__file__, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_kill_between_the_two_charges_counts_too_much_and_never_too_little(where, tmp_path):
    budget = SharedBudget.create(where, ALLOWANCE)
    process = started(where, tmp_path / "product", ONCE, 3, "dies")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    ledger = Ledger.open(tmp_path / "product")
    assert [one.releases for one in ledger.streams] == [0]
    assert person_standing(budget, 0).streams == (0,)
    other = product(budget, tmp_path / "other").open_stream(statement(ONCE))
    with pytest.raises(BudgetExceeded):
        charge(other, 0)
    ledger.join(budget)
    charge(ledger.resume_stream(statement(ONCE)), 0)  # is not charged twice there
    assert person_standing(budget, 0).streams == (0,)


def test_whatever_was_charged_before_a_kill_is_in_the_shared_budget(tmp_path):
    place = tmp_path / "people.budget"
    SharedBudget.create(place, ALLOWANCE)
    process = started(place, tmp_path / "product", ONCE, 10_000, "lives")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(random.random() / 2)
    process.kill()
    said = [line for line in process.communicate()[0].splitlines(keepends=True) if "\n" in line]
    held = Ledger.open(tmp_path / "product").persons
    shared = len(SharedBudget.open(place).account().people)
    assert len(said) <= held <= shared <= held + 1


def test_of_two_processes_at_the_same_person_one_is_refused(where, tmp_path):
    SharedBudget.create(where, ALLOWANCE)
    both = [started(where, tmp_path / name, ONCE, 12, "lives") for name in ("one", "two")]
    said = [process.communicate(timeout=120)[0].split("\n")[1:-1] for process in both]
    charged = [int(line.split()[1]) for lines in said for line in lines]
    assert (len(charged), sum(charged)) == (24, 12)
    account = SharedBudget.open(where).account()
    assert len(account.people) == sum(one.size for one in account.streams) == 12
    taking_part = [Ledger.open(tmp_path / name).persons for name in ("one", "two")]
    assert sum(taking_part) == 12


def test_threads_share_one_object(where, tmp_path):
    budget = SharedBudget.create(where, ALLOWANCE)
    streams = [
        product(budget, tmp_path / f"product-{n}").open_stream(statement(ONCE)) for n in range(4)
    ]

    def hold(stream) -> int:
        return sum(stream.hold([person]) == [] for person in range(10))

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(hold, streams)) == 10
    assert SharedBudget.open(where).head_hash == budget.head_hash


def test_ledgers_and_their_budget_in_one_database(where):
    budget = SharedBudget.create(where, ALLOWANCE)
    stream = product(budget, where, "run").open_stream(statement())
    charge(stream, 3)
    ledger = Ledger.open(where, "run")
    ledger.join(SharedBudget.open(where))
    assert ledger.persons == 1
    assert person_standing(budget, 3).streams == (0,)


def change(place: Path, old: str, new: str) -> None:
    """Changes every entry that says `old`, as somebody with the file can."""
    with sqlite3.connect(place) as connection:
        connection.execute("DROP TRIGGER no_update")
        connection.execute("UPDATE entries SET payload = replace(payload, ?, ?)", (old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"epsilon":2.0', '"epsilon":9.0'),
        ('"persons":[[3,5]]', '"persons":[[3,4]]'),
        ('"noise_multiplier":4.0', '"noise_multiplier":5.0'),
    ],
)
def test_changed_entries_are_found(tmp_path, old, new):
    place = tmp_path / "people.budget"
    charge(
        product(SharedBudget.create(place, ALLOWANCE), tmp_path / "p").open_stream(statement()),
        3,
        4,
    )
    change(place, old, new)
    with pytest.raises(LedgerCorrupt):
        SharedBudget.open(place)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"cost": [1, 0, 0, 0]}, "has not the cost of its statement"),
        ({"persons": [[3, 4], [3, 4]]}, "charged twice"),
    ],
)
def test_a_chain_that_breaks_the_rules_is_refused(tmp_path, monkeypatch, change, why):
    """A faulty program wrote the budget's entries, with hashes that are right."""
    name = next(iter(change))

    def faulty(said):
        in_the_budget = name in said and "count" not in said  # which charges of a product have
        return canonical(said | (change if in_the_budget else {}))

    monkeypatch.setattr(chain, "canonical", faulty)
    place = tmp_path / "people.budget"
    budget = SharedBudget.create(place, ALLOWANCE)
    charge(product(budget, tmp_path / "product").open_stream(statement()), 3)
    with pytest.raises(LedgerCorrupt, match=why):
        SharedBudget.open(place)


def test_a_program_that_does_not_check_is_found_out(tmp_path, monkeypatch):
    place = tmp_path / "people.budget"
    budget = SharedBudget.create(place, ALLOWANCE)
    with monkeypatch.context() as without:
        without.setattr(SharedAccount, "check", lambda *_: None)
        for n in range(2):
            charge(product(budget, tmp_path / f"product-{n}").open_stream(statement(ONCE)), 3)
    with pytest.raises(LedgerCorrupt, match="1 person over the shared budget"):
        SharedBudget.open(place)


def test_an_older_copy_of_the_budget_is_refused(tmp_path):
    place = tmp_path / "people.budget"
    budget = SharedBudget.create(place, ALLOWANCE)
    copy = place.read_bytes()
    stream = product(budget, tmp_path / "product").open_stream(statement())
    charge(stream, 3)
    place.write_bytes(copy)
    with pytest.raises(LedgerCorrupt, match="last entries are gone"):
        charge(stream, 4)
    with pytest.raises(LedgerCorrupt, match=r"lacks the entry that is written in .*budget\.head"):
        SharedBudget.open(place)
    (tmp_path / "people.budget.head").unlink()  # as where the budget is on a database server
    again = Ledger.open(tmp_path / "product")
    with pytest.raises(LedgerCorrupt, match="it is an older copy"):
        again.join(SharedBudget.open(place))


def test_a_damaged_file_beside_the_budget_is_named(tmp_path):
    place = tmp_path / "people.budget"
    SharedBudget.create(place, ALLOWANCE)
    beside = tmp_path / "people.budget.head"
    whole = beside.read_bytes()
    assert len(whole) == 65
    for damaged in (b"", whole[:40], b"\0" * 65, b"x" * 2000):  # none of which sotto leaves
        beside.write_bytes(damaged)
        with pytest.raises((LedgerCorrupt, LedgerUnavailable), match=r"people\.budget\.head"):
            SharedBudget.open(place)
    beside.unlink()
    SharedBudget.open(place)


def test_a_budget_in_the_place_of_another_begins_anew(tmp_path, monkeypatch):
    """Also if the process is killed before it writes the file beside it."""
    place = tmp_path / "people.budget"
    SharedBudget.create(place, ALLOWANCE)
    place.unlink()
    monkeypatch.setattr(databases, "write_head", lambda *_: None)
    SharedBudget.create(place, ALLOWANCE)
    SharedBudget.open(place)


def test_whoever_may_write_the_budget_may_write_the_file_beside_it(tmp_path):
    place, beside = tmp_path / "people.budget", tmp_path / "people.budget.head"
    budget = SharedBudget.create(place, ALLOWANCE)
    assert beside.stat().st_mode & 0o777 == 0o600
    place.chmod(0o660)
    beside.unlink()
    charge(product(budget, tmp_path / "one").open_stream(statement(ONCE)), 3)
    assert beside.stat().st_mode & 0o777 == 0o660


def test_no_new_product_charges_people_in_an_older_copy_of_the_budget(tmp_path):
    """Only the file beside the budget knows of the charges: the new product has seen none."""
    place = tmp_path / "people.budget"
    budget = SharedBudget.create(place, ALLOWANCE)
    copy = place.read_bytes()
    charge(product(budget, tmp_path / "one").open_stream(statement(ONCE)), 3)
    newest = place.read_bytes()
    place.write_bytes(copy)
    with pytest.raises(LedgerCorrupt, match="as an older copy does"):
        product(SharedBudget.open(place), tmp_path / "two")
    place.write_bytes(newest)
    with pytest.raises(BudgetExceeded):
        charge(product(SharedBudget.open(place), tmp_path / "two").open_stream(statement(ONCE)), 3)


def test_a_relative_url_is_the_same_file_after_a_change_of_directory(tmp_path, monkeypatch):
    """The file beside the budget would be written elsewhere, and an older copy would be opened."""
    monkeypatch.chdir(tmp_path)
    budget = SharedBudget.create("sqlite:///people.budget", ALLOWANCE)
    copy = (tmp_path / "people.budget").read_bytes()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    charge(product(budget, tmp_path / "one").open_stream(statement(ONCE)), 3)
    assert not list((tmp_path / "elsewhere").iterdir())
    (tmp_path / "people.budget").write_bytes(copy)
    with pytest.raises(LedgerCorrupt, match="as an older copy does"):
        SharedBudget.open(tmp_path / "people.budget")


def test_an_older_copy_of_a_products_ledger_makes_no_release(tmp_path):
    """The people of its lost releases would be charged nothing for the same ones."""
    budget, place = SharedBudget.create(tmp_path / "people.budget", ALLOWANCE), tmp_path / "product"
    stream = product(budget, place).open_stream(statement())
    copies = [place.read_bytes()]
    charge(stream, 3)
    copies.append(place.read_bytes())
    charge(stream, 4)
    for copy in copies:
        place.write_bytes(copy)
        with pytest.raises(LedgerCorrupt, match=r"lacks charges that the shared budget has seen"):
            Ledger.open(place).join(budget)


def test_a_stream_that_the_budget_knows_otherwise_is_refused(tmp_path):
    """Its people would pay what the other one costs."""
    budget = SharedBudget.create(tmp_path / "people.budget", ALLOWANCE)
    for _ in range(2):
        assert budget.open_stream("run", 0, statement(4.0), 1e-6) == 0
    with pytest.raises(LedgerMismatch, match="has another statement in the shared budget"):
        budget.open_stream("run", 0, statement(2.0), 1e-6)


def test_of_two_copies_of_a_ledger_one_goes_on(tmp_path):
    budget, place = SharedBudget.create(tmp_path / "people.budget", ALLOWANCE), tmp_path / "one"
    product(budget, place)
    copy = tmp_path / "two"
    copy.write_bytes(place.read_bytes())
    ledgers = [Ledger.open(one) for one in (place, copy)]
    for one in ledgers:
        one.join(budget)
    first, second = (one.open_stream(statement()) for one in ledgers)
    charge(first, 3)
    with pytest.raises(LedgerCorrupt, match="lacks charges that the shared budget has seen"):
        charge(second, 3)
    charge(first, 4)
    with pytest.raises(LedgerMismatch, match=r"a copy of run '.*' has made a release"):
        budget.see(next(iter(budget._seen)), None, ledgers[1].head_hash)


def test_a_ledger_that_was_charged_and_not_seen_goes_on(tmp_path, monkeypatch):
    budget, place = SharedBudget.create(tmp_path / "people.budget", ALLOWANCE), tmp_path / "product"
    stream = product(budget, place).open_stream(statement())
    charge(stream, 3)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SharedBudget, "see", killed)
        with pytest.raises(KeyboardInterrupt):
            charge(stream, 4)
    again = Ledger.open(place)
    again.join(SharedBudget.open(tmp_path / "people.budget"))
    stream = again.resume_stream(statement())
    assert stream.releases == 2
    charge(stream, 5)


def test_nothing_is_released_while_the_budget_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(databases, "LOCK_WAIT_SECONDS", 0.1)
    place = tmp_path / "people.budget"
    stream = product(SharedBudget.create(place, ALLOWANCE), tmp_path / "p").open_stream(statement())
    with sqlite3.connect(place) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnavailable, match="trying again is safe"):
            charge(stream, 1)
        assert stream.releases == 0
        other.rollback()
    charge(stream, 1)
    assert stream.releases == 1


def test_the_products_ledger_names_the_entry_that_it_was_charged_under(tmp_path):
    budget = SharedBudget.create(tmp_path / "people.budget", ALLOWANCE)
    ledger = product(budget, tmp_path / "product", "run")
    charge(ledger.open_stream(statement()), 1)
    with sa.create_engine(f"sqlite:///{tmp_path / 'people.budget'}").connect() as connection:
        last = connection.execute(sa.text("SELECT kind, hash, payload FROM entries")).all()[-2:]
    assert [kind for kind, *_ in last] == ["charge", "seen"]
    assert json.loads(last[1].payload)["head"] == ledger.head_hash
    with sa.create_engine(f"sqlite:///{tmp_path / 'product'}").connect() as connection:
        payloads = connection.execute(sa.text("SELECT kind, payload FROM entries")).all()
    kinds = [kind for kind, _ in payloads]
    assert kinds == ["create", "join", "open", "charge"]
    assert json.loads(payloads[1][1])["budget"] == budget.budget_id
    assert json.loads(payloads[3][1])["shared"] == last[0].hash
