"""Docstrings and documentation are written in plain technical English.

A test cannot judge prose. It finds what made ours hard to read: fragments in place of sentences,
openings that turn a sentence round, sentences that nobody can follow at first reading, and words
of ours for which the field has one.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "sotto"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

LONGEST_SENTENCE = 35
"""Words; formulas, lists, tables and code do not count."""

FEWEST_WORDS = 3
"""In the first sentence of a docstring."""

OPENINGS = re.compile(r"(What|Who|Whose|Where|How|Of|Ours|That|Those|These|Nobody|Nothing|As)\b")
"""A docstring that opens like this is a riddle, an inversion or a fragment."""

NOT_PROSE = re.compile(r"\s{4}|\s*([-*|#>]|\d+\.) ?|\s*Args:|.*[=<>].*[=<>]")
"""A line of an indented block, list, table, heading or formula."""

AVOIDED = {
    r"theory notes": "put the proof into docs/proofs/, or cite the paper",
    r"design notes": "say the reason itself",
    r"\bhosted\b": "a Gymnasium environment",
    r"\blanes?\b": "parallel environments",
    r"\bbe they\b|\bbut for\b|\bsave for\b|\bby now\b": "plain words",
    r"\bwhat is\b": "name the thing",
    r"\bof ours\b|\bof theirs\b|\bof its own\b": "plain words",
    r"\bnought\b|\bwhereof\b|\bthereof\b|\bwherein\b|\bhitherto\b": "plain words",
}


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring of a file, those below attributes included."""
    for node in ast.walk(ast.parse(path.read_text())):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        may_document = isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        )
        for before, statement in zip([None, *body], body, strict=False):
            text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            assigned = isinstance(before, ast.Assign | ast.AnnAssign)
            documents = may_document if before is None else assigned
            if text and documents and isinstance(statement.value.value, str):
                yield statement.lineno, statement.value.value


def sentences(text: str) -> Iterator[str]:
    """The sentences of the paragraphs; indented blocks, tables, lists and headings are left out."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for paragraph in re.split(r"\n\s*\n", text):
        lines = [line for line in paragraph.split("\n") if line.strip()]
        prose = [line for line in lines if not NOT_PROSE.match(line)]
        if len(prose) == len(lines):
            yield from re.split(r"(?<=[.!?:;])\s+", " ".join(prose))


def faults(text: str) -> Iterator[str]:
    """What is wrong with a text, a line each."""
    for pattern, instead in AVOIDED.items():
        if found := re.search(pattern, text, flags=re.IGNORECASE):
            yield f"says {found.group()!r}: {instead}"
    for sentence in sentences(text):
        if len(sentence.split()) > LONGEST_SENTENCE:
            yield f"{len(sentence.split())} words in one sentence: {sentence[:70]}..."


def docstring_faults(path: Path) -> list[str]:
    """The faults of a file's docstrings, with their lines."""
    found = []
    for line, text in docstrings(path):
        text = "\n".join(part.removeprefix("    ") for part in text.strip().split("\n"))
        first = re.split(r"(?<=[.!?])\s", text)[0]
        if len(first.split()) < FEWEST_WORDS:
            found.append(f"{path}:{line}: {first!r} is not a sentence")
        if OPENINGS.match(text):
            found.append(f"{path}:{line}: opens with {text.split()[0]!r}: {first[:60]}")
        found.extend(f"{path}:{line}: {fault}" for fault in faults(text))
    return found


@pytest.mark.parametrize("folder", sorted({path.parent for path in SOURCE.rglob("*.py")}), ids=str)
def test_docstrings_are_plain(folder: Path) -> None:
    """Every docstring is a sentence that a stranger understands at first reading."""
    found = [fault for path in sorted(folder.glob("*.py")) for fault in docstring_faults(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_are_plain(path: Path) -> None:
    """So is every document, except for its tables and formulas."""
    assert not list(faults(path.read_text()))


if __name__ == "__main__":  # python tests/test_plain_words.py src/sotto/cli docs/papers.md
    for argument in map(Path, sys.argv[1:]):
        for path in sorted(argument.rglob("*.py")) if argument.is_dir() else [argument]:
            code = path.suffix == ".py"
            for fault in docstring_faults(path) if code else faults(path.read_text()):
                print(fault)
