"""Lines in which two sources differ."""

import difflib
from dataclasses import dataclass

from fieldwatch.record.source_code.snapshot import SourceCode


@dataclass(frozen=True, kw_only=True)
class LineChange:
    """Adjacent lines that differ between two versions of a file.

    Attributes:
        file: path of the file.
        line: first of the new lines, or the line behind which lines were removed; 1-based.
        was: lines of the earlier version, without their indentation.
        now: lines of the later version, the same.
    """

    file: str
    line: int
    was: tuple[str, ...]
    now: tuple[str, ...]


def changed_lines(earlier: SourceCode, later: SourceCode) -> list[LineChange]:
    """Return the lines that differ between two sources, the script first; blank lines and comments do not count.

    Args:
        earlier: source of the earlier run.
        later: source of the later run.
    """
    names = sorted(earlier.files.keys() | later.files.keys(), key=lambda name: (name != later.main, name))
    return [
        change
        for name in names
        if earlier.files.get(name) != later.files.get(name)
        for change in _changes(name, earlier.files.get(name, ""), later.files.get(name, ""))
    ]


def _changes(name: str, earlier: str, later: str) -> list[LineChange]:
    was = [line.rstrip() for line in earlier.splitlines()]
    now = [line.rstrip() for line in later.splitlines()]
    found: list[LineChange] = []
    matcher = difflib.SequenceMatcher(None, was, now, autojunk=False)
    for kind, was_from, was_to, now_from, now_to in matcher.get_opcodes():
        if kind == "equal":
            continue
        removed = [line for line in was[was_from:was_to] if _counts(line)]
        added = [line for line in now[now_from:now_to] if _counts(line)]
        # Indentation counts: it decides what is inside of a loop.
        if removed != added:
            found.append(
                LineChange(
                    file=name,
                    line=now_from + (now_to > now_from),
                    was=tuple(line.strip() for line in removed),
                    now=tuple(line.strip() for line in added),
                )
            )
    return found


def _counts(line: str) -> bool:
    """Return whether a line holds code."""
    text = line.strip()
    return bool(text) and not text.startswith("#")
