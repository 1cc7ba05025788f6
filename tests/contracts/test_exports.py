"""A room is entered by few names: what it exports is what a reader has to learn of it."""

import ast

GUIDANCE = 40

# Rooms with more exports. A number may only fall.
LEFT = {
    "monitor": 52,
    "recon/mesh": 44,
    "recon/pipelines/splats": 57,
    "recon/render": 53,
    "record": 44,
}


def exports(tree: ast.Module) -> int:
    """Number of names in ``__all__``."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return len(set(ast.literal_eval(node.value)))
    return 0


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
