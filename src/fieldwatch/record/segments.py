"""What the files of a run's record have in common: whole lines with checksums, and segments that void earlier lines."""

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
"""The key under which lines of later segments repeat ``[segment, resume]``, in case the segment's own line is lost."""
_INT64 = 2**63


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One start of the run's process.

    Attributes:
        number: 1 for the first start.
        resume: the step it went on from; 0 for the first.
        started: ISO 8601 time; empty for the first, and where the line that said it is lost.
    """

    number: int
    resume: int = 0
    started: str = ""


class SegmentedFile:
    """An append-only file of a run, in segments: a line ``{"segment": 2, "resume": 400, ...}`` starts the second one.

    The run went on from step 400 then, and everything earlier of that step or a later one is void. The lines after it
    say so again under the key ``of_segment``, so that the damage of one line brings nothing void back. Opening cuts off
    a torn last line; damaged lines stay where they are.

    Args:
        path: the file; it and its folder are made if missing.
        marks: its good lines that say which segment they belong to, where the caller has read them already.
    """

    def __init__(self, path: Path, marks: Iterable[Mapping[str, Any]] | None = None) -> None:
        self._file = LineFile(path)
        if marks is None:
            marks = objects_in(path)
        found = (segment for line in marks if (segment := segment_in(line)) is not None)
        # The last segment by number, not by place: its own line may be the damaged one.
        self._last = max(found, key=lambda one: one.number, default=Segment(number=1))

    @property
    def segment_fields(self) -> dict[str, list[int]]:
        """What a line says of its segment: nothing in the first one."""
        return {} if self._last.number == 1 else {SEGMENT_KEY: [self._last.number, self._last.resume]}

    def defer_to(self, backlog: WriteBacklog, *, from_reserve: bool = False) -> None:
        """Let lines that a full disk refuses wait there; the reserve is for what a run cannot do without."""
        self._file.queue.attach(backlog, from_reserve=from_reserve)

    def segment(self, resume_step: int) -> None:
        """Mark that the run goes on from ``resume_step``: what stands there of that step or a later one is void.

        Raises:
            ValueError: the step is negative.
        """
        if resume_step < 0:
            raise ValueError(f"a segment resumes from step {resume_step}: wanted a 0-based step index, 0 or more")
        started = datetime.now(UTC).isoformat(timespec="seconds")
        self._last = Segment(number=self._last.number + 1, resume=resume_step, started=started)
        line = {"segment": self._last.number, "resume": resume_step, "started": started}
        self._file.append(add_checksum(orjson.dumps(line)))

    def flush(self, *, fsync: bool = False) -> None:
        """Do nothing (nothing is held back), or return when everything is on the disk (``fsync=True``)."""
        if fsync:
            self._file.sync()

    def close(self) -> None:
        """Close the file; more than once is fine."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def objects_in(path: Path) -> Iterator[dict[str, Any]]:
    """Yield what the good lines of a file say that begin with a brace."""
    for _, line in read_lines(path, b"{", DamageTally()):
        if isinstance(line, dict):
            yield cast("dict[str, Any]", line)


def segment_in(line: Mapping[str, Any]) -> Segment | None:
    """Return the segment that a line begins or belongs to; None if it names none that is possible."""
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
    """Per line of a file, the step from which on a later segment has voided it.

    Args:
        marks: line numbers and segments, in order, of the lines that begin a segment or are the first known of it.
    """

    def __init__(self, marks: Iterable[tuple[int, Segment]]) -> None:
        self._marks = list(marks)

    def of(self, line: int, part: int = 0) -> float:
        """Return the limit of a line.

        Args:
            line: its 1-based number, which decides for lines of versions that did not say to which segment they belong.
            part: the segment that it says it belongs to; 0 where it does not say.
        """
        # A later segment voids what it repeats; several may have, and the earliest resume step decides.
        later = (one.resume for at, one in self._marks if (one.number > part if part else at > line))
        return min(later, default=float("inf"))


def segment_starts(lines: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[tuple[int, Segment]]:
    """Yield the segments among some lines: where they begin, or where the first line stands that names a lost one."""
    known = 1
    for number, line in lines:
        segment = segment_in(line)
        if segment is not None and ("segment" in line or segment.number > known):
            known = max(known, segment.number)
            yield number, segment


def _pair(value: Any) -> tuple[Any, Any]:
    pair = cast("list[Any]", value) if isinstance(value, list) else []
    return (pair[0], pair[1]) if len(pair) == 2 else (None, None)


def _is_step(value: Any) -> bool:
    return type(value) is int and 0 <= value < _INT64
