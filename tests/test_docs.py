"""What docs name exists: files, and the functions, classes, tests and constants in them."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
NAMED = re.compile(r"`([\w./-]+\.py)(?:::([\w.]+)(?:\[[^\]`]*\])?)?`")


@functools.cache
def files() -> list[Path]:
    folders = ("src/sotto", "tests", "tools", "benchmarks", "examples")
    return [path for folder in folders for path in (ROOT / folder).rglob("*.py")]


@functools.cache
def names(path: Path) -> frozenset[str]:
    """Everything that a file defines, methods and attributes as `Class.name`."""
    found: set[str] = set()

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign):
                targets = [
                    one
                    for target in node.targets
                    for one in (target.elts if isinstance(target, ast.Tuple) else [target])
                ]
                found.update(prefix + one.id for one in targets if isinstance(one, ast.Name))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(prefix + node.target.id)
            elif isinstance(node, ast.If | ast.Try):
                visit(node.body, prefix)

    visit(ast.parse(path.read_text()).body, "")
    return frozenset(found)


def missing(text: str) -> list[str]:
    """What a text names and is not there."""
    absent = []
    for path, name in NAMED.findall(text):
        places = [one for one in files() if one.as_posix().endswith(f"/{path}")]
        if not places or (name and not any(name in names(one) for one in places)):
            absent.append(f"{path}::{name}" if name else path)
    return sorted(set(absent))


@pytest.mark.parametrize("doc", DOCS, ids=lambda path: path.name)
def test_what_docs_name_exists(doc: Path) -> None:
    assert missing(doc.read_text()) == []


def test_what_does_not_exist_is_found() -> None:
    assert missing("`privacy/units.py::Unit` and `units.py`") == []
    assert missing("`units.py::Unti`, `no_such.py`") == ["no_such.py", "units.py::Unti"]


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks as they are printed; the first one with a training that takes a moment."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len(blocks) == 2
    small = "target_epsilon=1.3, users_per_update=8, total_steps=2048"
    shown: list[tuple[object, ...]] = []
    for block in blocks:
        block = block.replace("target_epsilon=1.3", small)
        exec(compile(block, "README.md", "exec"), {"print": lambda *words: shown.append(words)})
    (epsilon, _, status), (mean, spent) = shown
    assert epsilon == pytest.approx(1.3, rel=1e-3)
    assert status == "verified"
    assert abs(float(mean[0]) - 0.1) < 0.05
    assert spent == pytest.approx(0.7255, abs=1e-4)


def test_each_attack_of_the_proofs_is_a_test() -> None:
    text = (ROOT / "docs/privacy.md").read_text().split("## How this was attacked")[1]
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 40
    for row in rows:
        named = NAMED.findall(row.strip("| ").split(" | ")[-1])
        assert named, row
        for path, name in named:
            file = ROOT / "tests" / path
            assert file.is_file(), f"tests/{path}"
            assert not name or name in names(file), f"{path}::{name}"
