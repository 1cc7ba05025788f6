"""Blocks of the disk that a run keeps for the time when the disk is full."""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from fieldwatch.base import disk_full, lacks_space

RESERVE: Final = ".reserve"
"""The file's name in a run folder."""
ROWS_BYTES = 2 << 20
FINAL_BYTES = 2 << 20
"""Bytes for the journal and the events of a full disk, and for ``run.json``, the crash folder and the last events."""
_CHUNK_BYTES: Final = 256 << 10
"""Bytes that are given up at a time, at least."""


@final
class Reserve:
    """A file of real blocks in a run folder, given up piece by piece while the disk is full.

    ``posix_fallocate`` gives it its blocks, so that nobody else can have them. A file system that copies on write
    (btrfs, ZFS) keeps no blocks for a file; there the reserve may turn out to be empty, and rows wait in memory.

    Args:
        folder: the run folder; this process alone writes into it.
        row_bytes: bytes that :meth:`give_up` gives up for rows; None for :data:`ROWS_BYTES`.
        final_bytes: bytes that only :meth:`release` gives up.

    Raises:
        DiskFullError: there is no room for it.
        OSError: the folder cannot be written to.
    """

    def __init__(self, folder: Path, *, row_bytes: int | None = None, final_bytes: int = FINAL_BYTES) -> None:
        self.path = folder / RESERVE
        self._whole = (ROWS_BYTES if row_bytes is None else row_bytes) + final_bytes
        self._final_bytes = final_bytes
        # A link or a pipe in its place, left or planted there, would be written through.
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(self.path.lstat().st_mode):
                self.path.unlink()
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(self.path, flags, 0o644)  # what a killed process left is used again
        self._size = 0
        if not self.refill():
            self.close()
            raise disk_full(
                folder,
                f"expected {self._whole:,} bytes of free space, which a run reserves for its record; "
                "free space, or choose another run folder",
            )

    @property
    def whole(self) -> bool:
        """Whether all of it is there."""
        return self._size >= self._whole

    def refill(self, *, beyond: int = 0) -> bool:
        """Take what is missing; False where the disk has no room for it.

        Args:
            beyond: bytes that have to be free besides, so that a disk with little room is not full again at once.
        """
        try:
            # Allocation beyond the reserve probes for free space; the surplus is given back right after.
            os.posix_fallocate(self._file, 0, self._whole + beyond)
        except OSError as error:
            # A failed allocation may have taken some blocks.
            os.ftruncate(self._file, self._size)
            if not lacks_space(error):
                raise
            return False
        os.ftruncate(self._file, self._whole)
        self._size = self._whole
        return True

    def give_up(self, nbytes: int) -> bool:
        """Give up room for so many bytes of rows; False where all of that has been given up."""
        if self._size <= self._final_bytes:
            return False
        # At least a fixed piece at a time, so that a full disk costs few system calls.
        self._shrink(max(self._final_bytes, self._size - max(_CHUNK_BYTES, nbytes)))
        return True

    def release(self) -> None:
        """Give up all that is left, for the final writes of a run."""
        self._shrink(0)

    def close(self) -> None:
        """Delete the file; more than once is fine."""
        if self._file >= 0:
            self._shrink(0)
            os.close(self._file)
            self._file = -1
            self.path.unlink(missing_ok=True)

    def _shrink(self, size: int) -> None:
        if size < self._size and self._file >= 0:
            os.ftruncate(self._file, size)
            self._size = size
