"""Writers get their paths from `output_path`: nobody joins a folder and a name of his own where he writes."""

import ast

# Functions whose own argument is the path that they write to.
WRITERS = {
    "whole_file", "write_file", "open_new", "open_for_append", "write_mesh", "write_gaussian_ply", "write_point_ply",
    "write_video", "save_picture", "save_array", "save_cut_out", "write_csv", "write_table", "write_png16",
}  # fmt: skip
METHODS = {"write_bytes", "write_text", "mkdir", "touch", "save", "savez"}

# (file, function): why the path is not made from a name that comes from elsewhere.
_NEW = "fixed names in a folder that was made just before and did not exist"
ALLOWED = {
    ("recon/commands/normals/render_normals.py", "write_folder"): _NEW,
    ("monitor/post_mortem.py", "write_post_mortem"): _NEW,
    ("run/crash.py", "_write_files"): _NEW,
    ("run/out_of_memory.py", "explain"): _NEW,
}


def bare_name(node):
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def is_joined(node):
    """Whether an expression joins a path itself: `folder / name`."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)


def writes_of(node):
    """The paths that a call writes to, as expressions."""
    if not isinstance(node, ast.Call):
        return []
    name = bare_name(node.func)
    if isinstance(node.func, ast.Attribute) and name in METHODS:
        return [node.func.value, *node.args[:1]]
    opens = isinstance(node.func, ast.Attribute) and name == "open"
    modes = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    if opens and any(set(mode) & set("wax+") for mode in modes):
        return [node.func.value]
    return node.args[:2] if name in WRITERS else []


def joined_writes(tree):
    found = []

    def look(node, function):
        for child in ast.iter_child_nodes(node):
            inner = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
            if any(is_joined(path) for path in writes_of(child)):
                found.append(inner)
            look(child, inner)

    look(tree, "<module>")
    return found


def test_a_path_that_is_joined_where_it_is_written_is_seen():
    for line in (
        "(folder / name).write_bytes(b'')",
        "save_picture(folder / name, picture)",
        "image.save(folder / name)",
        "(folder / name).open('w')",
        "with whole_file(folder / name) as draft: pass",
    ):
        assert joined_writes(ast.parse(line)) == ["<module>"]
    assert joined_writes(ast.parse("write_file(output_path(folder, name), b'')\n(folder / name).open('rb')")) == []


def test_writers_get_their_paths_from_one_function(sources):
    found = {(source.place, function) for source in sources for function in joined_writes(source.tree)}
    assert found - set(ALLOWED) == set(), "make the path with fieldwatch.base.output_path"
    assert set(ALLOWED) - found == set(), "these stand in the list and not in the code"
