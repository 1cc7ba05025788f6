"""An append-only file of JSON lines, each with a checksum. The last one may be torn; a damaged one is noticed.

A line is an array or an object of JSON. Its last element, or its last key ``crc``, is the CRC-32 (as in zlib and gzip)
of all bytes of the line before its last comma. Files of earlier versions have lines without one: those come before the
first line that has one.
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
"""The key of a line's checksum, the last one in its object."""
NO_JSON = "is not a line of JSON"
ALTERED = "does not have the checksum written with it"
_SEARCH_BYTES = 1 << 16
_CHUNK_LINES = 512
_FIRST_CHUNK_BYTES = 1 << 13
_MAX_CHUNK_BYTES = 1 << 22


class CorruptRecord(InputError):  # noqa: N818  says what was found
    """A line that is not the last cannot be read, in a file where every line counts."""


class LineFile:
    """Appends whole lines to one file, each call with one write to the system, nothing held back.

    Opening cuts off a torn last line (a process that was killed while writing, a disk that lost power).
    A write that fails half way (disk full) is taken back before the error is raised, so that the file
    always ends with a whole line.

    Args:
        path: the file; it and its folder are made if missing.

    Attributes:
        queue: where lines wait that a full disk refuses, once it has joined a run's; see :class:`WriteQueue`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open_for_append(path)
        self._size = size_of_whole_lines(path)
        if self._size < path.stat().st_size:
            os.ftruncate(self._file.fileno(), self._size)
        self.queue = WriteQueue(self._write)
        self._sync_tracker = SyncTracker(path, self._size)

    def append(self, lines: bytes, *, rows: int = 0) -> None:
        """Write lines, each of which ends with a newline; ``rows`` of them are rows of the journal.

        Raises:
            OSError: the system refused; the file is as it was before.
        """
        self.queue.append(lines, rows=rows)

    def sync(self) -> None:
        """Return when everything written so far is on the disk, see :class:`SyncTracker`.

        Raises:
            OSError: it is not.
        """
        self._sync_tracker.sync(self._file.fileno())

    def _write(self, lines: bytes) -> None:
        write_all(self._file.fileno(), lines, self._size)
        self._size += len(lines)
        self._sync_tracker.note_write(lines)

    def close(self) -> None:
        """Close the file; more than once is fine."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def write_all(file: int, data: bytes, end: int) -> None:
    """Append all of the data to a file that ends at byte ``end``, or leave the file as it is.

    Raises:
        OSError: the system refused (disk full).
    """
    view = memoryview(data)
    try:
        # A write may be short, on a nearly full disk or after a signal: go on with the rest.
        while view:
            view = view[os.write(file, view) :]
    except OSError:
        os.ftruncate(file, end)
        raise


def size_of_whole_lines(path: Path) -> int:
    """Return the size in bytes of the file up to the end of its last whole line."""
    with path.open("rb") as file:
        return end_of_last_line(file.fileno())


def end_of_last_line(file: int) -> int:
    """Return the same of an open file. A last line of zero bytes, as a power cut leaves it, is not whole."""
    end = _last_newline(file, os.fstat(file).st_size) + 1
    start = _last_newline(file, end - 1) + 1
    if end == start:
        return end
    # After a power cut the file system may have grown the file before it wrote the data: zeros instead of the line.
    line = os.pread(file, end - start, start)
    return start if b"\0" in line and parse_line(line) is None else end


def _last_newline(file: int, end: int) -> int:
    """Return the place of the last newline before ``end``, or -1."""
    while end > 0:
        start = max(0, end - _SEARCH_BYTES)
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


def add_checksum(line: bytes) -> bytes:
    """Return the text of an object or an array of JSON as a line of the record: with its checksum, and a newline.

    Raises:
        ValueError: it is empty, so that there is no comma before the checksum.
    """
    body = line[:-1]
    # ``{}`` and ``[]`` have no comma that the checksum could follow.
    if len(line) < 3:
        raise ValueError(f"{line!r} cannot carry a checksum: expected an array or object that is not empty")
    if line.endswith(b"}"):
        return b'%b,"crc":%d}\n' % (body, crc32(body))
    return b"%b,%d]\n" % (body, crc32(body))


def checksum_of(line: bytes) -> int:
    """Return the checksum that a line should have."""
    return crc32(line[: line.rfind(b",")])


class LineReader:
    """Parses the lines of one file of JSON objects in their order, and says what is wrong with a damaged one.

    Once a line has had a good checksum, all that follow need one.

    Attributes:
        sealed: whether the last good line had a checksum.
    """

    def __init__(self) -> None:
        self.has_checksums = False

    def check_first_line(self, text: bytes) -> None:
        """Look at the first lines of the file: where the second has a checksum, the first needs one.

        It may be a segment that a later version began: then the first line is of a version without checksums.
        """
        second = text.split(b"\n", 2)[1] if text.count(b"\n") > 1 else b""
        self.has_checksums = self.has_checksums or (
            not second.startswith(b'{"segment"') and _ends_with_checksum(second)
        )

    def read(self, line: bytes) -> tuple[Any, str]:
        """Return what a line holds, without its checksum, and an empty text; or None, and what is wrong with it.

        Args:
            line: the line, without its newline.
        """
        value: Any = parse_line(line)
        if value is None:
            return None, NO_JSON
        if not isinstance(value, dict) or CHECKSUM not in value:
            # A line that ends with its own checksum under a damaged key was written with one, too.
            if self.has_checksums or _ends_with_checksum(line):
                return None, "has no checksum"
            return cast("Any", value), ""
        found = cast("dict[str, Any]", value)
        if found.pop(CHECKSUM) != checksum_of(line):
            return None, ALTERED
        self.has_checksums = True
        return found, ""


def _ends_with_checksum(line: bytes) -> bool:
    """Whether the last number of a line is its checksum, whatever its key."""
    number = line[max(line.rfind(b":"), line.rfind(b",")) + 1 : -1]
    # At most 20 digits: int() of a hostile line of a million digits would take minutes.
    return number.isdigit() and int(number[:20]) == checksum_of(line)


def read_lines(path: Path, prefix: bytes = b"", damage: DamageTally | None = None) -> Iterator[tuple[int, Any]]:
    """Yield 1-based line numbers and parsed lines; a torn last line is left out, a missing file is empty.

    Args:
        path: the file.
        prefix: only lines that start with this are parsed and yielded.
        damage: counts the damaged lines, which are left out.

    Raises:
        CorruptRecord: without a tally, a line is damaged; the message names file and line.
    """
    reader = LineReader()
    for first, text in read_chunks(path):
        if first == 1:
            reader.check_first_line(text)
        if prefix not in text:
            continue
        for number, line in numbered(text, first):
            if line.startswith(prefix):
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
    """Yield the good lines of a file of objects: 1-based number, contents, and whether the line had a checksum.

    Args:
        path: the file; missing, it is empty.
        problem_of: says what is wrong with a parsed line; an empty text if nothing is.
        damage: counts the damaged lines, which are left out.
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
    """Yield the whole lines of a text, of which the first has this number, without their newlines."""
    return enumerate(text.split(b"\n")[:-1], first)


def read_chunks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield whole lines, some 512 at a time as one text, with the 1-based number of the first; see `read_lines`."""
    if not path.exists():
        return
    with path.open("rb") as file:
        first = 1
        for text, lines in chunks(file, end_of_last_line(file.fileno())):
            yield first, text
            first += lines


def chunks(file: BinaryIO, size: int) -> Iterator[tuple[bytes, int]]:
    """Yield the next ``size`` bytes of a file, which end with a whole line, as texts of about 512 lines each.

    How long a line is, is known from the ones before. With each text comes how many lines it has.
    """
    rest = b""
    wanted = _FIRST_CHUNK_BYTES
    while size > 0 and (new := file.read(min(wanted, size))):
        size -= len(new)
        end = new.rfind(b"\n") + 1
        # A single line longer than the chunk: read on with a larger chunk until its newline comes.
        if not end:
            rest = rest + new
            wanted = 2 * wanted
            continue
        text = rest + new[:end]
        rest = new[end:]
        lines = count(text, b"\n")
        yield text, lines
        # Aim at a fixed number of lines, whatever their length: blocks then have about equal numbers of rows.
        wanted = max(_FIRST_CHUNK_BYTES, min(_CHUNK_LINES * len(text) // lines, _MAX_CHUNK_BYTES))


def count(text: bytes, char: bytes) -> int:
    """Return how often one character is in a text (numpy takes a third of the time of ``bytes.count``)."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == char[0]))


def corrupt_record(path: Path, number: int, problem: str) -> CorruptRecord:
    """Make the error that names file and line and says what to do."""
    return CorruptRecord(
        f"{path}, line {number}: {problem}. Only the last line may be torn; "
        f"restore the file from a copy, or delete line {number} to give that row up"
    )
