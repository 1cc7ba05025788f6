"""Generate the page of public names from the modules and their docstrings."""

import ast
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

PUBLIC = {
    "fieldwatch": "For a loop of your own, and for reading what it left: [adopt.md](adopt.md).",
    "fieldwatch.pipeline": "For a pipeline, a loop that has commands: [pipelines.md](pipelines.md).",
    "fieldwatch.notebook": "For runs in notebooks: [view.md](view.md#notebooks).",
    "fieldwatch.rules": "For health rules of your own: [adopt.md](adopt.md#your-own-rule-your-own-sink).",
    "fieldwatch.files": "For reading what a user named, and for output that is whole or not there.",
    "fieldwatch.lazy": "For packages that import their names at first use.",
    "fieldwatch.cli.kit": "For commands of a pipeline: [pipelines.md](pipelines.md#commands-of-your-own).",
}
"""Public modules and their purpose."""

_ROLE = re.compile(r":\w+:`[~.]?(?:[\w.]*\.)?(\w+)`")
"""A reference as docstrings write it: :class:`~fieldwatch.Run`."""

_HEAD = """# Public names

These modules are the toolkit's public surface. Everything else below `fieldwatch` may change without notice. Our own
pipelines use no other names (`tests/contracts/test_public_surface.py`). Docstrings say more: `help(fieldwatch.Run)`.
`fieldwatch.adapters` is public too, and has a page of its own: [adapters.md](adapters.md).
"""


def page() -> str:
    """Return the page: a table of names for each public module."""
    sections = [f"## {name}\n\n{purpose}\n\n{_table(name)}\n" for name, purpose in PUBLIC.items()]
    return "\n".join([_HEAD, *sections])


def _table(module: str) -> str:
    public = importlib.import_module(module)
    names = sorted(public.__all__, key=str.lower)
    rows = [f"| `{_call(name, getattr(public, name))}` | {_cell(explanation(module, name))} |" for name in names]
    return "\n".join(["| name | what it is |", "|---|---|", *rows])


def _call(name: str, thing: Any) -> str:
    """Return a function's name with those of its arguments, any other name as it is."""
    if not inspect.isfunction(thing):
        return name
    parameters = inspect.signature(thing).parameters.values()
    bare = [each.replace(annotation=each.empty) for each in parameters]
    return name + str(inspect.Signature(bare)).replace("|", r"\|")


def _cell(text: str) -> str:
    plain = _ROLE.sub(r"`\1`", text).replace("``", "`")
    return " ".join(plain.replace("|", r"\|").split())


def explanation(module: str, name: str) -> str:
    """Return the first paragraph of what the source says of a public name; empty where it says nothing."""
    thing = getattr(importlib.import_module(module), name)
    own = isinstance(thing, ModuleType | type) or inspect.isroutine(thing)
    text = (inspect.getdoc(thing) if own else _text_below(module, name)) or ""
    return text.partition("\n\n")[0]


def _text_below(module: str, name: str) -> str:
    """Return the string below a constant's definition, wherever the modules between import it from."""
    path = Path(importlib.import_module(module).__file__ or "")
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return _text_below(node.module or "", name)
    for node, below in zip(tree.body, tree.body[1:], strict=False):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        defines = any(isinstance(target, ast.Name) and target.id == name for target in targets)
        if defines and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            return inspect.cleandoc(str(below.value.value))
    return ""
