"""Imports in src/sotto point one way: the vault knows nothing of learning, learning nothing of it.

Read from the syntax trees, so an import inside a function or under TYPE_CHECKING counts too.
"""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src"

# What a part of the house may import from the others; a part that is not named here is refused.
ALLOWED: dict[str, set[str]] = {
    "": set(),
    "__main__": {"cli"},
    "privacy": set(),
    "rl": set(),
    "data": {"rl"},
    "algorithms": {"privacy", "rl", "data"},
    "runs": {"privacy", "rl", "data", "algorithms"},
    "experiments": {"privacy", "rl", "data", "algorithms", "runs"},
    "serving": {"privacy", "rl", "data", "algorithms", "runs"},
    "people": {"privacy", "rl", "data", "algorithms", "runs", "serving"},
    "federated": {"privacy", "rl", "data", "algorithms", "runs"},
    "cli": {
        *("privacy", "rl", "data", "algorithms", "runs", "serving", "experiments", "people"),
        "federated",
    },
}


def imported(source: str, package: str) -> set[str]:
    """The dotted names that a module of `package` imports, relative ones made absolute."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*(parents if node.level else []), *filter(None, [node.module])])
            names |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return names


def part(dotted: str) -> str | None:
    """The part of the house that a dotted name lies in; None outside sotto."""
    words = dotted.split(".")
    if words[0] != "sotto":
        return None
    return words[1] if len(words) > 1 and words[1] in ALLOWED else ""


def without_names_for_type_checkers(source: str) -> str:
    """The module without its blocks `if TYPE_CHECKING:`."""
    tree = ast.parse(source)
    tree.body = [
        one
        for one in tree.body
        if not (isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING")
    ]
    return ast.unparse(tree)


def crossings(path: Path, source: str) -> list[str]:
    """The imports in a module of sotto that point the wrong way."""
    parents = path.relative_to(SRC).parent.parts
    here = parents[1] if len(parents) > 1 else path.stem if path.stem in ALLOWED else ""
    allowed = ALLOWED[here] | {here, ""}
    if path == SRC / "sotto" / "__init__.py":  # its names are imported when they are used
        source = without_names_for_type_checkers(source)
    names = imported(source, ".".join(parents))
    return sorted(n for n in names if (p := part(n)) is not None and p not in allowed)


@pytest.mark.parametrize("path", sorted(SRC.rglob("*.py")), ids=lambda p: str(p.relative_to(SRC)))
def test_imports_point_one_way(path):
    assert crossings(path, path.read_text()) == []


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("privacy/ledger.py", "import sotto.rl.networks"),
        ("privacy/ledger.py", "import jax, sotto.runs as r"),
        ("privacy/mechanisms/gaussian.py", "from ...rl import networks"),
        ("privacy/mechanisms/gaussian.py", "from ... import algorithms"),
        ("rl/envs/base.py", "def f():\n    from sotto import privacy"),
        ("rl/returns.py", "from ..algorithms.ppo import PPO"),
        ("data/logs.py", "from sotto.privacy import units"),
        ("algorithms/ppo.py", "from sotto.runs.metrics import Metrics"),
        ("runs/report.py", "from sotto.cli import main"),
        ("serving/teacher.py", "import sotto.experiments"),
        ("runs/training.py", "from sotto.experiments import statistics"),
        ("__init__.py", "from .privacy import units"),
        ("__init__.py", "if True:\n    from sotto.privacy import units"),
        ("errors.py", "from sotto.cli import main"),
        ("__main__.py", "from sotto.runs import training"),
    ],
)
def test_a_wrong_import_is_caught(where, line):
    assert crossings(SRC / "sotto" / where, line) != []


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("privacy/mechanisms/gaussian.py", "from sotto.privacy import noise"),
        ("privacy/mechanisms/gaussian.py", "from ..noise import normal"),
        ("algorithms/dppg.py", "from sotto.privacy import units\nfrom ..rl import returns"),
        ("cli/runs.py", "from sotto import __version__\nfrom sotto.runs import report"),
        ("rl/returns.py", "import jax\nfrom sottovoce import privacy"),
    ],
)
def test_a_right_import_passes(where, line):
    assert crossings(SRC / "sotto" / where, line) == []


def test_every_part_of_the_house_has_its_rule():
    packages = {p.name for p in (SRC / "sotto").iterdir() if (p / "__init__.py").exists()}
    assert packages <= set(ALLOWED)
