"""The guide for live people is true: its commands start campaigns, and its programs take part."""

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Browser
from commands import blocks
from live import LIMITS
from served import running

from sotto.cli import main
from sotto.people import campaign as campaigns
from sotto.people.app import create_app

GUIDE = (Path(__file__).parents[2] / "docs" / "people.md").read_text()
SPACES = '{"observations": 1, "actions": 2}'
WAITS = ("campaign serve", "campaign update", "simulate people", "train rlhf")
"""Commands that wait for people, or learn from them: other tests run them."""


def commands(section: str) -> list[str]:
    """The commands of a section that end by themselves and need no other machine."""
    text = GUIDE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    found = re.findall(r"^\(?(?:umask 077; )?sotto (.*?)\)?$", text.replace("\\\n", " "), re.M)
    return [one for one in found if not one.startswith(WAITS)]


def run(line: str) -> None:
    """Runs a command, and writes what it prints to the file behind `>`."""
    line, _, file = line.partition(" > ")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(shlex.split(line)) == 0, line
    if file:
        Path(file).write_text(printed.getvalue())


def test_the_commands_of_the_guide_run(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (spaces,) = re.findall(r"^echo '(.*)' > spaces.json$", GUIDE, re.MULTILINE)
    Path("spaces.json").write_text(spaces)
    Path("first.txt").write_text("17\n4\n")
    sections = ("Trying it", "Starting a campaign", "One budget for several products")
    lines = [line for section in sections for line in commands(section)]
    for line in lines:
        if not line.startswith("certificate"):  # which the first release writes
            run(line.replace(" 9000 ", " 9 ").replace(" 1000 ", " 9 "))
    assert len(lines) == 17
    assert [len(Path(f"{one}tokens.txt").read_text().split()) for one in ("trial-", "")] == [60, 2]
    assert "<html" in Path("budget.html").read_text()


@pytest.fixture(scope="module")
def lamp(tmp_path_factory) -> Iterator[tuple[str, Path]]:
    """The URL of a served campaign as the guide describes it, and the tokens of two people."""
    folder = tmp_path_factory.mktemp("lamp")
    (folder / "spaces.json").write_text(SPACES)
    rules = "--updates 1 --users-per-update 2 --delta 1e-3"
    run(f"campaign start {folder}/lamp --spaces {folder}/spaces.json {rules}")
    run(f"campaign invite {folder}/lamp 2 > {folder}/tokens.txt")
    found = campaigns.open_campaign(folder / "lamp")
    store = found.open_store()
    with running(create_app(found, store, found.operator.matches, LIMITS)) as url:
        yield url, folder / "tokens.txt"
    store.close()


def test_the_program_of_the_guide_takes_part(lamp, monkeypatch, capsys) -> None:
    url, tokens = lamp
    assert SPACES in " ".join(GUIDE.split())
    monkeypatch.chdir(tokens.parent)
    monkeypatch.setattr(sys, "argv", ["light.py", url])
    (program,) = blocks("docs/people.md", "python")
    exec(compile(program, "light.py", "exec"), {})
    kept, places = capsys.readouterr().out.splitlines()
    assert "'kept': True" in kept
    assert places == "[{'release': 0, 'state': 'given'}]"


def test_the_page_of_the_guide_takes_part(lamp, browser: Browser) -> None:
    """Its files come from the same origin; here they are put into a page of the service."""
    url, tokens = lamp
    (html,), (script,) = blocks("docs/people.md", "html"), blocks("docs/people.md", "js")
    module = re.sub(r"^import (.*) from \"\.(/.*)\";$", r'const \1 = await import("\2");', script,
                    flags=re.MULTILINE)  # fmt: skip
    token = tokens.read_text().split()[1]
    with browser.page() as page:
        page.open(url + "/me")
        page.run(f"document.body.innerHTML = {html!r}")
        page.run(f"(async () => {{ {module} }})()")
        page.run(f"document.getElementById('token').value = {token!r}")
        page.run("document.getElementById('go').click()")
        page.until("document.getElementById('said').innerText")
        assert page.text("said") == "Thank you: your trajectory is stored, encrypted."
