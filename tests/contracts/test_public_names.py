"""What ``import fieldwatch`` offers: importable, explained, and written about."""

import ast
import importlib
import inspect
import pkgutil
import re

import jaxtyping
import pytest

import fieldwatch
from fieldwatch.record import Row


def test_every_public_name_can_be_imported():
    assert [name for name in fieldwatch.__all__ if getattr(fieldwatch, name, None) is None] == []


def test_names_are_listed_once():
    assert sorted(set(fieldwatch.__all__)) == dir(fieldwatch)
    assert len(set(fieldwatch.__all__)) == len(fieldwatch.__all__)  # ruff keeps their order


def test_an_unknown_name_is_refused_with_what_there_is():
    with pytest.raises(AttributeError, match=r"no attribute 'Runner'; public names: .*Run, "):
        _ = fieldwatch.Runner


def test_every_public_class_and_function_is_explained():
    things = {name: getattr(fieldwatch, name) for name in fieldwatch.__all__}
    own = {name: thing for name, thing in things.items() if inspect.isclass(thing) or inspect.isfunction(thing)}
    assert [name for name, thing in own.items() if not inspect.getdoc(thing)] == []


def test_every_public_name_is_written_about(root):
    pages = [root / "README.md", *(root / "docs").rglob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    assert [name for name in fieldwatch.__all__ if not re.search(rf"\b{name}\b", text)] == []


def missing_docstrings(tree: ast.Module) -> list[str]:
    """Public classes, their public methods and public functions without a docstring; overloads share that of one."""
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and not n.name.startswith("_")]
    found += [m for c in found if isinstance(c, ast.ClassDef) for m in c.body if isinstance(m, ast.FunctionDef)]
    named = [node for node in found if not node.name.startswith("_") and not is_overload(node)]
    return [node.name for node in named if not ast.get_docstring(node)]


def is_overload(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and "overload" in map(ast.unparse, node.decorator_list)


def test_a_missing_docstring_is_seen():
    assert missing_docstrings(ast.parse("class A:\n  def f(self): ...\n  def _g(self): ...")) == ["A", "f"]


def test_every_public_thing_has_a_docstring(sources):
    found = {s.place: missing_docstrings(s.tree) for s in sources}
    assert {place: names for place, names in found.items() if names} == {}


def test_types_are_checked_at_run_time_in_tests():
    with pytest.raises(jaxtyping.TypeCheckError, match="step"):
        Row(step="seven", seconds=0.0, values={})


@pytest.mark.usefixtures("unchecked")
def test_a_test_can_switch_the_checks_off():
    assert Row(step="seven", seconds=0.0, values={}, position=1).step == "seven"


def test_every_annotation_can_be_checked(uncheckable):
    for module in pkgutil.walk_packages(fieldwatch.__path__, "fieldwatch."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    assert uncheckable() == {}
