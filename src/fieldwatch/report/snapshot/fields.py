"""Takes values out of the dicts of a snapshot; what is missing or of a wrong type is refused with its place."""

from typing import Any, cast

from fieldwatch.report.snapshot.error import SnapshotError

KeyPath = tuple[str | int, ...]
RawDict = dict[Any, Any]  # a dict of the file: even its keys may be anything
MOST = (1 << 63) - 1
LARGEST_ADDRESS = (1 << 64) - 1
_LONGEST = 400


def spell(place: KeyPath) -> str:
    """Return a place as one reads it: ``segments[3].blocks[0].size``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).removeprefix(".")


def wrong(place: KeyPath, value: object, wanted: str) -> SnapshotError:
    """Make the error for a value of a wrong kind."""
    shown = f" {str(value)[:60]!r}" if isinstance(value, str | int | float) else ""
    return SnapshotError(f"{spell(place)} is {type(value).__name__}{shown}; wanted {wanted}")


def mapping(value: object, place: KeyPath) -> RawDict:
    """Return a value that must be a dict.

    Raises:
        SnapshotError: it is not.
    """
    if type(value) is not dict:
        raise wrong(place, value, "a dict")
    return cast("RawDict", value)


def items(owner: RawDict, key: str, place: KeyPath) -> list[Any]:
    """Return the list under a key; a missing key is an empty list.

    Raises:
        SnapshotError: the value is no list.
    """
    return listed(owner[key], (*place, key)) if key in owner else []


def listed(value: object, place: KeyPath) -> list[Any]:
    """Return a value that must be a list.

    Raises:
        SnapshotError: it is not.
    """
    if type(value) is not list:
        raise wrong(place, value, "a list")
    return cast("list[Any]", value)


def number(owner: RawDict, key: str, place: KeyPath, default: int | None = None, most: int = MOST) -> int:
    """Return the number under a key.

    Args:
        owner: the dict.
        key: the key.
        place: where the dict stands.
        default: taken where the key is missing; None means that it must be there.
        most: the largest number allowed; the smallest is 0.

    Raises:
        SnapshotError: missing, no whole number, negative or too large.
    """
    value = owner.get(key, default)
    if type(value) is int and 0 <= value <= most:
        return value
    if value is None and key not in owner:
        raise SnapshotError(
            f"{spell(place)} has no {key!r}; wanted a whole number, which every version of torch writes"
        )
    raise wrong((*place, key), value, f"a whole number from 0 to {most}")


def text(owner: RawDict, key: str, place: KeyPath, default: str | None = None) -> str:
    """Return the text under a key, fit to be shown: cut at 400 characters, unprintable characters replaced.

    Raises:
        SnapshotError: no text, or missing where there is no default.
    """
    value = owner.get(key, default)
    if type(value) is str:
        return sanitized(value)
    raise wrong((*place, key), value, "text")


def sanitized(value: str) -> str:
    """Return text that a terminal and a page can show: no control characters, no half characters, not endless."""
    value = value[:_LONGEST]
    return value if value.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in value)
