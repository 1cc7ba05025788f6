"""Tests match the facts of a message (flag, number, path, class, step), so that its sentence can be written better."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

# Four plain words in a row, with nothing but blanks or light punctuation between them.
WORD = r"[A-Za-z]+(?:'[a-z]+)?"
SENTENCE = re.compile(rf"(?<![\w'\"`/.<>=\\-]){WORD}(?:[,;:]? {WORD}){{3,}}(?![\w'\"`/=]|[.-]\w|\()")
COMPARING_METHODS = {"startswith", "endswith", "count", "search", "match", "fullmatch", "findall"}

# Quoted sentences that are left in the whole suite. The number may only fall.
LEFT = 24


def literals(node: ast.expr) -> list[str]:
    """Texts that an expression spells out, also in an f-string or a collection."""
    parts: list[ast.expr] = []
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        parts = [part for part in node.values if isinstance(part, ast.Constant)]
    elif isinstance(node, ast.BinOp):
        parts = [node.left, node.right]
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"re.escape", "re.compile"}:
        parts = node.args
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        parts = node.elts
    elif isinstance(node, ast.Dict):
        parts = node.values
    return [text for part in parts for text in literals(part)]


def expected_texts(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield what `match=` and the comparisons of `assert` expect."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from (keyword.value for keyword in node.keywords if keyword.arg == "match")
        elif isinstance(node, ast.Assert):
            for part in ast.walk(node.test):
                if isinstance(part, ast.Compare):
                    yield from (part.left, *part.comparators)
                elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
                    yield from part.args if part.func.attr in COMPARING_METHODS else ()


def quoted_sentences(tree: ast.Module) -> list[int]:
    """Lines that expect four plain words in a row."""
    return [node.lineno for node in expected_texts(tree) if any(map(SENTENCE.search, literals(node)))]


@pytest.mark.parametrize(
    "line",
    [
        'with pytest.raises(ValueError, match="the step must be positive"): ...',
        'with pytest.raises(ValueError, match=f"{name}: the step must be positive"): ...',
        'assert "there is no checkpoint" in text',
        'assert notes == ("the grid shrank, as told",)',
        'assert text.startswith("there is no checkpoint")',
    ],
)
def test_a_quoted_sentence_is_found(line):
    assert quoted_sentences(ast.parse(line)) == [1]


@pytest.mark.parametrize(
    "line",
    [
        'with pytest.raises(ValueError, match=r"step.*got 0"): ...',
        'assert "checkpoint of step 7 of 12" in text',
        'assert "there is no" in text',
        'assert parse("there is no checkpoint") is None',
        'assert "use --to ply or --to pt" in text',
    ],
)
def test_facts_are_fine(line):
    assert quoted_sentences(ast.parse(line)) == []


def test_the_suite_matches_facts(root):
    files = sorted(Path(root, "tests").rglob("test_*.py"))
    quoted = {path: quoted_sentences(ast.parse(path.read_text())) for path in files}
    found = {path.relative_to(root).as_posix(): lines for path, lines in quoted.items() if lines}
    assert sum(map(len, found.values())) <= LEFT, found
