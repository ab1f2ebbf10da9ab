"""The list of slow tests names only tests that exist."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
NAMED = (TESTS / "slow.txt").read_text().split()


@pytest.mark.parametrize("name", NAMED)
def test_every_slow_test_exists(name: str) -> None:
    file, _, function = name.partition("::")
    tree = ast.parse((TESTS / file).read_text())
    if function:
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_list_is_sorted_and_without_repetition() -> None:
    assert sorted(set(NAMED)) == NAMED
