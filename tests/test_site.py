"""The documentation site: it builds strictly, links lead somewhere, and it asks no other host."""

import importlib.util
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parent.parent
ASKING = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
"""Elements that a browser loads by itself, and the attribute that says from where."""


class Page(HTMLParser):
    """The links, anchors and loaded files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = {""}
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in ASKING and given.get("rel") != "canonical":
            self.loaded.append(given.get(ASKING[tag], ""))


def dead(pages: dict[Path, Page]) -> list[str]:
    """The links inside the site that lead nowhere."""
    found = []
    for path, page in pages.items():
        for link in page.links + page.loaded:
            if "://" in link or link.startswith(("mailto:", "data:")):
                continue
            place, _, anchor = unquote(link).partition("#")
            target = (path.parent / place).resolve() if place else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (target in pages and anchor not in pages[target].anchors):
                found.append(f"{path.name}: {link}")
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    folder = tmp_path_factory.mktemp("site").resolve()
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # The page of a wrong address stands at no fixed place, so its links begin at the root.
    found = [path for path in folder.rglob("*.html") if path.name != "404.html"]
    return {path: Page(path.read_text()) for path in found}


def test_every_link_leads_somewhere(site: dict[Path, Page]) -> None:
    assert len(site) > 15
    assert dead(site) == []


def test_no_page_asks_another_host(site: dict[Path, Page]) -> None:
    loaded = {one for page in site.values() for one in page.loaded}
    assert any(one.endswith(".js") for one in loaded)
    assert [one for one in loaded if "//" in one] == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_text('<h1 id="x"></h1><a href="#x"></a><a href="#y"></a><a href="b.html"></a>')
    assert dead({path: Page(path.read_text())}) == ["a.html: #y", "a.html: b.html"]


def test_links_between_the_site_and_the_root_are_mended() -> None:
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "tools" / "site_pages.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    assert hook.mended("[a](docs/b.md#c) [L](LICENSE)", "readme.md") == "[a](b.md#c) L"
    assert hook.mended("[a](../../README.md) [b](../b.md)", "tutorials/x.md") == (
        "[a](../readme.md) [b](../b.md)"
    )
    assert hook.mended("```\n[L](LICENSE)\n```", "readme.md") == "```\n[L](LICENSE)\n```"
    assert hook.mended("so:\n- a\n- b\n", "x.md") == "so:\n\n- a\n- b\n"
