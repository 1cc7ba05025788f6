"""Tolerant access to JSON that other programs wrote: values of an unexpected type count as empty."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard, cast


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a JSON object, else an empty mapping."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def as_list(value: object) -> Sequence[Any]:
    """Return the value if it is a JSON array, else an empty sequence."""
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else ()


def as_objects(value: object) -> list[Mapping[str, Any]]:
    """Return the non-empty objects of a JSON array; other entries are dropped."""
    return [entry for entry in map(as_mapping, as_list(value)) if entry]


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number; booleans do not count."""
    # bool is a subclass of int: true would read as 1.
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: object) -> TypeGuard[int]:
    """Return whether a value is an integer; booleans do not count."""
    return isinstance(value, int) and not isinstance(value, bool)
