"""`record/tags.py` alone builds the tags of the toolkit and takes them apart; everybody else asks it."""

import ast
import re
from collections import Counter

import pytest

# A term times its weight, say, is `tags.WEIGHTED.tag(term)`; the term of a tag is `tags.WEIGHTED.part(tag)`.
HOME = "record/tags.py"
TAG = re.compile(r"(Gradients|Guard|LearningRate|Loss|Machine|Memory|Parameters|Sample|Time)/")
TAKEN_APART = {"removeprefix", "startswith"}

# Places that are left, by room. A number may only fall; every room that is not listed has none.
LEFT = {"recon/pipelines": 2}


def is_tag(text: object) -> bool:
    """True for text that begins as a tag, as ``Loss/total`` and ``Gradients/`` do."""
    return isinstance(text, str) and TAG.match(text) is not None


def named_tags(tree: ast.Module) -> set[str]:
    """Names that the module gives to a tag, or to a tuple of tags."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign):
            texts = [part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
            if texts and all(map(is_tag, texts)):
                found.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return found


def is_tag_expression(node: ast.AST, names: set[str]) -> bool:
    """True for a tag, a tuple of tags, or the name of one."""
    if isinstance(node, ast.Tuple):
        return any(is_tag_expression(part, names) for part in node.elts)
    if isinstance(node, ast.Name):
        return node.id in names
    return isinstance(node, ast.Constant) and is_tag(node.value)


def handled_tags(tree: ast.Module) -> list[int]:
    """Lines that build a tag from parts, or take one apart."""
    names = named_tags(tree)
    lines: list[int] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            first = node.values[0]
            found = len(node.values) > 1 and isinstance(first, ast.Constant) and is_tag(first.value)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            found = is_tag_expression(node.left, names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found = node.func.attr in TAKEN_APART and any(is_tag_expression(part, names) for part in node.args)
        else:
            found = False
        if found:
            lines.append(node.lineno)
    return lines


@pytest.mark.parametrize(
    "line",
    [
        'name.removeprefix("Loss/component_")',
        'name.startswith(("Sample/", "Guard/"))',
        'NORMS = ("Gradients/", "Parameters/")\nname.startswith(NORMS)',
        'f"Gradients/{group}_norm"',
        'TERM = "Loss/component_"\nTERM + name',
    ],
)
def test_a_tag_that_is_built_or_taken_apart_is_found(line):
    assert len(handled_tags(ast.parse(line))) == 1


@pytest.mark.parametrize(
    "line",
    ['history["Loss/total"]', 'f"{folder}/run.json"', 'path.startswith("runs/")', 'f"Loss of {name}"', "1 + one"],
)
def test_a_whole_tag_and_other_text_are_fine(line):
    assert handled_tags(ast.parse(line)) == []


def test_tags_are_built_and_taken_apart_in_one_place(sources):
    counts: Counter[str] = Counter()
    for source in sources:
        if source.place != HOME:
            counts[source.room] += len(handled_tags(source.tree))
    assert {room: count for room, count in counts.items() if count > LEFT.get(room, 0)} == {}
