"""An error says what came, what was wanted and what to do; that takes more than a few words."""

import ast
import builtins

import pytest

SHORTEST = 40
PLACEHOLDER = 12  # a value put into an f-string, on average


def message_length(node: ast.expr) -> int | None:
    """Characters of a literal message; None where the message is made elsewhere, or is a name and no message."""
    if isinstance(node, ast.Constant):
        return len(node.value) if isinstance(node.value, str) and not node.value.isidentifier() else None
    if isinstance(node, ast.JoinedStr):
        return sum(message_length(part) or PLACEHOLDER for part in node.values)
    if isinstance(node, ast.BinOp):
        sides = message_length(node.left), message_length(node.right)
        return None if sides == (None, None) else sum(side or PLACEHOLDER for side in sides)
    return None


def error_name(call: ast.Call) -> str:
    return ast.unparse(call.func).rsplit(".", maxsplit=1)[-1]


def short_messages(tree: ast.Module) -> list[str]:
    """``line: message`` for every literal message that is too short."""
    raised = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)]
    first = [(call, call.args[0]) for call in raised if call.args]
    return [
        f"{call.lineno}: {ast.unparse(argument)}"
        for call, argument in first
        if (length := message_length(argument)) is not None and length <= SHORTEST
    ]


def raised_without_message(tree: ast.Module) -> list[str]:
    """``line: error`` for Python's own errors raised bare; an error class of ours may carry its message itself."""
    raised = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc is not None]
    bare = [node for node in raised if isinstance(node, ast.Name) or (isinstance(node, ast.Call) and not node.args)]
    names = [(n.lineno, error_name(n) if isinstance(n, ast.Call) else ast.unparse(n)) for n in bare]
    return [f"{line}: {name}" for line, name in names if name.endswith("Error") and hasattr(builtins, name)]


@pytest.mark.parametrize(
    "line", ["raise ValueError('bad shape')", "raise BadInput(f'no {x} here')", "raise E('a ' + b)"]
)
def test_a_short_message_is_seen(line):
    assert len(short_messages(ast.parse(line))) == 1


def test_a_full_message_is_fine():
    text = "raise BadInput(f'term {name!r} must be a scalar, got {shape}: reduce it (.mean() or .sum()) first')"
    assert short_messages(ast.parse(text)) == []


def test_an_argument_that_is_no_message_is_fine():
    assert short_messages(ast.parse("raise MissingExtra('mlflow')")) == []


@pytest.mark.parametrize("line", ["raise ValueError", "raise RuntimeError()"])
def test_an_error_without_message_is_seen(line):
    assert len(raised_without_message(ast.parse(line))) == 1


def test_messages_say_enough(sources):
    assert {s.place: found for s in sources if (found := short_messages(s.tree))} == {}


def test_every_error_has_a_message(sources):
    assert {s.place: found for s in sources if (found := raised_without_message(s.tree))} == {}
