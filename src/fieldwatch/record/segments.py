"""Common base of a run's record files: lines with checksums, and segments that invalidate earlier lines."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import orjson

from fieldwatch.record.damage import DamageTally
from fieldwatch.record.disk.backlog import WriteBacklog
from fieldwatch.record.lines import LineFile, add_checksum, read_lines

SEGMENT_KEY = "of_segment"
"""Key under which lines of later segments repeat ``[segment, resume]``, in case the segment's own line is damaged."""
_INT64 = 2**63


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One start of a run's process.

    Attributes:
        number: 1-based number of the start.
        resume: step from which the run was resumed; 0 for the first start.
        started: ISO 8601 time; empty for the first start, or if the line that recorded it is lost.
    """

    number: int
    resume: int = 0
    started: str = ""


class SegmentedFile:
    """An append-only file in segments: a line ``{"segment": 2, "resume": 400, ...}`` starts the second one.

    Such a line records that the run was resumed from step 400, which invalidates all earlier lines of that step or a
    later one. The lines after it repeat this under the key ``of_segment``, so that a damaged segment line does not make
    invalid lines valid again. Opening the file truncates a torn last line and leaves damaged lines in place.

    Args:
        path: path of the file; the file and its folder are created if missing.
        marks: valid lines of the file that name their segment, if the caller has already read them.
    """

    def __init__(self, path: Path, marks: Iterable[Mapping[str, Any]] | None = None) -> None:
        self._file = LineFile(path)
        if marks is None:
            marks = objects_in(path)
        segments = (segment for line in marks if (segment := segment_in(line)) is not None)
        # Take the highest number rather than the last segment line, which may be damaged.
        self._last = max(segments, key=lambda segment: segment.number, default=Segment(number=1))

    @property
    def segment_fields(self) -> dict[str, list[int]]:
        """Fields that record the segment of a line; empty in the first segment."""
        return {} if self._last.number == 1 else {SEGMENT_KEY: [self._last.number, self._last.resume]}

    def defer_to(self, backlog: WriteBacklog, *, from_reserve: bool = False) -> None:
        """Queue writes in a backlog while the disk is full.

        Args:
            backlog: backlog of the run.
            from_reserve: whether the file may use the disk space reserved for essential records.
        """
        self._file.queue.attach(backlog, from_reserve=from_reserve)

    def segment(self, resume_step: int) -> None:
        """Record that the run resumes from ``resume_step``, which invalidates lines of that step and later ones.

        Raises:
            ValueError: if the step is negative.
        """
        if resume_step < 0:
            raise ValueError(f"a segment must resume from a 0-based step index, got {resume_step}")
        started = datetime.now(UTC).isoformat(timespec="seconds")
        self._last = Segment(number=self._last.number + 1, resume=resume_step, started=started)
        line = {"segment": self._last.number, "resume": resume_step, "started": started}
        self._file.append(add_checksum(orjson.dumps(line)))

    def flush(self, *, fsync: bool = False) -> None:
        """With ``fsync=True``, block until everything is on the disk; else do nothing, since writes are unbuffered."""
        if fsync:
            self._file.sync()

    def close(self) -> None:
        """Close the file. May be called more than once."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def objects_in(path: Path, *, without: bytes | None = None) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in the valid lines of a file; arrays (rows) are skipped without parsing.

    Args:
        path: path of the file.
        without: first bytes of objects that are skipped, too.
    """
    # A throwaway counter: readers of the file report the damage, writers only need to continue.
    for _, line in read_lines(path, b"{", DamageTally(), without=without):
        if isinstance(line, dict):
            yield cast("dict[str, Any]", line)


def segment_in(line: Mapping[str, Any]) -> Segment | None:
    """Return the segment that a line begins or belongs to, or None if it names no valid segment."""
    if "segment" in line:
        number: Any = line["segment"]
        resume: Any = line.get("resume")
        started: Any = line.get("started")
    elif SEGMENT_KEY in line:
        number, resume = _pair(line[SEGMENT_KEY])
        started = ""
    else:
        return None
    if not _is_step(number) or not _is_step(resume) or not isinstance(started, str):
        return None
    return Segment(number=number, resume=resume, started=started)


class VoidSteps:
    """Determines for each line of a file from which step on a later segment has invalidated it.

    Args:
        marks: line number and segment of each line that begins a segment or is the first known line of it, in order.
    """

    def __init__(self, marks: Iterable[tuple[int, Segment]]) -> None:
        self._marks = list(marks)

    def of(self, line: int, part: int = 0) -> float:
        """Return the step from which on the contents of a line are void; infinity if they are valid.

        Args:
            line: 1-based line number; used for lines of old versions, which do not record their segment.
            part: segment that the line belongs to; 0 if it does not record one.
        """
        # Several later segments may have invalidated the line: the earliest resume step counts.
        later = (segment.resume for at, segment in self._marks if (segment.number > part if part else at > line))
        return min(later, default=float("inf"))


def segment_starts(lines: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[tuple[int, Segment]]:
    """Yield line number and segment of each segment line, or of a segment's first line if its own line is lost."""
    known = 1
    for number, line in lines:
        segment = segment_in(line)
        # A segment line, or the first line of a segment whose own line is missing.
        if segment is not None and ("segment" in line or segment.number > known):
            known = max(known, segment.number)
            yield number, segment


def _pair(value: Any) -> tuple[Any, Any]:
    pair = cast("list[Any]", value) if isinstance(value, list) else []
    return (pair[0], pair[1]) if len(pair) == 2 else (None, None)


def _is_step(value: Any) -> bool:
    # Steps are stored as int64 arrays later; `type` excludes JSON's true.
    return type(value) is int and 0 <= value < _INT64
