"""What the public modules offer: importable, explained, and written about."""

import ast
import importlib
import inspect
import pkgutil
import re

import jaxtyping
import pytest

import fieldwatch
from fieldwatch.record import Row

MOST_NAMES = 48
"""A reader has to learn the names of a module."""


def test_every_public_name_can_be_imported(public):
    assert [name for name in public.__all__ if getattr(public, name, None) is None] == []


def test_names_are_listed_once_and_are_few(public):
    assert set(public.__all__) <= set(dir(public))
    assert len(set(public.__all__)) == len(public.__all__) <= MOST_NAMES  # ruff keeps their order


@pytest.mark.parametrize("module", ["fieldwatch", "fieldwatch.pipeline"])
def test_an_unknown_name_of_a_lazy_module_is_refused_with_what_there_is(module):
    lazy = importlib.import_module(module)
    assert dir(lazy) == sorted(lazy.__all__)
    with pytest.raises(
        AttributeError, match=f"module '{module}' has no attribute 'Runner'; public names: .*{lazy.__all__[-1]}"
    ):
        _ = lazy.Runner


def test_every_public_class_and_function_is_explained(public):
    things = {name: getattr(public, name) for name in public.__all__}
    own = {name: thing for name, thing in things.items() if inspect.isclass(thing) or inspect.isfunction(thing)}
    assert [name for name, thing in own.items() if not inspect.getdoc(thing)] == []


@pytest.mark.parametrize("module", ["fieldwatch", "fieldwatch.pipeline", "fieldwatch.cli.kit"])
def test_every_public_name_of_a_loop_or_a_pipeline_is_in_a_guide(module, offered, root):
    guides = [root / "README.md", *(page for page in (root / "docs").glob("*.md") if page.name != "api.md")]
    text = "\n".join(page.read_text() for page in guides)
    assert [name for name in sorted(offered[module]) if not re.search(rf"\b{name}\b", text)] == []


def explained(page: str) -> dict[str, set[str]]:
    """Names that a page of tables explains, by the section that they stand in."""
    sections = re.findall(r"^## (\S+)$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return {title: set(re.findall(r"^\| `(\w+).*?` \| \S", text, re.MULTILINE)) for title, text in sections}


def test_a_name_without_an_explanation_is_none():
    page = "## a\n| `f(x, y=1)` | does it |\n| `G` |  |\n## b\n| `h` | is it |\n"
    assert explained(page) == {"a": {"f"}, "b": {"h"}}


def test_the_page_of_public_names_explains_all_of_them(offered, root):
    adapters = "fieldwatch.adapters"
    assert explained((root / "docs" / "api.md").read_text()) == {k: v for k, v in offered.items() if k != adapters}
    # Their signatures can only be read where their frameworks are installed, so they have a page written by hand.
    page = (root / "docs" / "adapters.md").read_text()
    assert [name for name in sorted(offered[adapters]) if f"`{name}`" not in page and f"{name}(" not in page] == []


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
