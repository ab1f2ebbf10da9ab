"""Databases that a ledger can live in: one that forgets is refused, however it is asked for."""

from pathlib import Path

import pytest

from sotto.privacy.errors import LedgerUnavailable
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.units import Unit

UNIT = Unit(kind="trajectory", adjacency="zero-out")
BUDGET = Budget(epsilon=1.3, delta=1e-5)


@pytest.mark.filterwarnings("ignore:Selection of the SingletonThreadPool")
@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file::memory:?cache=shared&uri=true",
        "sqlite:///file:name?mode=memory&cache=shared&uri=true",
        "sqlite:///file:?uri=true",  # a temporary file
        "sqlite:///file:ledger.sqlite?uri=true",  # a file, but a URI may name anything
    ],
)
def test_a_ledger_in_memory_is_refused(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LedgerUnavailable, match="in memory forgets what was spent"):
        Ledger.create(url, unit=UNIT, budget=BUDGET)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", ["uri=true&x=1", "timeout=5"])
def test_an_sqlite_url_has_no_options(options: str, tmp_path: Path) -> None:
    """With the first of these SQLite opens the file "l.db?x=1", beside which no head is kept."""
    with pytest.raises(LedgerUnavailable, match="an SQLite URL takes no options"):
        Ledger.create(f"sqlite:///{tmp_path}/l.db?{options}", unit=UNIT, budget=BUDGET)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_that_name_is_a_file(tmp_path: Path) -> None:
    made = Ledger.create(tmp_path / ":memory:", unit=UNIT, budget=BUDGET)
    assert Ledger.open(tmp_path / ":memory:").run_id == made.run_id
