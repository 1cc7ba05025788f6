"""Where a loop is in its source: the lines that findings name, data loaders in its scope, calls in a wrong order.

The source is read once, when the loop begins. Nothing is executed, and nothing of a step depends on it.
"""

import ast
import inspect
import linecache
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, GeneratorType
from typing import Any, cast

from torch.optim import Optimizer, lr_scheduler
from torch.utils.data import DataLoader, IterableDataset

from fieldwatch.record.source_code import is_installed

_TOOLKIT = f"{Path(__file__).parents[1]}{os.sep}"
_BETWEEN = (f"{_TOOLKIT}run{os.sep}", f"{_TOOLKIT}adapters{os.sep}")
"""Parts of the toolkit that may lie between a loop and this module."""
_MOST_LINES = 3
"""Number of lines that are noted of each kind."""
_LONGEST = 90
"""Characters of a line that are noted."""
_LARGEST = 1 << 20
"""Characters of a source file above which it is not parsed."""
_LOSSES = frozenset(
    ("cross_entropy", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "nll_loss", "ctc_loss")
)
_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module
_Loop = ast.For | ast.AsyncFor | ast.While


@dataclass(kw_only=True)
class LoopSource:
    """What the source around a loop says.

    Attributes:
        file: name of the file, relative to the working directory if it is below it; "cell" in a notebook.
        line: line at which the loop begins.
        lines: by kind of call (``backward``, ``optimizer``, ...) and as ``item:<name>`` by variable: line and text.
        order: calls of the loop that come in a wrong order: what is wrong, and the line.
        loaders: data loaders among the variables of the loop.
    """

    file: str
    line: int
    lines: dict[str, list[tuple[int, str]]] = field(default_factory=dict[str, list[tuple[int, str]]])
    order: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    loaders: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def facts(self) -> dict[str, Any]:
        """Return the facts of an event."""
        lines = {kind: [[line, text] for line, text in found] for kind, found in self.lines.items()}
        order = [{"what": what, "line": line} for what, line in self.order]
        return {"file": self.file, "line": self.line, "lines": lines, "order": order, "loaders": self.loaders}


def read_loop_source(items: Sequence[str] = ()) -> LoopSource | None:
    """Return what the source of the calling loop says; None if it is no source of the user.

    Args:
        items: names of tracked objects, which are looked for among the variables.
    """
    frame = user_frame()
    if frame is None:
        return None
    text = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    source = LoopSource(file=_shown(frame.f_code.co_filename), line=frame.f_lineno)
    source.loaders = list(_loaders(frame))
    if not text or len(text) > _LARGEST:
        return source
    try:
        module = ast.parse(text)
    # The file was changed since it was imported, or is no plain Python.
    except (SyntaxError, ValueError, RecursionError):
        return source
    scope = _scope(module, frame.f_code.co_firstlineno, frame.f_code.co_name)
    loop = _loop_around(scope, frame.f_lineno)
    source.lines = _noted_lines(module, scope, loop, items, text.splitlines())
    source.order = [] if loop is None else [*_wrong_order(loop), *_used_up(loop, frame)]
    return source


def _noted_lines(
    module: ast.Module, scope: _Scope, loop: _Loop | None, items: Sequence[str], rows: Sequence[str]
) -> dict[str, list[tuple[int, str]]]:
    """Return line and text of the calls that findings are about, and of the assignments of tracked objects.

    Args:
        module: the whole file.
        scope: function of the loop; the module if it is in none.
        loop: the loop, if the run is called in one.
        items: names of tracked objects.
        rows: lines of the file.
    """
    lines: dict[str, list[tuple[int, str]]] = {}
    for kind, line in _calls(loop or scope):
        _note(lines, kind, line, rows)
    # What the loop does itself counts more than what its function does before, such as a training of another model.
    in_loop = set(lines)
    for kind, line in _calls(scope):
        if kind not in in_loop:
            _note(lines, kind, line, rows)
    if scope is not module:
        _add_single(lines, module, rows)
    for item in items:
        for line in _assignments(scope, item) or _assignments(module, item):
            _note(lines, f"item:{item}", line, rows)
    for found in lines.values():
        found.sort()
        del found[_MOST_LINES:]
    return lines


def user_frame() -> FrameType | None:
    """Return the innermost frame of the user's code that called the run; None if another part of the toolkit did."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_BETWEEN):
            # A pipeline: its lines are none of the user's.
            if name.startswith(_TOOLKIT):
                return None
            # A framework (Lightning, Transformers) lies between the run and the script that calls it, or a wrapper that
            # hides itself from tracebacks.
            made = name.startswith("<") and "ipython" not in name
            if not made and "__tracebackhide__" not in frame.f_code.co_varnames and not is_installed(Path(name)):
                return frame
        frame = frame.f_back
    return None


def _shown(name: str) -> str:
    """Return the name of a file as a reader knows it."""
    if "ipykernel" in name or name.startswith("<"):
        return "cell"
    path = Path(name)
    try:
        return str(path.relative_to(Path.cwd()))
    # Another folder, or the working directory is gone.
    except (ValueError, OSError):
        return path.name


def _scope(module: ast.Module, first: int, name: str) -> _Scope:
    """Return the function that code belongs to; the module for code outside of functions."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            # The first line of a decorated function is that of its decorator.
            begin = min((each.lineno for each in node.decorator_list), default=node.lineno)
            if begin == first:
                return node
    return module


def _note(lines: dict[str, list[tuple[int, str]]], kind: str, line: int, rows: Sequence[str]) -> None:
    text = rows[line - 1].strip()
    entry = (line, text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")
    known = lines.setdefault(kind, [])
    if entry not in known:
        known.append(entry)


def _add_single(lines: dict[str, list[tuple[int, str]]], module: ast.Module, rows: Sequence[str]) -> None:
    """Add the calls of other functions, of each kind that the loop's own function lacks and the file has once."""
    others: dict[str, set[int]] = {}
    for kind, line in _calls(module):
        others.setdefault(kind, set()).add(line)
    for kind, found in others.items():
        if kind not in lines and len(found) == 1:
            _note(lines, kind, min(found), rows)


def _calls(scope: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield kind and line of the calls that findings are about."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Call):
            kind = _kind(node)
            if kind:
                yield kind, node.lineno


def _kind(call: ast.Call) -> str:
    """Return which kind of call this is; empty for any other."""
    name = _last_name(call.func)
    plain = {"backward": "backward", "zero_grad": "clear", "DataLoader": "loader", "evaluation": "evaluation"}
    if name in plain:
        return plain[name]
    if name.startswith("clip_grad"):
        return "clip"
    if name == "register_forward_hook":
        return "hook"
    if name in _LOSSES or (name.endswith("_loss") and name.islower()) or (name.endswith("Loss") and name != "Loss"):
        return "loss"
    if _is_class(getattr(sys.modules.get("torch.optim"), name, None), Optimizer):
        return "optimizer"
    return "schedule" if _is_class(getattr(lr_scheduler, name, None), lr_scheduler.LRScheduler) else ""


def _is_class(value: object, base: type) -> bool:
    return isinstance(value, type) and issubclass(value, base)


def _last_name(func: ast.expr) -> str:
    if isinstance(func, ast.Attribute):
        return func.attr
    return func.id if isinstance(func, ast.Name) else ""


def _assignments(scope: _Scope, name: str) -> list[int]:
    """Return the lines that give a variable its value by a call."""
    return [
        node.lineno
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    ]


def _loop_around(scope: _Scope, line: int) -> _Loop | None:
    """Return the innermost loop around a line."""
    around = [
        node
        for node in ast.walk(scope)
        if isinstance(node, _Loop) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(around, key=lambda node: node.lineno, default=None)


def _wrong_order(loop: _Loop) -> Iterator[tuple[str, int]]:
    """Yield clippings of gradients that stand before the backward pass of the same round.

    What an update follows before the next backward pass belongs to gradients that a function has computed.
    """
    statements = list(_in_order(loop.body))
    for place, statement in enumerate(statements):
        # What a branch does may not happen at all.
        plain = isinstance(statement, ast.Expr | ast.Assign)
        lines = [line for kind, line in _calls(statement) if kind == "clip"] if plain else []
        if not lines or any(_has(each, "backward") for each in statements[: place + 1]):
            continue
        later = (each for each in statements[place:] if _has(each, "backward", "step", "update"))
        following = next(later, None)
        if following is not None and _has(following, "backward") and not _has(following, "step", "update"):
            yield "clip before backward", lines[0]


def _used_up(loop: _Loop, frame: FrameType) -> Iterator[tuple[str, int]]:
    """Yield clippings of what a generator yields, which is used up after the first step, or before it."""
    for node in ast.walk(loop):
        if not isinstance(node, ast.Call) or _kind(node) != "clip" or not node.args:
            continue
        first = node.args[0]
        if isinstance(first, ast.Name) and not _is_assigned(loop, first.id):
            value = frame.f_locals.get(first.id, frame.f_globals.get(first.id))
            if isinstance(value, GeneratorType):
                yield "clip of a generator", node.lineno


def _is_assigned(loop: _Loop, name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store) for node in ast.walk(loop)
    )


def _in_order(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run one after the other, those of ``with`` blocks among them."""
    for statement in body:
        if isinstance(statement, ast.With):
            yield from _in_order(statement.body)
        else:
            yield statement


def _has(statement: ast.stmt, *names: str) -> bool:
    """Return whether a statement calls a method of one of the names."""
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names
        for node in ast.walk(statement)
    )


def _loaders(frame: FrameType) -> Iterator[dict[str, Any]]:
    """Yield the facts of the data loaders among the variables of a loop."""
    seen: set[int] = set()
    variables = cast("list[tuple[str, object]]", [*frame.f_locals.items(), *frame.f_globals.items()])
    for name, value in variables:
        if isinstance(value, DataLoader) and id(cast("object", value)) not in seen:
            seen.add(id(cast("object", value)))
            facts = _facts(name, cast("DataLoader[Any]", value))
            if facts is not None:
                yield facts


def _facts(name: str, loader: "DataLoader[Any]") -> dict[str, Any] | None:
    """Return the facts of a data loader; None if it does not know its length and is no stream."""
    batches: int | None = None
    rows: int | None = None
    try:
        batches = len(loader)
        rows = len(cast("Any", loader.dataset))
    except Exception:  # noqa: BLE001  user code: a stream has no length, and a data set may raise anything
        if not isinstance(loader.dataset, IterableDataset):
            return None
    return {
        "name": name,
        "batches": batches,
        "rows": rows,
        "batch_size": loader.batch_size,
        "workers": loader.num_workers,
        "drop_last": loader.drop_last,
    }
