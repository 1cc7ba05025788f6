"""The memory log of a run: one census of the device's memory per line of JSON, every number in bytes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import orjson

from fieldwatch.record.lines import corrupt, read_lines
from fieldwatch.record.segments import SegmentedFile

MEMORY_LOG = "memory.jsonl"
_COUNTS = ("step", "allocated", "reserved")


class MemoryLog(SegmentedFile):
    """Writer of ``memory.jsonl`` in a run's folder.

    A census is a mapping with at least ``step`` (0-based), ``allocated`` and ``reserved`` (bytes). A line
    ``{"segment": 2, "resume": 400, ...}`` voids earlier censuses with step >= 400. Opening cuts off a torn last line.

    Args:
        folder: the run's folder; made if missing.
    """

    def __init__(self, folder: Path | str) -> None:
        super().__init__(Path(folder) / MEMORY_LOG)

    def append(self, census: Mapping[str, Any]) -> None:
        """Write one census.

        Raises:
            ValueError: ``step``, ``allocated`` or ``reserved`` is missing or no count.
            TypeError: a value is not a number, text, list or mapping.
        """
        problem = _problem(census)
        if problem:
            raise ValueError(
                f"a census {problem}: wanted at least step, allocated and reserved (bytes) as whole numbers"
            )
        self._file.append(orjson.dumps(census) + b"\n")


def read_memory_log(place: Path | str) -> list[dict[str, Any]]:
    """Return the censuses that stand, in order; a missing file is empty, a torn last line was not written.

    Args:
        place: the run's folder, or the file itself.

    Raises:
        CorruptRecord: a line before the last cannot be read, or is no census; the message names file and line.
    """
    place = Path(place)
    path = place / MEMORY_LOG if place.is_dir() else place
    kept: list[dict[str, Any]] = []
    for number, line in read_lines(path):
        if not _is_mapping(line):
            raise corrupt(path, number, "is not a census")
        if "segment" in line:
            resume = line.get("resume")
            if not isinstance(resume, int):
                raise corrupt(path, number, "is not a segment marker (resume is missing)")
            kept = [census for census in kept if census["step"] < resume]
            continue
        problem = _problem(line)
        if problem:
            raise corrupt(path, number, f"is not a census: it {problem}")
        kept.append(line)
    return kept


def _is_mapping(line: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(line, dict)


def _problem(census: Mapping[str, Any]) -> str:
    """Say what is wrong with a census; nothing if it is one."""
    for key in _COUNTS:
        value = census.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            return f"has {key} {value!r}"
    return ""
