"""Disk blocks that a run reserves in advance, to be used when the disk is full."""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from fieldwatch.base import disk_full, lacks_space

RESERVE: Final = ".reserve"
"""Name of the reserve file in a run folder."""
ROWS_BYTES = 2 << 20
FINAL_BYTES = 2 << 20
"""Bytes reserved for final writes: ``run.json``, the crash folder and the last events.

`ROWS_BYTES` are reserved for rows and events that are recorded while the disk is full.
"""
_CHUNK_BYTES: Final = 256 << 10
"""Minimum number of bytes released at a time."""


@final
class Reserve:
    """A file of allocated blocks in a run folder, released piece by piece while the disk is full.

    ``posix_fallocate`` allocates the blocks, so that no other process can take them. Copy-on-write file systems (btrfs,
    ZFS) do not keep blocks for a file; there the reserve may have no effect, and rows wait in memory.

    Args:
        folder: the run folder; only this process may write into it.
        row_bytes: number of bytes that :meth:`give_up` can release for rows; None for :data:`ROWS_BYTES`.
        final_bytes: number of bytes that only :meth:`release` releases.

    Raises:
        DiskFullError: if the disk has no space for the reserve.
        OSError: if the folder is not writable.
    """

    def __init__(self, folder: Path, *, row_bytes: int | None = None, final_bytes: int = FINAL_BYTES) -> None:
        self.path = folder / RESERVE
        self._whole = (ROWS_BYTES if row_bytes is None else row_bytes) + final_bytes
        self._final_bytes = final_bytes
        # Remove a symbolic link or pipe of this name: opening it would write to its target.
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(self.path.lstat().st_mode):
                self.path.unlink()
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(self.path, flags, 0o644)  # reuses the file left by a killed process
        self._size = 0
        if not self.refill():
            self.close()
            raise disk_full(
                folder,
                f"expected {self._whole:,} bytes of free disk space, which a run reserves for its record: free some "
                "disk space, or choose another run folder",
            )

    @property
    def whole(self) -> bool:
        """Whether the reserve has its full size."""
        return self._size >= self._whole

    def refill(self, *, beyond: int = 0) -> bool:
        """Allocate the missing blocks; return False if the disk has no space for them.

        Args:
            beyond: number of bytes that must be free in addition, so that the disk is not full again at once.
        """
        try:
            # Allocating more than the reserve is the only reliable test for free space: quotas and reserved blocks
            # make the numbers of statvfs too optimistic.
            os.posix_fallocate(self._file, 0, self._whole + beyond)
        except OSError as error:
            # A failed allocation may have allocated some of the blocks.
            os.ftruncate(self._file, self._size)
            if not lacks_space(error):
                raise
            return False
        # Release the surplus that only tested for free space.
        os.ftruncate(self._file, self._whole)
        self._size = self._whole
        return True

    def give_up(self, nbytes: int) -> bool:
        """Release at least ``nbytes`` for rows, if that many are left; return False if none are left."""
        if self._size <= self._final_bytes:
            return False
        # Release at least a fixed amount at a time, to keep the number of system calls low.
        self._shrink(max(self._final_bytes, self._size - max(_CHUNK_BYTES, nbytes)))
        return True

    def release(self) -> None:
        """Release all remaining blocks, for the final writes of a run."""
        self._shrink(0)

    def close(self) -> None:
        """Delete the file. May be called more than once."""
        if self._file >= 0:
            self._shrink(0)
            os.close(self._file)
            self._file = -1
            self.path.unlink(missing_ok=True)

    def _shrink(self, size: int) -> None:
        # Truncating the file returns the blocks at its end to the file system.
        if size < self._size and self._file >= 0:
            os.ftruncate(self._file, size)
            self._size = size
