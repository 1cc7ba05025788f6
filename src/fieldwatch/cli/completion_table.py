"""Flags of commands and their values, as tab completion needs them; read from the dataclasses of the flags."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from fieldwatch.cli.flag_help import HELP, HELP_ALL, FlagField, flag_fields

Takes = Literal["nothing", "value", "path"] | tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Flag:
    """A flag of a command.

    Attributes:
        name: its spelling, with dashes.
        takes: nothing, any value, a path, or one of some words.
    """

    name: str
    takes: Takes


def completed_flags(kind: type | None) -> tuple[Flag, ...]:
    """Return the flags of a command, each spelling by itself.

    Args:
        kind: the dataclass of its flags; None if the command names none.
    """
    helps = [Flag(name=name, takes="nothing") for name in (*HELP, HELP_ALL)]
    fields = [] if kind is None else [each for each in flag_fields(kind) if not each.positional]
    found = {flag.name: flag for each in fields for flag in _spelled(each)}
    return (*helps, *found.values())


def _spelled(each: FlagField) -> Sequence[Flag]:
    takes: Takes = "nothing" if each.switch else _takes(each.kind)
    return [Flag(name=name, takes=takes) for name in each.spellings]


def _takes(kind: Any) -> Takes:
    """Return the values of a type; of a union or a tuple, those of the first part with known values."""
    if kind is Path:
        return "path"
    if get_origin(kind) is Literal:
        return tuple(str(word) for word in get_args(kind))
    parts = [part for part in get_args(kind) if part not in (type(None), ...) and not _is_marker(part)]
    for part in parts:
        takes = _takes(part)
        if takes != "value":
            return takes
    return "value"


def _is_marker(part: Any) -> bool:
    return type(part).__module__.startswith("tyro")
