"""What the tests of live people share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_campaign import create

from sotto.people.store import Store


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without a campaign."""
    if request.param == "sqlite":
        return str(tmp_path / "campaign.sqlite")
    return request.getfixturevalue("postgresql_url")


@pytest.fixture
def make(where: str) -> Iterator[Callable[..., Store]]:
    """Makes the store of a campaign in that database, with some rules changed."""
    made = []

    def new(**changes) -> Store:
        made.append(create(where, **changes))
        return made[-1]

    yield new
    for store in made:
        store.close()
