"""Which errors say that a disk has no room at the moment, and the error of whoever has waited long enough."""

import errno
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TRANSIENT_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk that pass as soon as somebody deletes something.

EIO and EROFS are not among them: what a failing disk took cannot be trusted, and a file system that turned read-only
did so because it met damage. EFBIG is a limit that nobody lifts while the process runs.
"""


class DiskFullError(OSError):
    """A full disk was waited for as long as is allowed, or what has to wait is more than is allowed."""


def lacks_space(error: BaseException, *, foreign: bool = False) -> bool:
    """Whether an error, or what it was raised from, says that the disk or the quota is full.

    Args:
        error: the error.
        foreign: it comes from another library: errors that were being handled when it was raised count too.
    """
    return any(_says_no_space(cause) for cause in _causes(error, foreign=foreign))


def disk_full(folder: Path, message: str) -> DiskFullError:
    """Make the error about a folder; its ``errno`` is ENOSPC."""
    return DiskFullError(errno.ENOSPC, message, str(folder))


def _says_no_space(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in TRANSIENT_ERRNOS
    # mlflow keeps its tables in SQLite, whose error is no OSError.
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def _causes(error: BaseException | None, *, foreign: bool) -> Iterator[BaseException]:
    visited = set[int]()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        # `__context__` is any error that was being handled, and need not be the reason: only on request.
        error = error.__cause__ or (error.__context__ if foreign else None)
