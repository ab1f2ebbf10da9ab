"""What tests ask of commands, and the blocks of pages that show them."""

import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from sotto.cli import main
from sotto.privacy.certificates.derive import Certificate, render

ROOT = Path(__file__).parents[1]


def refused(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """The one sentence of a refusal."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == 2
    error = capsys.readouterr().err.strip()
    assert "Traceback" not in error
    assert error.count("\n") == 0, error
    assert error.startswith("sotto: ")
    return error


def printed(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """The text that a command prints."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out


def run_json(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict:
    """The JSON object that a command prints."""
    return json.loads(printed(capsys, *words, "--json"))


def text_of(certificate: Certificate) -> str:
    """The text of a certificate, with every sentence on one line."""
    console = Console(width=10_000)
    with console.capture() as capture:
        console.print(render(certificate))
    return capture.get()


def blocks(page: str, language: str = "") -> list[str]:
    """The blocks of a page in a language, in order; a page is named as `docs/people.md`."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.DOTALL)
    return [text for name, text in found if name == language]
