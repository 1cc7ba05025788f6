"""Names say what a thing is: no drawers for everything."""

import ast
import re

import pytest

VAGUE = {"util", "utils", "utility", "utilities", "common", "helper", "helpers", "manager", "managers", "misc", "stuff"}
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
