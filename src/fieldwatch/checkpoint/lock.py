"""Lock of a run folder: only one process at a time may write into it."""

import errno
import fcntl
import json
import os
import socket
import struct
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, cast, final

from fieldwatch.base import InputError, lacks_space
from fieldwatch.checkpoint.files import make_folder
from fieldwatch.checkpoint.incident import CheckpointError

LOCK: Final = ".lock"
_SET_LOCK: Final[int | None] = getattr(fcntl, "F_OFD_SETLK", None)
"""Command that sets an open file description lock, which belongs to the open file instead of the process (Linux)."""
# ``struct flock``: type, whence, start, length (0 is to the end), pid and padding.
_WHOLE_FILE: Final = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_LOCKED_ERRNOS: Final = (errno.EAGAIN, errno.EACCES)
_NO_LOCKS_ON_FOLDERS: Final = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP, errno.EISDIR)
# Attempts to lock a file that another process deletes at the same time.
_TRIES: Final = 8


class FolderInUseError(CheckpointError, InputError):
    """Another process is writing into the folder; the message names it."""


@final
class FolderLock:
    """A context manager that locks a folder for this process.

    It holds two locks: one on the folder itself, and one on the file ``.lock`` in it, which describes the owner. Both
    belong to the open files of this object: copying the folder, or opening and closing ``.lock`` elsewhere, does not
    release them, and deleting ``.lock`` does not let another process in. The kernel releases them when the process
    ends, even if it is killed. A forked child closes them immediately, so that surviving workers hold no lock. On file
    systems without locks on folders (NFS), only the lock on the file remains, which is as reliable as the server's.

    Args:
        folder: folder to lock; created if missing.

    Raises:
        FolderInUseError: (on entering) if another process, or this one, holds the lock.
        CheckpointError: (on entering) if ``.lock`` is not a regular file.
    """

    _instances: ClassVar[set["FolderLock"]] = set()

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder).absolute() / LOCK
        self._folder: int | None = None
        self._file: int | None = None

    def __enter__(self) -> "FolderLock":
        make_folder(self.path.parent)
        with ExitStack() as undo:
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            undo.callback(os.close, folder)
            # The folder comes first, because its lock cannot be lost by deleting the file ``.lock``.
            if not _lock_folder(folder):
                raise FolderInUseError(_describe_owner(self.path))
            file = self._locked_file()
            undo.callback(os.close, file)
            _write_owner(file)
            undo.pop_all()
        self._folder = folder
        self._file = file
        self._instances.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None:
            # The file is emptied but not deleted: deleting it could race with a process that has just opened it.
            _rewrite(self._file, b"")
        self.release()
        self._instances.discard(self)

    def release(self) -> None:
        """Close both files; in a forked child, the parent keeps its locks."""
        for descriptor in (self._file, self._folder):
            if descriptor is not None:
                os.close(descriptor)
        self._file = None
        self._folder = None

    @classmethod
    def release_in_child(cls) -> None:
        """Close all inherited locks, in a process that was just forked."""
        for lock in cls._instances:
            lock.release()
        cls._instances.clear()

    def _locked_file(self) -> int:
        """Open and lock the lock file, and make sure that it still has its name afterwards.

        Raises:
            FolderInUseError: if another process holds it, or the file is deleted repeatedly.
            CheckpointError: if it is not a regular file.
        """
        # The file may be deleted between open and lock; the lock would then be on a file that nobody else can open.
        for _ in range(_TRIES):
            try:
                file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.EISDIR):
                    raise
                raise CheckpointError(
                    f"{self.path} is a link or a folder, expected a regular lock file: delete it"
                ) from error
            if not _lock_file(file):
                os.close(file)
                raise FolderInUseError(_describe_owner(self.path))
            if _has_name(file, self.path):
                return file
            os.close(file)
        raise FolderInUseError(f"{self.path} is replaced repeatedly: stop the program that does that")


def _lock_folder(folder: int) -> bool:
    """Lock a folder; return False if another process holds the lock, True if the file system has no such locks."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _LOCKED_ERRNOS:
            return False
        if error.errno not in _NO_LOCKS_ON_FOLDERS:
            raise
    return True


def _lock_file(file: int) -> bool:
    """Lock a file; return False if another process holds the lock, including one of an earlier version."""
    try:
        # Open file description locks also exclude processes that use POSIX locks; flock is the fallback without them.
        if _SET_LOCK is None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            fcntl.fcntl(file, _SET_LOCK, _WHOLE_FILE)
    except OSError as error:
        if error.errno in _LOCKED_ERRNOS:
            return False
        raise
    return True


def _has_name(file: int, path: Path) -> bool:
    """Return whether an open file still has the given name."""
    try:
        return os.path.samestat(os.fstat(file), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def _owner_json() -> bytes:
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "since": datetime.now(UTC).isoformat(timespec="seconds")}
    return json.dumps(owner).encode()


def _write_owner(file: int) -> None:
    """Write the owner into the lock file."""
    try:
        _rewrite(file, _owner_json())
    except OSError as error:
        # The lock is also valid without the owner: a full disk must not prevent a run.
        if not lacks_space(error):
            raise


def _rewrite(descriptor: int, content: bytes) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, content, 0)


def _describe_owner(path: Path) -> str:
    """Return a message about the owner of a folder, read from its lock file."""
    owner = _owner(path)
    # Truncated, because the file may contain anything.
    host, pid, since = (str(owner.get(name, "unknown"))[:64] for name in ("host", "pid", "since"))
    if (host, pid) == (socket.gethostname(), str(os.getpid())):
        return f"{path.parent} is already held by this process (pid {pid}): use one Run per folder"
    advice = f"wait for it, stop it (kill {pid} on {host}), or use another folder for this run"
    return f"{path.parent} is being written by process {pid} on host {host} since {since}: {advice}"


def _owner(path: Path) -> dict[str, Any]:
    """Return the owner in a lock file; empty if it cannot be read."""
    try:
        # O_NONBLOCK, because a pipe in place of the file would block forever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return {}
    try:
        owner: Any = json.loads(os.read(descriptor, 4096))
    except (ValueError, RecursionError, OSError):
        return {}
    finally:
        os.close(descriptor)
    return cast("dict[str, Any]", owner) if isinstance(owner, dict) else {}


# Forked data workers must not keep the folder locked after the run has ended.
os.register_at_fork(after_in_child=FolderLock.release_in_child)
