"""Who may import whom. The layers stand in pyproject.toml (import-linter); here is what it cannot express."""

import ast
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

TORCH_FREE = ("record", "health", "report", "monitor", "files", "pipeline", "rules")


def imported_modules(tree: ast.Module) -> list[tuple[int, str]]:
    """Line and name of every module of ours that a file imports."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [(node.lineno, node.module)]
        elif isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
    return [(line, name) for line, name in found if name.startswith("fieldwatch.")]


def is_inside(module: str, room: str) -> bool:
    """True for the package of a room and its modules; rooms are named as folders are: `run`, `recon/mesh`."""
    package = f"fieldwatch.{room.replace('/', '.')}"
    return f"{module}.".startswith(f"{package}.")


def private_imports(tree: ast.Module, own_room: str, package: Path) -> list[str]:
    """Imports that reach past another room's ``__init__.py`` into one of its modules."""
    foreign = [(line, name) for line, name in imported_modules(tree) if not is_inside(name, own_room)]
    is_room = {name: (package.joinpath(*name.split(".")[1:]) / "__init__.py").exists() for _, name in foreign}
    return [f"{line}: {name}" for line, name in foreign if not is_room[name]]


def names_past_all(tree: ast.Module, own_room: str, public: dict[str, set[str]]) -> list[str]:
    """Names imported from another room that this room does not offer in ``__all__``."""
    taken = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and (n.module or "").startswith("fieldwatch.")]
    foreign = [(n, n.module or "") for n in taken if not is_inside(n.module or "", own_room)]
    wanted = [(n.lineno, room, alias.name) for n, room in foreign if room in public for alias in n.names]
    return [f"{line}: {room}.{name}" for line, room, name in wanted if name not in public[room] | {"*"}]


def import_graph(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Which module imports which, at run time or for types only.

    Args:
        trees: by the dotted name of the module; a package by its own.
    """
    graph: dict[str, set[str]] = {name: set() for name in trees}
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                taken = [f"{node.module}.{alias.name}" for alias in node.names]
                graph[name] |= {one if one in trees else node.module for one in taken}
            elif isinstance(node, ast.Import):
                graph[name] |= {alias.name for alias in node.names}
        graph[name] &= trees.keys()
    return graph


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or by way of others."""
    reached = {name: reachable(graph, name) for name in graph}
    groups = {tuple(sorted(one for one in reached[name] if name in reached[one])) for name in graph}
    return [list(group) for group in sorted(groups) if group]


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Modules that ``start`` imports, and those that they import; ``start`` itself only by way of a cycle."""
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph[name]
    return found


def declared_all(tree: ast.Module) -> set[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == ["__all__"]:
            return set(ast.literal_eval(node.value))
    return set()


def test_an_import_of_a_private_module_is_seen(root):
    tree = ast.parse("from fieldwatch.record.row import Row\nfrom fieldwatch.record import Block")
    package = root / "src" / "fieldwatch"
    assert private_imports(tree, "run", package) == ["1: fieldwatch.record.row"]
    assert private_imports(tree, "record", package) == []


def test_rooms_of_recon_are_rooms_of_their_own(root):
    tree = ast.parse("from fieldwatch.recon.mesh.ply import read_ply")
    package = root / "src" / "fieldwatch"
    assert private_imports(tree, "recon/data", package) == ["1: fieldwatch.recon.mesh.ply"]
    assert private_imports(tree, "recon/mesh", package) == []


def test_a_name_that_a_room_does_not_offer_is_seen():
    tree = ast.parse("from fieldwatch.record import Row, hidden")
    assert names_past_all(tree, "run", {"fieldwatch.record": {"Row"}}) == ["1: fieldwatch.record.hidden"]


def test_a_cycle_of_modules_is_seen_also_where_an_import_is_for_types_only():
    texts = {
        "fieldwatch.a": "from fieldwatch.b import B",
        "fieldwatch.b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fieldwatch.a import A",
        "fieldwatch.c": "import fieldwatch.a",
    }
    graph = import_graph({name: ast.parse(text) for name, text in texts.items()})
    assert cycles(graph) == [["fieldwatch.a", "fieldwatch.b"]]


def test_no_modules_import_each_other_in_a_circle(sources):
    names = {s.place: ".".join(["fieldwatch", *s.place.removesuffix(".py").split("/")]) for s in sources}
    trees = {names[s.place].removesuffix(".__init__"): s.tree for s in sources}
    assert cycles(import_graph(trees)) == []


def test_rooms_are_entered_by_the_door(sources, root):
    package = root / "src" / "fieldwatch"
    found = {s.place: private_imports(s.tree, s.room, package) for s in sources}
    assert {place: imports for place, imports in found.items() if imports} == {}


def test_only_offered_names_are_taken(sources):
    doors = [s for s in sources if s.path.name == "__init__.py" and s.place != "__init__.py"]
    public = {".".join(["fieldwatch", *s.place.split("/")[:-1]]): declared_all(s.tree) for s in doors}
    found = {s.place: names_past_all(s.tree, s.room, public) for s in sources}
    assert {place: names for place, names in found.items() if names} == {}


def test_imports_stand_at_the_top(sources):
    """Except those that carry PLC0415 and say why: a library is optional, or a module is imported at first use."""
    inside = [
        (s.place, n.lineno, s.text.splitlines()[n.lineno - 1])
        for s in sources
        for f in ast.walk(s.tree)
        if isinstance(f, ast.FunctionDef)
        for n in ast.walk(f)
        if isinstance(n, ast.Import | ast.ImportFrom)
    ]
    assert [row for row in inside if "optional" not in row[2] and "at first use" not in row[2]] == []


@pytest.mark.parametrize("room", TORCH_FREE)
def test_reading_a_record_needs_no_torch(room):
    program = (
        f"import sys, fieldwatch, fieldwatch.{room}; print([m for m in ('torch', 'jaxtyping') if m in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (loaded.stdout.strip(), loaded.stderr) == ("[]", "")


@pytest.mark.parametrize(
    "line",
    [
        "from fieldwatch import Finding, History, Metric, examine",
        "from fieldwatch.pipeline import Job, Pipeline, Scores, refuse_out_of_bounds",
        "from fieldwatch.rules import HealthRule, gradients, threshold",
        "from fieldwatch import InputError; from fieldwatch.files import read_npz, write_file",
    ],
)
def test_public_names_that_train_nothing_need_no_torch(line):
    program = f"import sys; {line}; print('torch' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (loaded.stdout.strip(), loaded.stderr) == ("False", "")
