"""What the three files of a run's record have in common: whole lines, and segments that void what came before."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from fieldwatch.record.lines import LineFile, read_lines


class SegmentedFile:
    """An append-only file of a run, in segments: a line ``{"segment": 2, "resume": 400, ...}`` starts the second one.

    The run went on from step 400 then, and everything earlier of that step or a later one is void. Opening cuts off a
    torn last line.

    Args:
        path: the file; it and its folder are made if missing.
        marks: the lines among which the segments' are, where the caller has read them already.
    """

    def __init__(self, path: Path, marks: Iterable[Mapping[str, Any]] | None = None) -> None:
        self._file = LineFile(path)
        if marks is None:
            marks = (line for _, line in read_lines(path, prefix=b'{"segment"'))
        self._segments = max((line["segment"] for line in marks if "segment" in line), default=1)

    def segment(self, resume_step: int) -> None:
        """Mark that the run goes on from ``resume_step``: what stands there of that step or a later one is void.

        Raises:
            ValueError: the step is negative.
        """
        if resume_step < 0:
            raise ValueError(f"a segment resumes from step {resume_step}: wanted a 0-based step index, 0 or more")
        self._segments += 1
        started = datetime.now(UTC).isoformat(timespec="seconds")
        line = {"segment": self._segments, "resume": resume_step, "started": started}
        self._file.append(orjson.dumps(line) + b"\n")

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
