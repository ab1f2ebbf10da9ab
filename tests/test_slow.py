"""The list of slow tests names only tests that exist."""

import ast
from pathlib import Path

TESTS = Path(__file__).parent
NAMED = (TESTS / "slow.txt").read_text().split()


def _exists(name: str) -> bool:
    file, _, function = name.partition("::")
    tree = ast.parse((TESTS / file).read_text())
    return not function or function in {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef)
    }


def test_every_slow_test_exists() -> None:
    assert [name for name in NAMED if not _exists(name)] == []


def test_the_list_is_sorted_and_without_repetition() -> None:
    assert sorted(set(NAMED)) == NAMED
