"""Names say what a thing is: no drawers for everything, and no name for two things."""

import ast
import re
from collections import Counter

import pytest

VAGUE = {"util", "utils", "utility", "utilities", "common", "helper", "helpers", "manager", "managers", "misc", "stuff"}

# The flags of a command: a class of this name in the module of each.
ONE_PER_MODULE = {"Arguments"}

# Names that several classes still have, by the number of modules that define one. A number may only fall.
REPEATED = {
    2: """
        FailedAllocation SearchResult Span
    """,
}
LEFT = {name: modules for modules, names in REPEATED.items() for name in names.split()}
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def words(name: str) -> set[str]:
    """The words of a snake_case or CamelCase name, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)}


def vague_names(tree: ast.Module) -> list[str]:
    names = [node.name for node in ast.walk(tree) if isinstance(node, DEFINITIONS)]
    return [name for name in names if words(name) & VAGUE]


@pytest.mark.parametrize("line", ["class RunManager: ...", "def load_helper(): ...", "def _io_utils(): ..."])
def test_a_vague_name_is_seen(line):
    assert vague_names(ast.parse(line))


def test_a_name_that_only_contains_the_letters_is_fine():
    assert vague_names(ast.parse("def commonplace(): ...\nclass Managerial: ...")) == []


def test_no_vague_names_in_the_code(sources):
    assert {s.place: found for s in sources if (found := vague_names(s.tree))} == {}


def test_no_vague_file_or_folder_names(sources):
    assert [s.place for s in sources if words(s.place.removesuffix(".py")) & VAGUE] == []


def repeated_classes(trees: list[ast.Module]) -> dict[str, int]:
    """Public names that classes of several modules have, with the number of these modules."""
    counts: Counter[str] = Counter()
    for tree in trees:
        counts.update({node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)})
    return {name: count for name, count in counts.items() if count > 1 and not name.startswith("_")}


def test_a_class_name_of_two_modules_is_found():
    trees = [ast.parse("class Row: ..."), ast.parse("class Row: ...\nclass _Part: ..."), ast.parse("class _Part: ...")]
    assert repeated_classes(trees) == {"Row": 2}


def test_no_further_class_name_repeats(sources):
    found = repeated_classes([source.tree for source in sources])
    more = {name: count for name, count in found.items() if count > LEFT.get(name, 1) and name not in ONE_PER_MODULE}
    assert more == {}
