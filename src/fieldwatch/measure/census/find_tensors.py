"""Find the tensors inside an object without executing any of its code."""

import types
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

FoundTensor: TypeAlias = tuple[str, Tensor | NDArray[Any]]
"""Path of a tensor or array, and the object itself."""

MAX_OBJECTS = 100_000
"""Maximum number of objects to visit per search, so that a list of a million numbers does not stall a step."""

_LEAF_TYPES = frozenset(
    {
        *(type(None), bool, int, float, complex, str, bytes, bytearray, range, slice),
        *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, types.GeneratorType),
    }
)
_MODULE_DICTS = ("_parameters", "_buffers", "_modules")
"""Internal dicts of a module, which are omitted from paths."""

_CONTAINERS = (dict, list, tuple, set, frozenset, deque)


def find_tensors(value: object, *, limit: int = MAX_OBJECTS) -> Iterator[FoundTensor]:
    """Yield every tensor and numpy array reachable through containers, dataclasses, modules and plain attributes.

    Only built-in containers are iterated, and attributes are read without calling properties or ``__getattr__``, so a
    data set that loads on access loads nothing. Each object is visited once, so cycles are harmless.

    Args:
        value: object to search.
        limit: maximum number of objects to visit.

    Yields:
        The path, such as ``views.3.image`` (empty for ``value`` itself), and the tensor or array.

    Raises:
        OverflowError: if there are more than ``limit`` objects; the results so far have been yielded.
    """
    seen: dict[int, object] = {}
    pending: list[tuple[str, object]] = [("", value)]
    visited = 0
    while pending:
        path, current = pending.pop()
        if type(current) in _LEAF_TYPES or id(current) in seen or isinstance(current, type):
            continue
        # Keep a reference to the object: its id is unique only as long as it is alive.
        seen[id(current)] = current
        if isinstance(current, (Tensor, np.ndarray)):
            yield path, current
            continue
        # Count the entries of a container as well: scanning a long list of numbers takes time, too.
        visited += 1 + (len(cast("Any", current)) if isinstance(current, _CONTAINERS) else 0)
        if visited > limit:
            raise OverflowError(f"more than {limit} objects, stopped at {path!r}: register the tensors directly")
        children = _children(cast("object", current))
        # The stack is popped from its end, so reverse the children to yield paths in their natural order.
        pending.extend(reversed([(_joined(path, name), child) for name, child in children]))


def _children(value: object) -> list[tuple[str, object]]:
    """Return the direct children of an object by name, without numbers and strings."""
    children = _attributes(value)
    if isinstance(value, dict):
        built_in: Any = dict  # bypasses an overridden `items` of a subclass
        pairs = [(key, child) for key, child in built_in.items(value) if type(child) not in _LEAF_TYPES]
        children += [(str(key) if type(key) in _LEAF_TYPES else type(key).__name__, child) for key, child in pairs]
    elif isinstance(value, _CONTAINERS):
        names: tuple[str, ...] = getattr(cast("object", value), "_fields", ())  # field names of a named tuple
        pairs = [
            (i, child) for i, child in enumerate(_entries(cast("object", value))) if type(child) not in _LEAF_TYPES
        ]
        children += [(names[i] if i < len(names) else str(i), child) for i, child in pairs]
    return children


def _entries(value: object) -> Iterator[Any]:
    """Iterate with the built-in type's iterator, bypassing an overridden one of a subclass."""
    kind: Any = next(kind for kind in _CONTAINERS if isinstance(value, kind))
    return kind.__iter__(value)


def _attributes(value: object) -> list[tuple[str, object]]:
    """Return the contents of an object's ``__dict__`` and slots."""
    attributes: list[tuple[str, object]] = []
    for name, slot in _slots(type(value)):
        try:
            attributes.append((name, slot.__get__(value)))
        except AttributeError:  # an empty slot
            continue
    try:
        attributes += object.__getattribute__(value, "__dict__").items()
    except AttributeError:  # an object with slots only
        return attributes
    return [(name, child) for name, child in attributes if type(child) not in _LEAF_TYPES]


@lru_cache(maxsize=1024)
def _slots(kind: type) -> tuple[tuple[str, types.MemberDescriptorType], ...]:
    """Return the slot descriptors of a class. Unlike a property, reading a slot executes no user code."""
    # Skip built-in types: their slots hold no user data.
    owners = [owner for owner in kind.__mro__ if owner.__module__ != "builtins"]
    members = [item for owner in owners for item in owner.__dict__.items()]
    return tuple((name, slot) for name, slot in members if isinstance(slot, types.MemberDescriptorType))


def _joined(path: str, name: str) -> str:
    if name in _MODULE_DICTS:
        return path
    return f"{path}.{name}" if path else name
