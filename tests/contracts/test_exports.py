"""A room is entered by few names: what it exports is what a reader has to learn of it."""

import ast

GUIDANCE = 40

# Rooms with more exports. A number may only fall.
LEFT = {
    "monitor": 52,
    "recon/mesh": 43,
    "recon/pipelines/splats": 57,
    "recon/render": 53,
    "record": 44,
}


def exported_names(tree: ast.Module) -> set[str]:
    """Names in ``__all__``."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return set(ast.literal_eval(node.value))
    return set()


def exports(tree: ast.Module) -> int:
    """Number of names in ``__all__``."""
    return len(exported_names(tree))


def too_many(counts: dict[str, int], allowed: dict[str, int]) -> dict[str, int]:
    """Rooms that export more than they may."""
    return {room: count for room, count in counts.items() if count > allowed.get(room, GUIDANCE)}


def test_exports_are_counted():
    assert exports(ast.parse("from a import b, c\n__all__ = ['b', 'c']")) == 2
    assert exports(ast.parse("from a import b")) == 0


def test_a_room_with_too_many_exports_is_found():
    found = too_many({"run": 41, "base": 40, "mesh": 62, "data": 62}, {"mesh": 61, "data": 62})
    assert found == {"run": 41, "mesh": 62}


def test_a_room_exports_few_names(sources):
    rooms = [source for source in sources if source.place.endswith("/__init__.py")]
    counts = {source.place.removesuffix("/__init__.py"): exports(source.tree) for source in rooms}
    assert too_many(counts, LEFT) == {}
    assert sorted(room for room in LEFT if counts.get(room, 0) <= GUIDANCE) == [], "these need no exception any more"


def hidden_by_a_module(places: set[str], room: str, tree: ast.Module) -> set[str]:
    """Exported names that a module of the room hides: importing the module puts it in the place of the name."""
    room_itself = f"fieldwatch.{room.replace('/', '.')}"
    # Of `from fieldwatch.base import protobuf` in fieldwatch.base, the name is the module.
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == room_itself]
    modules = {alias.name for node in imports for alias in node.names}
    names = exported_names(tree) - modules
    return {name for name in names if f"{room}/{name}.py" in places or f"{room}/{name}/__init__.py" in places}


def test_a_name_that_a_module_hides_is_found():
    places = {"record/__init__.py", "record/journal.py", "record/tags.py", "record/memory/__init__.py"}
    text = "from fieldwatch.record import tags\n__all__ = ['journal', 'memory', 'tags', 'Journal']"
    assert hidden_by_a_module(places, "record", ast.parse(text)) == {"journal", "memory"}


def test_no_exported_name_is_hidden_by_a_module(sources):
    places = {source.place for source in sources}
    for source in sources:
        if source.place.endswith("/__init__.py"):
            room = source.place.removesuffix("/__init__.py")
            assert hidden_by_a_module(places, room, source.tree) == set(), room
