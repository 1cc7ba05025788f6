"""Finds the tensors inside an object, without running a line of its code."""

import types
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

FoundTensor: TypeAlias = tuple[str, Tensor | NDArray[Any]]
"""Where it was found, and what."""

MAX_OBJECTS = 100_000
"""Objects looked at in one walk; a million-entry list of numbers is no place for tensors."""

_LEAF_TYPES = frozenset(
    {
        *(type(None), bool, int, float, complex, str, bytes, bytearray, range, slice),
        *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, types.GeneratorType),
    }
)
_MODULE_DICTS = ("_parameters", "_buffers", "_modules")
"""The dicts of a module, left out of a path."""

_CONTAINERS = (dict, list, tuple, set, frozenset, deque)


def find_tensors(value: object, *, limit: int = MAX_OBJECTS) -> Iterator[FoundTensor]:
    """Every tensor and numpy array reachable through containers, dataclasses, modules and plain attributes.

    Only built-in containers are iterated, and attributes are read where they lie: a data set that loads on access
    loads nothing. Each object is visited once, so cycles end.

    Args:
        value: where to begin.
        limit: how many objects to look at.

    Yields:
        The path, such as ``views.3.image`` (empty for ``value`` itself), and the tensor or array.

    Raises:
        OverflowError: more than ``limit`` objects; what was found so far has been yielded.
    """
    seen: dict[int, object] = {}
    pending: list[tuple[str, object]] = [("", value)]
    visited = 0
    while pending:
        path, current = pending.pop()
        if type(current) in _LEAF_TYPES or id(current) in seen or isinstance(current, type):
            continue
        # The object itself is kept: an id is unique only while its object lives.
        seen[id(current)] = current
        if isinstance(current, (Tensor, np.ndarray)):
            yield path, current
            continue
        visited += 1 + (len(cast("Any", current)) if isinstance(current, _CONTAINERS) else 0)
        if visited > limit:
            raise OverflowError(f"more than {limit} objects, stopped at {path!r}: register the tensors themselves")
        children = _children(cast("object", current))
        # Reversed, because the stack is popped from its end: paths then come in their natural order.
        pending.extend(reversed([(_joined(path, name), child) for name, child in children]))


def _children(value: object) -> list[tuple[str, object]]:
    """What an object holds directly, by name; numbers and text left out."""
    found = _attributes(value)
    if isinstance(value, dict):
        built_in: Any = dict  # whatever a subclass made of its items
        pairs = [(key, child) for key, child in built_in.items(value) if type(child) not in _LEAF_TYPES]
        found += [(str(key) if type(key) in _LEAF_TYPES else type(key).__name__, child) for key, child in pairs]
    elif isinstance(value, _CONTAINERS):
        names: tuple[str, ...] = getattr(cast("object", value), "_fields", ())  # a named tuple's
        pairs = [
            (i, child) for i, child in enumerate(_entries(cast("object", value))) if type(child) not in _LEAF_TYPES
        ]
        found += [(names[i] if i < len(names) else str(i), child) for i, child in pairs]
    return found


def _entries(value: object) -> Iterator[Any]:
    """Iterate as the built-in type does, whatever a subclass made of it."""
    kind: Any = next(kind for kind in _CONTAINERS if isinstance(value, kind))
    return kind.__iter__(value)


def _attributes(value: object) -> list[tuple[str, object]]:
    """What an object keeps in its ``__dict__`` and in its slots."""
    found: list[tuple[str, object]] = []
    for name, slot in _slots(type(value)):
        try:
            found.append((name, slot.__get__(value)))
        except AttributeError:  # the slot is empty
            continue
    try:
        found += object.__getattribute__(value, "__dict__").items()
    except AttributeError:  # it has only slots
        return found
    return [(name, child) for name, child in found if type(child) not in _LEAF_TYPES]


@lru_cache(maxsize=1024)
def _slots(kind: type) -> tuple[tuple[str, types.MemberDescriptorType], ...]:
    """The slots of a class: reading one runs no code, unlike a property."""
    # Slots of built-in types hold nothing of the user's.
    owners = [owner for owner in kind.__mro__ if owner.__module__ != "builtins"]
    members = [item for owner in owners for item in owner.__dict__.items()]
    return tuple((name, slot) for name, slot in members if isinstance(slot, types.MemberDescriptorType))


def _joined(path: str, name: str) -> str:
    if name in _MODULE_DICTS:
        return path
    return f"{path}.{name}" if path else name
