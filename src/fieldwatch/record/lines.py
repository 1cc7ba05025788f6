"""Append-only files of JSON lines with checksums. A torn last line is tolerated; damaged lines are detected.

A line is a JSON array or object. Its last element, or its last key ``crc``, is the CRC-32 (as in zlib and gzip) of all
bytes before the last comma. Files begun by earlier versions start with lines without a checksum; once a line has one,
all following lines need one.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, cast
from zlib import crc32

import numpy as np
import orjson

from fieldwatch.base import InputError, open_for_append
from fieldwatch.record.damage import DamageTally
from fieldwatch.record.disk.backlog import WriteQueue
from fieldwatch.record.durable import SyncTracker

CHECKSUM = "crc"
"""Key of the checksum, always the last key of an object."""
NO_JSON = "is not a line of JSON"
ALTERED = "does not match its checksum"
# Block size of the backward search for a newline.
_SEARCH_BYTES = 1 << 16
_CHUNK_LINES = 512
_FIRST_CHUNK_BYTES = 1 << 13
_MAX_CHUNK_BYTES = 1 << 22


class CorruptRecord(InputError):  # noqa: N818  named after the finding
    """Raised when a line other than the last is damaged in a file that must be complete."""


class LineFile:
    """Appends whole lines to a file, unbuffered: one system call per :meth:`append`.

    Opening the file truncates a torn last line, left by a killed process or a power failure. A write that fails midway
    (disk full) is undone before the error is raised, so that the file always ends with a whole line.

    Args:
        path: path of the file; the file and its folder are created if missing.

    Attributes:
        queue: queue of writes that wait for disk space, once attached to a backlog; see :class:`WriteQueue`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open_for_append(path)
        self._size = size_of_whole_lines(path)
        # Without truncation, the next line would be appended to the torn one, and both would be lost.
        if self._size < path.stat().st_size:
            os.ftruncate(self._file.fileno(), self._size)
        # Without a backlog attached, the queue writes immediately.
        self.queue = WriteQueue(self._write)
        self._sync_tracker = SyncTracker(path, self._size)

    def append(self, lines: bytes, *, rows: int = 0) -> None:
        """Append lines to the file.

        Args:
            lines: whole lines, each terminated by a newline.
            rows: number of journal rows among the lines, for reports about a full disk.

        Raises:
            OSError: if the write fails; the file is then unchanged.
        """
        self.queue.append(lines, rows=rows)

    def sync(self) -> None:
        """Block until everything written so far is on the disk, see :class:`SyncTracker`.

        Raises:
            OSError: if the data could not be written to the disk.
        """
        self._sync_tracker.sync(self._file.fileno())

    def _write(self, lines: bytes) -> None:
        write_all(self._file.fileno(), lines, self._size)
        self._size += len(lines)
        self._sync_tracker.note_write(lines)

    def close(self) -> None:
        """Close the file. May be called more than once."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def write_all(file: int, data: bytes, end: int) -> None:
    """Append all data to a file of ``end`` bytes, or leave the file unchanged.

    Args:
        file: file descriptor, opened for appending.
        data: bytes to append.
        end: current size of the file, in bytes.

    Raises:
        OSError: if the write fails, for example because the disk is full.
    """
    view = memoryview(data)
    try:
        # A write may be short, on a nearly full disk or after a signal: continue with the rest.
        while view:
            view = view[os.write(file, view) :]
    except OSError:
        os.ftruncate(file, end)
        raise


def size_of_whole_lines(path: Path) -> int:
    """Return the size of a file in bytes, up to the end of its last whole line."""
    with path.open("rb") as file:
        return end_of_last_line(file.fileno())


def end_of_last_line(file: int) -> int:
    """Return the offset of the end of the last whole line of an open file."""
    end = _last_newline(file, os.fstat(file).st_size) + 1
    start = _last_newline(file, end - 1) + 1
    if end == start:
        return end
    # After a power failure the file may have its new size but zeros for data: such a last line is not whole either.
    line = os.pread(file, end - start, start)
    return start if b"\0" in line and parse_line(line) is None else end


def _last_newline(file: int, end: int) -> int:
    """Return the offset of the last newline before ``end``, or -1."""
    while end > 0:
        start = max(0, end - _SEARCH_BYTES)
        offset = os.pread(file, end - start, start).rfind(b"\n")
        if offset >= 0:
            return start + offset
        end = start
    return -1


def parse_line(line: bytes) -> Any | None:
    """Parse a line of JSON; return None if it is not valid JSON."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


def add_checksum(line: bytes) -> bytes:
    """Append a checksum and a newline to a serialized JSON object or array.

    Raises:
        ValueError: if the object or array is empty.
    """
    body = line[:-1]
    # The checksum follows a comma, so an empty ``{}`` or ``[]`` would become invalid JSON.
    if len(line) < 3:
        raise ValueError(f"expected a non-empty JSON array or object, got {line!r}: it cannot carry a checksum")
    # Formatting by hand avoids parsing and serializing the line again.
    if line.endswith(b"}"):
        return b'%b,"crc":%d}\n' % (body, crc32(body))
    return b"%b,%d]\n" % (body, crc32(body))


def checksum_of(line: bytes) -> int:
    """Compute the checksum of a line that ends with one: CRC-32 of all bytes before its last comma."""
    return crc32(line[: line.rfind(b",")])


class LineReader:
    """Parses the lines of one file of JSON objects, in order, and reports why a damaged line is invalid.

    Once one line had a valid checksum, all following lines need one.

    Attributes:
        has_checksums: whether a valid checksum has been seen, so that all following lines need one.
    """

    def __init__(self) -> None:
        self.has_checksums = False

    def check_first_line(self, text: bytes) -> None:
        """Require a checksum in the first line if the second line has one.

        Exception: if the second line begins a segment, an earlier version without checksums may have written the first.

        Args:
            text: first chunk of the file.
        """
        second = text.split(b"\n", 2)[1] if text.count(b"\n") > 1 else b""
        self.has_checksums = self.has_checksums or (
            not second.startswith(b'{"segment"') and _ends_with_checksum(second)
        )

    def read(self, line: bytes) -> tuple[Any, str]:
        """Parse a line and verify its checksum.

        Args:
            line: line without its newline.

        Returns:
            The parsed value without its checksum and an empty string, or None and the reason why the line is invalid.
        """
        value: Any = parse_line(line)
        if value is None:
            return None, NO_JSON
        # Arrays never have the key; RowReader verifies the rows of a journal.
        if not isinstance(value, dict) or CHECKSUM not in value:
            # A line that ends with its correct checksum was written with one: only the key is damaged.
            if self.has_checksums or _ends_with_checksum(line):
                return None, "has no checksum"
            return cast("Any", value), ""
        found = cast("dict[str, Any]", value)
        if found.pop(CHECKSUM) != checksum_of(line):
            return None, ALTERED
        self.has_checksums = True
        return found, ""


def _ends_with_checksum(line: bytes) -> bool:
    """Whether the last number of a line is its checksum, regardless of the key."""
    number = line[max(line.rfind(b":"), line.rfind(b",")) + 1 : -1]
    # At most 20 digits: int() takes minutes for a malicious line of a million digits.
    return number.isdigit() and int(number[:20]) == checksum_of(line)


def read_lines(
    path: Path, prefix: bytes = b"", damage: DamageTally | None = None, *, without: bytes | None = None
) -> Iterator[tuple[int, Any]]:
    """Yield 1-based line numbers and parsed lines. A torn last line is skipped; a missing file yields nothing.

    Args:
        path: path of the file.
        prefix: only lines that start with this prefix are parsed and yielded.
        damage: counter of damaged lines, which are skipped; None to raise an error instead.
        without: lines that start with this prefix are skipped without parsing; None for none.

    Raises:
        CorruptRecord: if a line is damaged and ``damage`` is None; the message names file and line.
    """
    reader = LineReader()
    for first, text in read_chunks(path):
        if first == 1:
            reader.check_first_line(text)
        # Skip chunks without a match before splitting them into lines.
        if prefix not in text:
            continue
        for number, line in numbered(text, first):
            if line.startswith(prefix) and (without is None or not line.startswith(without)):
                value, problem = reader.read(line)
                if not problem:
                    yield number, value
                elif damage is None:
                    raise corrupt_record(path, number, problem)
                else:
                    damage.add(path, number, problem)


def checked_lines(
    path: Path, problem_of: Callable[[Any], str], damage: DamageTally
) -> Iterator[tuple[int, dict[str, Any], bool]]:
    """Yield the valid lines of a file of objects: 1-based number, contents, and whether lines have checksums so far.

    Args:
        path: path of the file; a missing file yields nothing.
        problem_of: returns why a parsed line is invalid, or an empty string if it is valid.
        damage: counter of damaged lines, which are skipped.
    """
    reader = LineReader()
    for first, text in read_chunks(path):
        if first == 1:
            reader.check_first_line(text)
        for number, line in numbered(text, first):
            value, problem = reader.read(line)
            problem = problem or problem_of(value)
            if problem:
                damage.add(path, number, problem)
            else:
                yield number, value, reader.has_checksums


def numbered(text: bytes, first: int) -> Iterator[tuple[int, bytes]]:
    """Yield the whole lines of a text without their newlines, numbered from ``first``."""
    return enumerate(text.split(b"\n")[:-1], first)


def read_chunks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the whole lines of a file in chunks of about 512, each with the 1-based number of its first line.

    A torn last line is skipped; a missing file yields nothing.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        # Stop at the last whole line: the file may be growing, or its last line may be torn.
        first = 1
        for text, lines in chunks(file, end_of_last_line(file.fileno())):
            yield first, text
            first += lines


def chunks(file: BinaryIO, size: int) -> Iterator[tuple[bytes, int]]:
    """Yield the next ``size`` bytes of a file in chunks of about 512 lines, each with its number of lines.

    The last of these bytes must be a newline. The chunk size adapts to the line length of the previous chunk.
    """
    rest = b""
    chunk_bytes = _FIRST_CHUNK_BYTES
    while size > 0 and (new := file.read(min(chunk_bytes, size))):
        size -= len(new)
        end = new.rfind(b"\n") + 1
        # The line is longer than the chunk: double the chunk until its newline is found.
        if not end:
            rest = rest + new
            chunk_bytes = 2 * chunk_bytes
            continue
        text = rest + new[:end]
        rest = new[end:]
        lines = count(text, b"\n")
        yield text, lines
        # Aim for a fixed number of lines, so that blocks have about the same number of rows.
        chunk_bytes = max(_FIRST_CHUNK_BYTES, min(_CHUNK_LINES * len(text) // lines, _MAX_CHUNK_BYTES))


def count(text: bytes, char: bytes) -> int:
    """Count the occurrences of a single character; numpy takes a third of the time of ``bytes.count``."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == char[0]))


def corrupt_record(path: Path, number: int, problem: str) -> CorruptRecord:
    """Build the error for a damaged line."""
    return CorruptRecord(
        f"{path}, line {number} {problem}. Only the last line may be torn: "
        f"restore the file from a copy, or delete line {number} to discard that row"
    )
