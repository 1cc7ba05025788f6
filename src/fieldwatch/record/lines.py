"""An append-only file of lines, of which only the last can ever be torn."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import orjson

_TAIL = 1 << 16
_PART_LINES = 512
_FIRST_PART, _LAST_PART = 1 << 13, 1 << 22


class CorruptRecord(ValueError):  # noqa: N818  says what was found
    """A line that is not the last cannot be read."""


class LineFile:
    """Appends whole lines to one file, each call with one write to the system, nothing held back.

    Opening cuts off a torn last line (a process that was killed while writing, a disk that lost power).
    A write that fails half way (disk full) is taken back before the error is raised, so that the file
    always ends with a whole line.

    Args:
        path: the file; it and its folder are made if missing.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("ab", buffering=0)
        self._size = whole_size(path)
        if self._size < path.stat().st_size:
            os.ftruncate(self._file.fileno(), self._size)

    def append(self, lines: bytes) -> None:
        """Write lines, each of which ends with a newline.

        Raises:
            OSError: the system refused; the file is as it was before.
        """
        write_whole(self._file.fileno(), lines, self._size)
        self._size += len(lines)

    def sync(self) -> None:
        """Return when everything written so far is on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; more than once is fine."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def write_whole(file: int, data: bytes, end: int) -> None:
    """Append all of the data to a file that ends at byte ``end``, or leave the file as it is.

    Raises:
        OSError: the system refused (disk full).
    """
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(file, view) :]
    except OSError:
        os.ftruncate(file, end)
        raise


def whole_size(path: Path) -> int:
    """Return the size in bytes of the file up to the end of its last readable line."""
    with path.open("rb") as file:
        return whole_end(file.fileno())


def whole_end(file: int) -> int:
    """Return the same of an open file."""
    end = _last_newline(file, os.fstat(file).st_size) + 1
    start = _last_newline(file, end - 1) + 1
    return start if end > start and parse_line(os.pread(file, end - start, start)) is None else end


def _last_newline(file: int, end: int) -> int:
    """Return the place of the last newline before ``end``, or -1."""
    while end > 0:
        start = max(0, end - _TAIL)
        place = os.pread(file, end - start, start).rfind(b"\n")
        if place >= 0:
            return start + place
        end = start
    return -1


def parse_line(line: bytes) -> Any | None:
    """Return what a line of JSON says; None where it is not one."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


def read_lines(path: Path, prefix: bytes = b"") -> Iterator[tuple[int, Any]]:
    """Yield 1-based line numbers and parsed lines; a torn last line is left out, a missing file is empty.

    Args:
        path: the file.
        prefix: only lines that start with this are parsed and yielded.

    Raises:
        CorruptRecord: a line before the last is not JSON; the message names file and line.
    """
    for first, text in read_in_parts(path):
        if prefix not in text:
            continue
        for number, line in numbered(text, first):
            if line.startswith(prefix):
                value = parse_line(line)
                if value is None:
                    raise corrupt(path, number, "is not a line of JSON")
                yield number, value


def numbered(text: bytes, first: int) -> Iterator[tuple[int, bytes]]:
    """Yield the whole lines of a text, of which the first has this number, without their newlines."""
    return enumerate(text.split(b"\n")[:-1], first)


def read_in_parts(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield whole lines, some 512 at a time as one text, with the 1-based number of the first; see `read_lines`."""
    if not path.exists():
        return
    with path.open("rb") as file:
        first = 1
        for text, lines in parts(file, whole_end(file.fileno())):
            yield first, text
            first += lines


def parts(file: BinaryIO, size: int) -> Iterator[tuple[bytes, int]]:
    """Yield the next ``size`` bytes of a file, which end with a whole line, as texts of about 512 lines each.

    How long a line is, is known from the ones before. With each text comes how many lines it has.
    """
    rest, want = b"", _FIRST_PART
    while size > 0 and (new := file.read(min(want, size))):
        size -= len(new)
        end = new.rfind(b"\n") + 1
        if not end:
            rest, want = rest + new, 2 * want
            continue
        text, rest = rest + new[:end], new[end:]
        lines = count(text, b"\n")
        yield text, lines
        want = max(_FIRST_PART, min(_PART_LINES * len(text) // lines, _LAST_PART))


def count(text: bytes, char: bytes) -> int:
    """Return how often one character is in a text (numpy takes a third of the time of ``bytes.count``)."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == char[0]))


def corrupt(path: Path, number: int, problem: str) -> CorruptRecord:
    """Make the error that names file and line and says what to do."""
    return CorruptRecord(
        f"{path}, line {number}: {problem}. Only the last line may be torn; "
        f"restore the file from a copy, or delete line {number} to give that row up"
    )
