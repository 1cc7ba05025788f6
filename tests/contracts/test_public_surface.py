"""Pipelines use the toolkit as a package of somebody else does: by its public modules, see decision 0001."""

import ast
import re
from collections import Counter

import pytest

# The parts of the domain do not train: import-linter cannot see which names they take from the front door.
PARTS = ("data", "formats", "geometry", "losses", "mesh", "render")
OF_PARTS = {"fieldwatch.files": None, "fieldwatch.lazy": None, "fieldwatch": {"InputError"}}

REFERENCE = re.compile(r"(fieldwatch[\w.]*):([A-Za-z_]\w*)")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def taken_names(tree):
    """Line, module and name of everything that a file takes from fieldwatch, the domain excepted.

    The name is empty where a module is imported as a whole, unless that is the front door: there the attributes count.
    """
    doors = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, "." * node.level + (node.module or ""), alias.name
        elif isinstance(node, ast.Import):
            doors |= {alias.asname or alias.name for alias in node.names if alias.name == "fieldwatch"}
            yield from ((node.lineno, alias.name, "") for alias in node.names if alias.name != "fieldwatch")
        elif isinstance(node, ast.Constant) and (reference := REFERENCE.fullmatch(str(node.value))):
            yield node.lineno, reference[1], reference[2]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in doors:
            yield node.lineno, "fieldwatch", node.attr


def past_the_surface(tree, offered):
    """Imports, references and attributes that the public modules do not offer."""
    return [
        f"{line}: {module}.{name}".rstrip(".")
        for line, module, name in sorted(taken_names(tree))
        if is_toolkit(module, name) and name not in offered.get(module, set())
    ]


def is_toolkit(module, name):
    """Whether a name is the toolkit's: relative imports stay in their package."""
    whole = f"{module}.{name}."
    return whole.startswith("fieldwatch.") and not whole.startswith("fieldwatch.recon.")


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("from fieldwatch.record import History", "fieldwatch.record.History"),
        ("from fieldwatch.record.row import Row", "fieldwatch.record.row.Row"),
        ("from fieldwatch import record", "fieldwatch.record"),
        ("from fieldwatch import Recorder", "fieldwatch.Recorder"),
        ("from fieldwatch.pipeline import Run", "fieldwatch.pipeline.Run"),
        ("from fieldwatch.cli import main", "fieldwatch.cli.main"),
        ("from fieldwatch.run import *", "fieldwatch.run.*"),
        ("import fieldwatch.run", "fieldwatch.run"),
        ("import fieldwatch.health as h", "fieldwatch.health"),
        ("def late():\n    from fieldwatch.base import InputError", "fieldwatch.base.InputError"),
        ("import fieldwatch as fw\nfw.record.History", "fieldwatch.record"),
        ("rules = 'fieldwatch.health:GENERAL'", "fieldwatch.health.GENERAL"),
    ],
)
def test_what_is_past_the_surface_is_seen(offered, line, seen):
    (found,) = past_the_surface(ast.parse(line), offered)
    assert found.partition(": ")[2] == seen


@pytest.mark.parametrize(
    "line",
    [
        "from fieldwatch import Run, Terms",
        "from fieldwatch.pipeline import Job",
        "import fieldwatch as fw\nfw.Run",
        "from fieldwatch.recon.mesh import Triangles",
        "from fieldwatch.recon import mesh",
        "import fieldwatch.recon.mesh",
        "rules = 'fieldwatch:GENERAL'",
        "from .record import History",
        "from fieldwatcher.record import History",
        "text = 'fieldwatch.record: what it holds'",
    ],
)
def test_what_is_on_the_surface_is_fine(offered, line):
    assert past_the_surface(ast.parse(line), offered) == []


def test_pipelines_and_their_parts_use_the_public_surface_only(sources, offered):
    files = [source for source in sources if source.place.startswith("recon/")]
    found = {source.place: past_the_surface(source.tree, offered) for source in files}
    assert {place: names for place, names in found.items() if names} == {}
    assert len(files) > 300


def test_the_parts_take_errors_and_files_only(sources):
    found = {
        f"{source.place}:{line}: {module}.{name}"
        for source in sources
        for line, module, name in taken_names(source.tree)
        if source.room in {f"recon/{part}" for part in PARTS} and is_toolkit(module, name)
        if module not in OF_PARTS or (OF_PARTS[module] is not None and name not in OF_PARTS[module])
    }
    assert found == set()


def test_the_examples_use_the_public_surface_only(root, offered):
    files = sorted((root / "examples").rglob("*.py"))
    found = {str(path.relative_to(root)): past_the_surface(ast.parse(path.read_text()), offered) for path in files}
    assert {place: names for place, names in found.items() if names} == {}
    assert len(files) > 5


def test_the_pages_show_the_public_surface_only(root, offered):
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    blocks = [(path.name, block) for path in pages for block in BLOCK.findall(path.read_text())]
    found = {(page, *past_the_surface(ast.parse(block), offered)) for page, block in blocks}
    assert {page for page in found if len(page) > 1} == set()
    assert len(blocks) > 5


def test_a_name_has_one_public_home(offered):
    counts = Counter(name for names in offered.values() for name in names)
    assert [name for name, count in counts.items() if count > 1] == []
