"""Typed access to the dicts of a snapshot: errors name the path of a missing or wrong value."""

from typing import Any, cast

from fieldwatch.report.snapshot.error import SnapshotError

KeyPath = tuple[str | int, ...]
RawDict = dict[Any, Any]  # a dict of the file, whose keys may have any type, too
MOST = (1 << 63) - 1
LARGEST_ADDRESS = (1 << 64) - 1
_LONGEST = 400


def spell(place: KeyPath) -> str:
    """Return a path in the notation of Python: ``segments[3].blocks[0].size``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).removeprefix(".")


def wrong(place: KeyPath, value: object, wanted: str) -> SnapshotError:
    """Return the error for a value of the wrong type or out of range."""
    shown = f" {str(value)[:60]!r}" if isinstance(value, str | int | float) else ""
    return SnapshotError(f"expected {spell(place)} to be {wanted}, got {type(value).__name__}{shown}")


def mapping(value: object, place: KeyPath) -> RawDict:
    """Return a value that must be a dict.

    Raises:
        SnapshotError: if it is something else.
    """
    if type(value) is not dict:
        raise wrong(place, value, "a dict")
    return cast("RawDict", value)


def items(owner: RawDict, key: str, place: KeyPath) -> list[Any]:
    """Return the list under a key; a missing key is an empty list.

    Raises:
        SnapshotError: if the value is not a list.
    """
    return listed(owner[key], (*place, key)) if key in owner else []


def listed(value: object, place: KeyPath) -> list[Any]:
    """Return a value that must be a list.

    Raises:
        SnapshotError: if it is something else.
    """
    if type(value) is not list:
        raise wrong(place, value, "a list")
    return cast("list[Any]", value)


def number(owner: RawDict, key: str, place: KeyPath, default: int | None = None, most: int = MOST) -> int:
    """Return the integer under a key.

    Args:
        owner: dict of the file.
        key: key in it.
        place: path of the dict.
        default: value for a missing key; None if the key is required.
        most: largest allowed value; the smallest is 0.

    Raises:
        SnapshotError: if the value is missing, not an integer, negative or too large.
    """
    value = owner.get(key, default)
    if type(value) is int and 0 <= value <= most:
        return value
    if value is None and key not in owner:
        raise SnapshotError(
            f"expected {spell(place)} to have an integer {key!r}, which every version of torch writes, got none"
        )
    raise wrong((*place, key), value, f"an integer from 0 to {most}")


def text(owner: RawDict, key: str, place: KeyPath, default: str | None = None) -> str:
    """Return the text under a key in printable form, at most 400 characters long.

    Raises:
        SnapshotError: if the value is not text, or is missing and has no default.
    """
    value = owner.get(key, default)
    if type(value) is str:
        return sanitized(value)
    raise wrong((*place, key), value, "text")


def sanitized(value: str) -> str:
    """Return text that is safe to show: at most 400 characters, with a placeholder for each unprintable one."""
    value = value[:_LONGEST]
    return value if value.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in value)
