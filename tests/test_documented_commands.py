"""Every command line of `sotto` in the documentation is one that the command line accepts.

Nothing runs here: tyro reads the words, and the settings of trainings are made of what it read.
Those of campaigns are made in people/test_people_guide.py, and the commands of README run in
test_readme.py. Commands between backquotes are often shortened, so that only their names and flags
are looked up.
"""

import contextlib
import functools
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from sotto.cli import main, summaries
from sotto.cli.terminal import parsing

ROOT = Path(__file__).parent.parent
GUIDES = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", *GUIDES]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|[;(] *|-- +)(sotto (?:'[^']*'|\"[^\"]*\"|[^'\"#>;)])*)")
"""A command at the beginning of a line, in parentheses, or after the `--` of another command."""

EXTENSIONS = {"train offers"}
"""Commands of packages that tutorials install; their own tests run them."""


class Read(BaseException):
    """The words of a command were read; the command does not begin."""


def lines(text: str) -> list[str]:
    """The commands of `sotto` in the blocks of a page that are no Python and no data."""
    blocks = [body for language, body in FENCE.findall(text) if language in ("", "sh", "bash")]
    joined = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [one.strip() for line in joined for one in COMMAND.findall(line)]


def read(line: str) -> None:
    """Lets the command line read the words, and makes the settings that they give.

    Raises:
        ValueError: a word is wrong or missing.
    """
    words = [word for word in shlex.split(line)[1:] if word != "--resume"]  # it reads a run
    real = parsing.tyro.cli

    def reading(*given: Any, **named: Any) -> None:
        values, options = real(*given, **named)
        for one in (*values, *options.values()):
            if words[0] == "train":  # a type of flags, made from that of the settings
                type(one).__mro__[1](**vars(one))
        raise Read

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parsing.tyro, "cli", reading)
        patched.setenv("SOTTO_DEBUG", "1")  # errors are raised
        with pytest.raises(Read):
            main(words)


def named(words: list[str]) -> str | None:
    """The command at the beginning of the words, or None."""
    first = (" ".join(words[:length]) for length in (2, 1))
    return next((name for name in first if name in summaries()), None)


@functools.cache
def help_of(name: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main([*name.split(), "--help"]) == 0
    return printed.getvalue()


def unknown(text: str) -> list[str]:
    """The commands between backquotes that are none, or whose flags are none of theirs."""
    found = []
    groups = {one.split()[0] for one in summaries()}
    for line in re.findall(r"`sotto ([^`,]+)`", FENCE.sub("", text)):
        if line in groups | EXTENSIONS | {"--help", "COMMAND --help"}:
            continue
        name = named(line.split())
        flags = re.findall(r"(?<= )--[a-z-]+", line)
        if name is None or any(not re.search(rf"{one}(?![a-z-])", help_of(name)) for one in flags):
            found.append(line)
    return found


@pytest.mark.parametrize("page", GUIDES, ids=lambda path: path.stem)
def test_commands_in_blocks_are_accepted(page: Path) -> None:
    for line in lines(page.read_text()):
        if " ".join(line.split()[1:3]) not in EXTENSIONS:
            try:
                read(line)
            except ValueError as error:
                pytest.fail(f"{line}: {error}")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_commands_between_backquotes_have_the_flags(page: Path) -> None:
    assert unknown(page.read_text()) == []


def test_every_kind_of_line_is_found() -> None:
    text = "```sh\n(umask 077; sotto a 1 > b)\nsrun x -- \\\n  sotto b --c 'd; e'  # f\n```\n"
    assert lines(text) == ["sotto a 1", "sotto b --c 'd; e'"]
    assert sum(len(lines(page.read_text())) for page in GUIDES) > 60


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("sotto verify certificate.json --signed-bye x", "signed-bye"),
        ("sotto verify", "give"),
        ("sotto train dppg --target-epsilon -1", "epsilon"),
        ("sotto campaign start x --users-per-update many", "many"),
        ("sotto certify all", "no command"),
    ],
)
def test_a_wrong_line_is_noticed(line: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read(line)


def test_a_wrong_flag_between_backquotes_is_noticed() -> None:
    text = "`sotto certificate RUN --verify` `sotto certificate --pages` `sotto trains x`"
    assert unknown(text) == ["certificate --pages", "trains x"]
