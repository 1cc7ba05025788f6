"""TensorBoard event files: record framing, file names that TensorBoard recognizes, and rewinding after a resume."""

# google_crc32c carries no types, so strict checking ends here.
# pyright: basic

import os
import re
import socket
import struct
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import google_crc32c
import numpy as np
import orjson
from numpy.typing import NDArray

from fieldwatch.base import protobuf, refuse_link, sync_folder
from fieldwatch.record.disk.backlog import WriteQueue
from fieldwatch.record.lines import write_all

# Masking constant of checksums in the TFRecord format.
_MASK_DELTA = 0xA282EAD8
# TensorBoard's naming scheme with a suffix of ours, so that files of other writers are left alone.
_NAME = re.compile(r"events\.out\.tfevents\.\d+\..*\.fieldwatch\.(\d+)")
# Numbers of event.proto: the field of a log message in an event, and its level "info".
_LOG_MESSAGE = 6
_LOG_INFO = 20
HEAD_BYTES = 12
"""Bytes before a record: its length (8) and the checksum of the length (4)."""
CHECKSUM_BYTES = 4
"""Bytes of the checksum after a record."""
_FRAME = HEAD_BYTES + CHECKSUM_BYTES


def masked(crc: int) -> int:
    """Mask a CRC-32C as in the TFRecord format."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def frame_head(length: int) -> bytes:
    """Return the 12 bytes that precede a record of ``length`` bytes."""
    head = struct.pack("<Q", length)
    return head + struct.pack("<I", masked(google_crc32c.value(head)))


def frame(record: bytes) -> bytes:
    """Frame a record as in the TFRecord format: length, its masked CRC-32C, record, its masked CRC-32C."""
    return frame_head(len(record)) + record + struct.pack("<I", masked(google_crc32c.value(record)))


def masked_checksums(records: Sequence[bytes]) -> NDArray[np.uint32]:
    """Return ``[n]`` masked CRC-32C of each record."""
    # uint64, so that the left shift by 17 does not overflow.
    crc = np.fromiter(map(google_crc32c.value, records), np.uint64, len(records))
    return (
        (((crc >> np.uint64(15)) | (crc << np.uint64(17))) + np.uint64(_MASK_DELTA)) & np.uint64(0xFFFFFFFF)
    ).astype("<u4")


def read_records(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield end offset and content of each record, up to the first torn one."""
    end = 0
    with path.open("rb") as file:
        while len(head := file.read(12)) == 12:
            length = int.from_bytes(head[:8], "little")
            # Verify the length before reading the body: a damaged one could request gigabytes.
            if head != frame_head(length):
                return
            body = file.read(length + 4)
            record = body[:length]
            if len(body) < length + 4 or body[length:] != struct.pack("<I", masked(google_crc32c.value(record))):
                return
            end += length + _FRAME
            yield end, record


def own_files(folder: Path) -> list[Path]:
    """Return the event files that this toolkit wrote in a folder, oldest first; none if there is no folder."""
    paths = folder.iterdir() if folder.is_dir() else ()
    numbered = [(int(match[1]), path) for path in paths if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(numbered)]


@dataclass(frozen=True, kw_only=True)
class _CopiedRange:
    """Byte range ``[start, end)`` of a file, which is a copy of the first bytes of a file named ``origin``."""

    path: Path
    start: int
    end: int
    origin: str


class EventFiles:
    """The event files that this toolkit wrote in one folder. At most one of them is open for appending.

    After a resume, the valid prefix is copied to a file with a new name and the old files are removed: a TensorBoard
    that watches the folder cannot undo what it has read, but it drops files that no longer exist. The second record of
    such a copy, a log message that TensorBoard skips, lists the files that it was copied from. Older marks, which refer
    to those files, can therefore still be resolved.

    Args:
        folder: folder of the event files; created if missing.
        clock: returns seconds since 1970, for file names and events.

    Attributes:
        queue: queue of records that wait for disk space, once attached to a backlog.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._clock = clock
        self._file: int | None = None
        refuse_link(folder)
        self._path: Path | None = None
        self.queue = WriteQueue(self._write)
        folder.mkdir(parents=True, exist_ok=True)

    def append(self, records: bytes, *, optional: bool = False) -> None:
        """Append framed records with a single write. The first call creates the file.

        Args:
            records: framed records.
            optional: whether the records may be dropped if too many optional writes wait for disk space.

        Raises:
            OSError: if the write fails; the file still ends with a whole record.
        """
        if self._path is None:  # fix the name now, even if a full disk delays the creation of the file
            self._path = self._new_path()
            self.queue.append(frame(self._version()))
        self.queue.append(records, optional=optional)

    def mark(self) -> dict[str, int]:
        """Return the size of each file in bytes, by file name, including data that waits for disk space."""
        # Waiting bytes count as written: the backlog appends them before anything that follows the mark.
        sizes = {path.name: path.stat().st_size for path in self._paths()}
        if self._path is not None and self.queue.nbytes:
            sizes[self._path.name] = sizes.get(self._path.name, 0) + self.queue.nbytes
        return sizes

    def rewind(self, mark: Mapping[str, int] | None) -> None:
        """Restore the folder to its state at the mark; with None, remove all files. Torn last records are dropped.

        Warns:
            UserWarning: if a file of the mark no longer exists, so that its part of the curves is lost.
        """
        # Remove drafts of a rewind that was interrupted.
        self.close()
        for draft in self.folder.glob(".events.out.tfevents.*.part"):
            draft.unlink()
        old = self._paths()
        ranges = [copied for name, size in (mark or {}).items() if (copied := self._find(name, size, old))]
        if ranges:
            path = self._new_path()
            draft = path.with_name(f".{path.name}.part")
            self._file = self._open(draft, frame(self._version()) + frame(self._lineage(ranges)))
            for copied in ranges:
                write_all(self._file, copied.path.read_bytes()[copied.start : copied.end], os.fstat(self._file).st_size)
            # Sync before the rename: after a power failure, the new name must not refer to an empty file.
            os.fsync(self._file)
            # TensorBoard opens a file as soon as its name appears, so rename it only once the content is complete.
            draft.replace(path)
            self._path = path
        for path in old:
            path.unlink()
        sync_folder(self.folder)

    def close(self) -> None:
        """Close the current file; the next record starts a new one."""
        if self._file is not None:
            os.close(self._file)
        self._file = self._path = None

    def _write(self, records: bytes) -> None:
        if self._file is None and self._path is not None:
            self._file = self._open(self._path, b"")
        if self._file is not None:
            write_all(self._file, records, os.fstat(self._file).st_size)

    def _paths(self) -> list[Path]:
        return own_files(self.folder)

    def _new_path(self) -> Path:
        # The running number at the end of the name orders files that were created within the same second.
        last = self._paths()[-1:]
        number = int(last[0].name.rpartition(".")[2]) + 1 if last else 0
        stamp = int(self._clock())
        host = socket.gethostname() or "localhost"
        return self.folder / f"events.out.tfevents.{stamp:010d}.{host}.{os.getpid()}.fieldwatch.{number:04d}"

    def _open(self, path: Path, first: bytes) -> int:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        write_all(file, first, 0)
        return file

    def _version(self) -> bytes:
        return protobuf.double(1, self._clock()) + protobuf.text(3, "brain.Event:2")

    def _lineage(self, ranges: list[_CopiedRange]) -> bytes:
        text = orjson.dumps({"fieldwatch_copy_of": list(_origins(ranges))}).decode()
        message = protobuf.integer(1, _LOG_INFO) + protobuf.text(2, text)
        return protobuf.double(1, self._clock()) + protobuf.sized(_LOG_MESSAGE, message)

    def _find(self, name: str, size: int, paths: list[Path]) -> _CopiedRange | None:
        """Locate the first ``size`` bytes of the file originally named ``name``, without a torn record at their end."""
        for path in paths:
            if path.name == name:
                return _CopiedRange(path=path, start=0, end=_whole(path, size), origin=name)
        for path in paths:
            # An earlier resume may have copied the file: the lineage record of the copy tells where its bytes are now.
            for origin, start, length in _copied_from(path):
                if origin == name and size <= length:
                    return _CopiedRange(path=path, start=start, end=_whole(path, start + size), origin=name)
        warnings.warn(
            f"{self.folder / name} no longer exists: its part of the TensorBoard curves is lost. The journal still has "
            "it: `fieldwatch export --to tensorboard` rebuilds the curves",
            stacklevel=4,
        )
        return None


def _whole(path: Path, limit: int) -> int:
    """Return the end offset of the last record that ends at or before ``limit``."""
    return max((end for end, _ in read_records(path) if end <= limit), default=0)


def _copied_from(path: Path) -> list[tuple[str, int, int]]:
    """Return the lineage of a copied file: name, offset in this file and length of the prefix of each original."""
    # The first record is the file version; the second one is the lineage, if there is one.
    records = read_records(path)
    next(records, None)
    end, record = next(records, (0, b""))
    log_message = protobuf.fields(record).get(_LOG_MESSAGE)
    if not isinstance(log_message, bytes):
        return []
    message: dict[str, Any] = orjson.loads(cast("bytes", protobuf.fields(log_message)[2]))
    return [(str(name), end + int(start), int(length)) for name, start, length in message["fieldwatch_copy_of"]]


def _origins(ranges: list[_CopiedRange]) -> Iterator[tuple[str, int, int]]:
    """Yield name, offset and length of each original file, including indirect ones, in the concatenated ranges."""
    offset = 0
    for copied in ranges:
        yield copied.origin, offset, copied.end - copied.start
        for name, start, length in _copied_from(copied.path):
            if name != copied.origin and copied.start <= start < copied.end:
                yield name, offset + start - copied.start, min(length, copied.end - start)
        offset += copied.end - copied.start
