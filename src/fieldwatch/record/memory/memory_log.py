"""The memory log of a run: one census of the device memory per JSON line, with all sizes in bytes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import orjson

from fieldwatch.record.damage import DamageTally
from fieldwatch.record.lines import add_checksum, checked_lines
from fieldwatch.record.segments import SEGMENT_KEY, SegmentedFile, segment_in

MEMORY_LOG = "memory.jsonl"
_COUNTS = ("step", "allocated", "reserved")


class MemoryLog(SegmentedFile):
    """Writer of ``memory.jsonl`` in a run folder.

    A census is a mapping with at least ``step`` (0-based), ``allocated`` and ``reserved`` (bytes). A line
    ``{"segment": 2, "resume": 400, ...}`` invalidates earlier censuses with step >= 400. Each line ends with its
    checksum, as in the journal. Opening the file truncates a torn last line.

    Args:
        folder: the run folder; created if missing.
    """

    def __init__(self, folder: Path | str) -> None:
        super().__init__(Path(folder) / MEMORY_LOG)

    def append(self, census: Mapping[str, Any]) -> None:
        """Write one census.

        Raises:
            ValueError: if ``step``, ``allocated`` or ``reserved`` is missing or not an integer of at least 0.
            TypeError: if a value is not a number, string, list or mapping.
        """
        problem = _problem(census)
        if problem:
            raise ValueError(f"a census {problem}: step, allocated and reserved (bytes) must be integers of at least 0")
        self._file.append(add_checksum(orjson.dumps({**census, **self.segment_fields})))


def read_memory_log(location: Path | str, damage: DamageTally | None = None) -> list[dict[str, Any]]:
    """Return the valid censuses, in order. A missing file counts as empty; a torn last line is ignored.

    Args:
        location: the run folder, or the file itself.
        damage: counter of damaged lines, which are skipped.
    """
    location = Path(location)
    path = location / MEMORY_LOG if location.is_dir() else location
    counter = DamageTally() if damage is None else damage
    censuses: list[dict[str, Any]] = []
    segment_number = 1
    for _, line, _ in checked_lines(path, _problem_of, counter):
        segment = segment_in(line)
        # Any line of a later segment implies that segment's own line, which may be damaged.
        if segment is not None and ("segment" in line or segment.number > segment_number):
            segment_number = max(segment_number, segment.number)
            censuses = [census for census in censuses if census["step"] < segment.resume]
        line.pop(SEGMENT_KEY, None)
        if "segment" not in line:
            censuses.append(line)
    return censuses


def _problem_of(line: Any) -> str:
    """Return why a parsed line is neither a census nor a segment; an empty string if it is one."""
    if not _is_mapping(line):
        return "is not a census"
    if ("segment" in line or SEGMENT_KEY in line) and segment_in(line) is None:
        return "is not a segment marker"
    if "segment" in line:
        return ""
    problem = _problem(line)
    return f"is not a census: it {problem}" if problem else ""


def _is_mapping(line: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(line, dict)


def _problem(census: Mapping[str, Any]) -> str:
    """Return why a census is invalid; an empty string if it is valid."""
    for key in _COUNTS:
        value = census.get(key)
        # bool is a subclass of int, so it must be excluded explicitly.
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            return f"has {key} {value!r}"
    return ""
