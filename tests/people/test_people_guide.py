"""The guide for live people is true: its commands start campaigns, and its programs take part."""

import contextlib
import io
import math
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist

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


# --- what participants are told ------------------------------------------------------------------


def right(epsilon: float, delta: float) -> float:
    """The guide's bound on the part of right guesses."""
    return math.exp(epsilon) / (1 + math.exp(epsilon)) + delta


def test_participants_are_told_how_often_a_guess_is_right() -> None:
    text = " ".join(GUIDE.split("## A text for participants")[1].replace("\n> ", " ").split())
    said = re.search(
        r"epsilon = \[1\] \(delta = \[0\.00001\]\).*whether your data were used or left out, each "
        r"equally likely, is right at most \[(\d+)\] times of 100.*which of two equally likely "
        r"things you sent is right at most \[(\d+)\] times of 100",
        text,
    )
    assert said is not None
    told = [math.ceil(100 * right(epsilon, 1e-5)) for epsilon in (1, 2)]
    assert [int(one) for one in said.groups()] == told
    assert "100 (e^epsilon / (1 + e^epsilon) + delta), rounded up" in text


@pytest.mark.parametrize(("epsilon", "delta"), [(0.03, 0.01), (0.1, 0.01), (1, 1e-5), (1, 0.3)])
def test_two_contributions_are_told_apart_as_often_as_participants_are_told(
    epsilon: float, delta: float
) -> None:
    """Zero-out adjacency is about a contribution and none; two may be twice as far apart."""
    normal = NormalDist()

    def leaves_out(mu: float) -> float:
        """The delta of the Gaussian mechanism at this epsilon."""
        low = normal.cdf(mu / 2 - epsilon / mu)
        return low - math.exp(epsilon) * normal.cdf(-mu / 2 - epsilon / mu)

    least, most = 1e-6, 50.0
    for _ in range(100):
        middle = (least + most) / 2
        least, most = (middle, most) if leaves_out(middle) <= delta else (least, middle)
    assert normal.cdf(least / 2) <= right(epsilon, delta)  # between a contribution and none
    assert normal.cdf(least) <= right(2 * epsilon, delta)  # between opposite contributions
    if delta == 0.01:
        assert normal.cdf(least) > right(epsilon, delta)
    exact = math.exp(2 * epsilon) + (1 + math.exp(epsilon)) * delta  # twice epsilon, by groups
    assert exact / (1 + math.exp(2 * epsilon)) <= right(2 * epsilon, delta)
