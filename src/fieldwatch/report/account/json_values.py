"""Values out of JSON that others wrote, taken for what they have to be: anything else counts as empty."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard, cast


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object; an empty one for anything else."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def as_list(value: object) -> Sequence[Any]:
    """Return a JSON array; an empty one for anything else."""
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else ()


def as_objects(value: object) -> list[Mapping[str, Any]]:
    """Return the objects of a JSON array that are not empty, without its other entries."""
    return [one for one in map(as_mapping, as_list(value)) if one]


def is_number(value: object) -> TypeGuard[float]:
    """Tell whether a value is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: object) -> TypeGuard[int]:
    """Tell whether a value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)
