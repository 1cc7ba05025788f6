"""The toolkit does not know our pipelines, by name as little as by import (the imports: see pyproject.toml)."""

import ast
import re
from pathlib import PurePosixPath

import pytest

TOOLKIT = (
    "base", "checkpoint", "cli", "files", "guard", "health", "many", "measure", "monitor", "pipeline", "record",
    "registry", "report", "rules", "run",
)  # fmt: skip
WORDS = re.compile(r"(?<![A-Za-z])(splats?|gaussians?|sdf|normals|video)(?![A-Za-z])", re.IGNORECASE)
"""Names of our pipelines and what they train, as words of a text or parts of a name."""

ALLOWED = {
    "monitor/watch/choosing.py": "ranks curves by their tags, those of many programs among them",
    "health/rules/quality.py": "cites a paper by its title or address",
}
"""Files and folders with such a word, and why."""


def texts_of(tree):
    """Lines and texts of string literals (docstrings excepted), and names that a file defines or uses."""
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.lineno, node.value
        elif isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name


def parts(text):
    """A name in CamelCase or SNAKE_CASE as words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).replace("_", " ")


def named_in(tree):
    return sorted({(line, found[0].lower()) for line, text in texts_of(tree) if (found := WORDS.search(parts(text)))})


@pytest.mark.parametrize(
    "line", ['PIPELINES = ("video",)', 'x = f"{n} Gaussians"', "class DegenerateGaussians: ...", "SPLATS = 1"]
)
def test_a_name_of_a_pipeline_is_seen(line):
    assert named_in(ast.parse(line))


def test_a_word_in_documentation_is_none():
    assert named_in(ast.parse('"""As the normals do."""\ndef normalized(videotape): ...')) == []


def test_no_file_of_the_toolkit_names_a_pipeline(sources):
    files = [source for source in sources if PurePosixPath(source.place).parts[0] in TOOLKIT]
    named = {source.place: found for source in files if (found := named_in(source.tree))}
    allowed = {place for place in named if place.startswith(tuple(ALLOWED))}
    assert {place: found for place, found in named.items() if place not in allowed} == {}
    assert [place for place in ALLOWED if not any(each.startswith(place) for each in allowed)] == []
