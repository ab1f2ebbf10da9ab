"""The small mistakes that a mutation run plants into a file, one at a time.

A mutant is the file with one operator, constant, condition or statement changed. Annotations,
docstrings, decorators and the words of error messages are left alone: no test should depend on
them.
"""

import ast
import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}

_NAMES = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "any": "all",
    "all": "any",
    "ceil": "floor",
    "floor": "ceil",
}


@dataclass(frozen=True)
class Mutant:
    """One changed file.

    Attributes:
        line: line of the change, counted from 1.
        function: name of the function or class it is in, "" outside of all.
        change: what was written before and what is written now.
        text: source of the whole file with the change in it.
    """

    line: int
    function: str
    change: str
    text: str


def mutants(source: str) -> Iterator[Mutant]:
    """Yields every mutant of a Python file, in the order of its lines."""
    tree = ast.parse(source)
    places = sorted(_places(tree), key=lambda place: (place[0].lineno, place[0].col_offset))
    for node, replacement, change in places:
        text = _with(source.encode(), node, replacement)
        yield Mutant(node.lineno, _function(tree, node.lineno), change, text)


_Place = tuple[ast.stmt | ast.expr, ast.AST, str]


def _places(tree: ast.AST) -> Iterator[_Place]:
    for node in _code(tree):
        if isinstance(node, ast.Compare):
            for index, operator in enumerate(node.ops):
                changed = copy.deepcopy(node)
                changed.ops[index] = _OPERATORS[type(operator)]()
                yield _place(node, changed)
        elif isinstance(node, ast.BoolOp | ast.BinOp | ast.AugAssign):
            changed_operator = copy.deepcopy(node)
            replacement = _OPERATORS.get(type(node.op))
            if replacement is not None:
                changed_operator.op = replacement()
                yield _place(node, changed_operator)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            yield _place(node, node.operand)
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield _place(node, ast.Constant(not node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            yield _place(node, ast.Constant(node.value + 1))
        elif isinstance(node, ast.Name) and node.id in _NAMES:
            yield _place(node, ast.Name(_NAMES[node.id]))
        elif isinstance(node, ast.Attribute) and node.attr in _NAMES:
            yield _place(node, ast.Attribute(node.value, _NAMES[node.attr]))
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            test = node.test
            yield _place(test, ast.UnaryOp(ast.Not(), test))
        if isinstance(node, ast.Raise | ast.AugAssign | ast.Continue | ast.Break) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        ):
            yield _place(node, ast.Pass())


def _place(node: ast.stmt | ast.expr, replacement: ast.AST) -> _Place:
    before, after = ast.unparse(node), ast.unparse(replacement)
    return node, replacement, f"{_short(before)}  ->  {_short(after)}"


def _function(tree: ast.Module, line: int) -> str:
    """Returns the dotted name of what is defined around a line."""
    names = [
        (node.lineno, node.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and node.lineno <= line <= (node.end_lineno or line)
    ]
    return ".".join(name for _, name in sorted(names))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 90 else line[:87] + "..."


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes that run and decide something."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        if isinstance(node, ast.Raise) or (name == "bases" and isinstance(node, ast.ClassDef)):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr | ast.Import):
                yield from _code(child)


def _with(source: bytes, node: ast.stmt | ast.expr, replacement: ast.AST) -> str:
    """Returns the source in which a node is replaced."""
    starts = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    start = starts[node.lineno - 1] + node.col_offset
    end = starts[node.end_lineno - 1] + node.end_col_offset
    text = ast.unparse(replacement)
    if isinstance(replacement, ast.expr):
        text = f"({text})"
    return (source[:start] + text.encode() + source[end:]).decode()
