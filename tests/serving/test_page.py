"""The page of budgets: its files fit each other and what the service says, and load nothing else.

What it looks like was checked by eye in Chromium; that it works is checked here as far as that goes
without a browser.
"""

import re
from html.parser import HTMLParser

import pytest
from small_teacher import Service


class Page(HTMLParser):
    """Tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def values(self, name: str) -> list[str]:
        return [attributes[name] for _, attributes in self.tags if name in attributes]


@pytest.fixture
def files(serve) -> dict[str, str]:
    service: Service = serve()
    found = {}
    kinds = {"/": "text/html", "/page.js": "text/javascript", "/page.css": "text/css"}
    for path, kind in kinds.items():
        answer = service.http.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind)
        found[path] = answer.text
    return found


def test_it_loads_nothing_from_elsewhere_and_runs_nothing_inline(files):
    page = Page(files["/"])
    assert page.values("src") == ["page.js"]
    assert page.values("href") == ["data:,", "page.css"]
    assert page.values("style") == []
    names = [name for _, attributes in page.tags for name in attributes]
    assert [name for name in names if name.startswith("on")] == []
    assert "<style" not in files["/"]
    assert re.findall(r"<script(?![^>]*src=)", files["/"]) == []
    for text in files.values():
        assert re.findall(r"https?://|//cdn|@import|url\(", text) == []


def test_text_goes_in_as_text(files):
    assert re.findall(r"innerHTML|outerHTML|document\.write|eval\(", files["/page.js"]) == []


def test_the_token_is_kept_in_the_tab_only(files):
    assert "sessionStorage" in files["/page.js"]
    assert re.findall(r"localStorage|document\.cookie|location\.", files["/page.js"]) == []


def test_script_style_and_page_fit_each_other(files):
    page = Page(files["/"])
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'element\("([\w-]+)"\)', files["/page.js"])) <= set(ids)
    assert set(re.findall(r"#([a-z][\w-]+)\b(?=[^;}]*{)", files["/page.css"])) <= set(ids)


def test_the_script_reads_what_the_service_says(files, serve, tmp_path, make_ledger):
    ledger = make_ledger(where=tmp_path / "other.sqlite")
    service = serve(ledger=ledger, is_operator=lambda token: token == "me")
    service.student()
    operator = {"Authorization": "Bearer me"}
    says = service.http.get("/v1/budget", headers=operator).json()
    script = files["/page.js"]
    assert '"v1/budget"' in script
    read = {
        name: set(re.findall(rf"\b{name}\.(\w+)", script))
        for name in ("budgets", "total", "student", "budget")
    }
    assert read["budgets"] == set(says)
    assert read["total"] == set(says["total"])
    assert read["student"] == set(says["students"][0])
    assert read["budget"] == set(says["budget"])


def test_everything_has_a_name(files):
    page = Page(files["/"])
    labels = page.values("for")
    for tag, attributes in page.tags:
        if tag == "input":
            assert attributes["id"] in labels
        if tag in ("progress", "section"):
            assert attributes["aria-label"]
        if tag == "th":
            assert attributes["scope"] == "col"
    assert ("html", {"lang": "en"}) in page.tags
    assert any(attributes.get("aria-live") == "polite" for _, attributes in page.tags)
