"""Detection of errors caused by a full disk, and the error for a disk that stayed full."""

import errno
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TRANSIENT_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT)
"""Disk errors that disappear once files are deleted.

EIO and EROFS are not among them: data on a failing disk cannot be trusted, and a file system becomes read-only because
of damage. EFBIG is a limit that does not change while the process runs.
"""


class DiskFullError(OSError):
    """A disk stayed full for longer than allowed, or too much data is waiting for it."""


def lacks_space(error: BaseException, *, foreign: bool = False) -> bool:
    """Return whether an error, or one of its causes, means that the disk or the quota is full.

    Args:
        error: error to check.
        foreign: whether another library raised it, so that its context (``__context__``) counts as a cause too.
    """
    return any(_says_no_space(cause) for cause in _causes(error, foreign=foreign))


def disk_full(folder: Path, message: str) -> DiskFullError:
    """Return the error for a folder on a full disk, with ``errno`` ENOSPC."""
    return DiskFullError(errno.ENOSPC, message, str(folder))


def _says_no_space(error: BaseException) -> bool:
    if isinstance(error, OSError):
        # EDQUOT: the quota of the user is full, though the disk is not.
        return error.errno in TRANSIENT_ERRNOS
    # MLflow stores its data in SQLite, whose errors are not OSErrors.
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def _causes(error: BaseException | None, *, foreign: bool) -> Iterator[BaseException]:
    visited = set[int]()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        # `__context__` is any exception that was being handled, and not necessarily a cause: follow it on request only.
        error = error.__cause__ or (error.__context__ if foreign else None)
