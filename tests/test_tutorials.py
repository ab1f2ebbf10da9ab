"""Tutorials are true: their Python runs and prints what they show, and their commands are README's.

The commands of README run, shortened, in test_readme.py; here nothing is trained twice.
"""

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

import pytest
from test_readme import commands

ROOT = Path(__file__).parent.parent
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(r'^```(\w*)(?: title="([\w.]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)

SHORTER = {
    "total_steps=20_000": (
        "users_per_update=2, steps_per_user=20, total_steps=40, evaluation_episodes=1"
    ),
    "delta=1e-5), out": "delta=1e-5, users_per_update=8, total_steps=2048), out",
}
"""Settings that shorten a training of a tutorial."""


def pages() -> dict[str, list[tuple[str, str, str]]]:
    """The blocks of each tutorial: language, title and text."""
    return {path.name: BLOCK.findall(path.read_text()) for path in TUTORIALS}


@pytest.mark.parametrize("page", pages())
def test_the_python_of_a_tutorial_prints_what_it_shows(page, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names: dict[str, object] = {}
    printed = ""
    for language, title, text in pages()[page]:
        if title:
            Path(title).write_text(text)
        elif language == "python":
            for long, short in SHORTER.items():
                text = text.replace(long, short)
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(compile(text, page, "exec"), names)
            printed = output.getvalue().splitlines()[-text.count("print(") :]
        elif language == "text":
            assert printed == text.splitlines()
    for _, title, _ in pages()[page]:
        sys.modules.pop(title.removesuffix(".py"), None)


def test_the_commands_of_tutorials_are_those_of_the_readme() -> None:
    known = [shlex.split(line) for line in commands()]
    known.append(["sotto", "certificate", "runs/x"])  # which prints what --verify compares
    found = 0
    for page, blocks in pages().items():
        for language, _, text in blocks:
            assert language in ("", "sh", "python", "text"), page
            for line in text.replace("\\\n", " ").splitlines() if language == "sh" else ():
                assert shlex.split(line) in known, line
                found += 1
    assert found >= 10


def test_every_shortened_setting_is_in_a_tutorial() -> None:
    texts = "".join(path.read_text() for path in TUTORIALS)
    assert [long for long in SHORTER if long not in texts] == []
