"""What of a growing file is surely on the disk: a sync that failed once may not be believed when it next succeeds."""

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
    """Bytes ``start`` to ``end`` of the file, and their checksum."""

    start: int
    end: int
    crc: int = 0


@final
class SyncTracker:
    """Syncs a file that only grows, and remembers what no sync has confirmed.

    When ``fsync`` fails, Linux marks the pages that it could not write as clean: the next ``fsync`` finds nothing to
    do and succeeds, though the bytes never reached the disk. So after a failed sync everything since the last good
    one is read back, compared with the checksum of what was written, written again, and only then synced.

    Args:
        path: the file.
        size: bytes that it has now.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._unconfirmed = [_ByteRange(start=size, end=size)]
        self._sync_failed = False

    def note_write(self, data: bytes) -> None:
        """Note what was appended."""
        with self._lock:
            last = self._unconfirmed[-1]
            last.end += len(data)
            last.crc = zlib.crc32(data, last.crc)

    def sync(self, file: int) -> None:
        """Return when everything that was appended so far is on the disk.

        Args:
            file: the file's descriptor.

        Raises:
            OSError: it is not; with EIO also where bytes of a failed sync are lost for good.
        """
        with self._lock:
            # Writes that arrive while this sync runs go into a new range: this sync may not cover them.
            pending = self._unconfirmed
            end = pending[-1].end
            self._unconfirmed = [_ByteRange(start=end, end=end)]
        try:
            if self._sync_failed:
                self._rewrite(pending)
            os.fsync(file)
        except OSError:
            with self._lock:
                # Nothing of the old ranges is confirmed; the next sync verifies them first.
                self._unconfirmed = pending + self._unconfirmed
                self._sync_failed = True
            raise
        self._sync_failed = False

    def _rewrite(self, ranges: list[_ByteRange]) -> None:
        file = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)  # not for appending: it writes in place
        try:
            for written in ranges:
                # The page may have been evicted meanwhile: then the disk returns what it had before the failed write.
                if _checksum(file, written) != written.crc:
                    what = f"bytes {written.start:,} to {written.end:,} were lost when the disk failed to take them"
                    raise OSError(errno.EIO, what, str(self._path))
                offset = written.start
                while offset < written.end:
                    # Rewriting the bytes marks their pages dirty again, so that the next fsync really writes them.
                    offset += os.pwrite(file, os.pread(file, min(_CHUNK_BYTES, written.end - offset), offset), offset)
        finally:
            os.close(file)


def _checksum(file: int, written: _ByteRange) -> int:
    crc = 0
    for offset in range(written.start, written.end, _CHUNK_BYTES):
        crc = zlib.crc32(os.pread(file, min(_CHUNK_BYTES, written.end - offset), offset), crc)
    return crc
