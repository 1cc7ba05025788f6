"""Reliable fsync for growing files: after a failed sync, a later success alone does not prove that data is on disk."""

import errno
import os
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

_CHUNK_BYTES: Final = 1 << 20


@dataclass(kw_only=True)
class _ByteRange:
    """Byte range ``[start, end)`` of the file and its CRC-32."""

    start: int
    end: int
    crc: int = 0


@final
class SyncTracker:
    """Syncs an append-only file and keeps track of the bytes that no sync has confirmed.

    When ``fsync`` fails, Linux marks the pages that it could not write as clean: the next ``fsync`` has nothing to do
    and succeeds, although the bytes never reached the disk. After a failed sync, everything since the last successful
    one is therefore read back, compared with the checksum of the written data, written again, and only then synced.

    Args:
        path: path of the file.
        size: current size of the file, in bytes.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._unconfirmed = [_ByteRange(start=size, end=size)]
        self._sync_failed = False

    def note_write(self, data: bytes) -> None:
        """Record data that was appended to the file."""
        with self._lock:
            last = self._unconfirmed[-1]
            last.end += len(data)
            last.crc = zlib.crc32(data, last.crc)

    def sync(self, file: int) -> None:
        """Block until everything appended so far is on the disk.

        Args:
            file: file descriptor.

        Raises:
            OSError: if the sync fails; EIO also if bytes of an earlier failed sync are permanently lost.
        """
        with self._lock:
            # Writes that arrive during this sync go into a new range, since this sync may not cover them.
            # The lock is not held during fsync, so that a slow disk does not block writers.
            pending = self._unconfirmed
            end = pending[-1].end
            self._unconfirmed = [_ByteRange(start=end, end=end)]
        try:
            if self._sync_failed:
                self._rewrite(pending)
            os.fsync(file)
        except OSError:
            with self._lock:
                # The old ranges remain unconfirmed; the next sync verifies them first.
                self._unconfirmed = pending + self._unconfirmed
                self._sync_failed = True
            raise
        self._sync_failed = False

    def _rewrite(self, ranges: list[_ByteRange]) -> None:
        # A separate descriptor: Linux ignores the offset of pwrite on a descriptor with O_APPEND.
        file = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for written in ranges:
                # If the page was evicted meanwhile, the disk returns its content from before the failed write.
                if _checksum(file, written) != written.crc:
                    message = f"bytes {written.start:,} to {written.end:,} were lost in an earlier failed write"
                    raise OSError(errno.EIO, message, str(self._path))
                offset = written.start
                while offset < written.end:
                    # Rewriting the bytes marks their pages as dirty, so that the next fsync really writes them.
                    offset += os.pwrite(file, os.pread(file, min(_CHUNK_BYTES, written.end - offset), offset), offset)
        finally:
            os.close(file)


def _checksum(file: int, written: _ByteRange) -> int:
    crc = 0
    for offset in range(written.start, written.end, _CHUNK_BYTES):
        crc = zlib.crc32(os.pread(file, min(_CHUNK_BYTES, written.end - offset), offset), crc)
    return crc
