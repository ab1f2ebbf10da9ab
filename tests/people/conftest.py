"""What the tests of live people share: a store, a campaign, and a real browser for the pages."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from chromium import Browser, Page, executable
from fake_campaign import FakeCampaign, served
from live import Live, started
from small_campaign import create

from sotto.people.database.store import CampaignDatabase

Visit = Callable[..., tuple[Page, FakeCampaign]]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    path = executable()
    if path is None:
        pytest.skip("there is no Chromium on this machine")
    found = Browser(path, str(tmp_path_factory.mktemp("profile")))
    yield found
    found.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Opens a page of a new campaign and signs in; in the end the page must have no problems."""
    with ExitStack() as stack:
        pages: list[tuple[Page, str, str | None]] = []

        def open_page(path: str, token: str | None = "ann-token", *, width=1200, dark=False,
                      still=True, **changes) -> tuple[Page, FakeCampaign]:  # fmt: skip
            campaign = FakeCampaign(**changes)
            url = stack.enter_context(served(campaign))
            page = stack.enter_context(browser.page(width, dark=dark, still=still))
            page.open(url + path)
            pages.append((page, url, token))
            if token is not None:
                page.type("token", token)
                page.until("document.getElementById('sign-in').hidden")
            return page, campaign

        yield open_page
        for page, url, token in pages:
            assert page.problems == []
            assert [u for u in page.urls if not u.startswith((url, "data:"))] == []
            assert token is None or [u for u in page.urls if token in u] == []


@pytest.fixture
def make(where: str) -> Iterator[Callable[..., CampaignDatabase]]:
    """Makes the store of a campaign in that database, with some rules changed."""
    made = []

    def new(**changes) -> CampaignDatabase:
        made.append(create(where, **changes))
        return made[-1]

    yield new
    for store in made:
        store.close()


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    """A campaign that serves people."""
    with started(tmp_path) as found:
        yield found
