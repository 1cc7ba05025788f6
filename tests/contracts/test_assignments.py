"""One assignment per line: `a, b = x(), y()` is two statements that save a line.

A swap (`a, b = b, a`) is one statement, and so is unpacking what one call returns (`a, b = f()`).
"""

import ast
from collections import Counter

import pytest

PER_1000_LINES = 3.0

# Packed assignments that are left, by room. A number may only fall; every room that is not listed has none.
LEFT = {"recon/commands": 40, "recon/pipelines": 25, "run": 69}


def expressions(node: ast.AST) -> set[str]:
    """Names, attributes and items that an expression reads."""
    kinds = (ast.Name, ast.Attribute, ast.Subscript)
    return {ast.unparse(part) for part in ast.walk(node) if isinstance(part, kinds)}


def is_packed(node: ast.AST) -> bool:
    """True for `a, b = x, y` that means the same as `a = x` and then `b = y`."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple | ast.List):
        return False
    left = node.targets[0]
    if not isinstance(left, ast.Tuple | ast.List) or len(left.elts) != len(node.value.elts):
        return False
    if any(isinstance(part, ast.Starred) for part in [*left.elts, *node.value.elts]):
        return False
    for place, target in enumerate(left.elts):
        bound = {ast.unparse(part) for part in (target.elts if isinstance(target, ast.Tuple) else [target])}
        later = [*node.value.elts[place + 1 :], *left.elts[place + 1 :]]
        if any(bound & expressions(part) for part in later):
            return False
    return True


def packed_assignments(tree: ast.Module) -> list[int]:
    """Lines with a packed assignment."""
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assign) and is_packed(node)]


def code_lines(text: str, tree: ast.Module) -> int:
    """Lines that hold code: no blank line, no comment, no docstring."""
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    docstrings = {line for node in strings for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines = {number for number, line in enumerate(text.splitlines(), 1) if line.strip() and line.lstrip()[0] != "#"}
    return len(lines - docstrings)


@pytest.mark.parametrize(
    "line",
    [
        "a, b = f(), g()",
        "a, b = 1, 2",
        "self.a, self.b = a, b",
        "(a, b), c = f(), 1",
        "a, b = c.a, d[0]",
        "a[i], i = 0, 1",
    ],
)
def test_a_packed_assignment_is_found(line):
    assert packed_assignments(ast.parse(line)) == [1]


@pytest.mark.parametrize(
    "line", ["a, b = b, a", "a, b = f()", "a, b = b, a % b", "a, *b = 1, 2, 3", "for a, b in c: ..."]
)
def test_a_swap_or_a_single_value_is_fine(line):
    assert packed_assignments(ast.parse(line)) == []


def test_only_lines_of_code_are_counted():
    text = '"""Module."""\n\n# why\na = 1\nb = [\n    2,\n]\n'
    assert code_lines(text, ast.parse(text)) == 4


@pytest.fixture(scope="module")
def counts(sources) -> Counter[str]:
    """Packed assignments of each room."""
    found: Counter[str] = Counter()
    for source in sources:
        found[source.room] += len(packed_assignments(source.tree))
    return found


def test_packed_assignments_are_rare(sources, counts):
    lines = sum(code_lines(source.text, source.tree) for source in sources)
    assert 1000 * counts.total() / lines <= PER_1000_LINES


def test_no_room_gains_a_packed_assignment(counts):
    assert {room: count for room, count in counts.items() if count > LEFT.get(room, 0)} == {}
