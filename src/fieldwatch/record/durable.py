"""What of a growing file is surely on the disk: a sync that failed once may not be believed when it next succeeds."""

import errno
import os
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

_PIECE: Final = 1 << 20


@dataclass(kw_only=True)
class _Stretch:
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
        self._stretches = [_Stretch(start=size, end=size)]
        self._doubtful = False

    def wrote(self, data: bytes) -> None:
        """Note what was appended."""
        with self._lock:
            last = self._stretches[-1]
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
            pending = self._stretches
            end = pending[-1].end
            self._stretches = [_Stretch(start=end, end=end)]
        try:
            if self._doubtful:
                self._write_again(pending)
            os.fsync(file)
        except OSError:
            with self._lock:
                self._stretches = pending + self._stretches
                self._doubtful = True
            raise
        self._doubtful = False

    def _write_again(self, stretches: list[_Stretch]) -> None:
        file = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)  # not for appending: it writes in place
        try:
            for stretch in stretches:
                if _checksum(file, stretch) != stretch.crc:
                    what = f"bytes {stretch.start:,} to {stretch.end:,} were lost when the disk failed to take them"
                    raise OSError(errno.EIO, what, str(self._path))
                place = stretch.start
                while place < stretch.end:
                    place += os.pwrite(file, os.pread(file, min(_PIECE, stretch.end - place), place), place)
        finally:
            os.close(file)


def _checksum(file: int, stretch: _Stretch) -> int:
    crc = 0
    for place in range(stretch.start, stretch.end, _PIECE):
        crc = zlib.crc32(os.pread(file, min(_PIECE, stretch.end - place), place), crc)
    return crc
