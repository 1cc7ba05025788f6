"""One process at a time writes into a run's folder."""

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
"""Sets a lock that belongs to the open file and not to the process; Linux has it."""
# ``struct flock``: type, whence, start, length (0 is to the end), pid and padding.
_WHOLE_FILE: Final = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_LOCKED_ERRNOS: Final = (errno.EAGAIN, errno.EACCES)
_NO_LOCKS_ON_FOLDERS: Final = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP, errno.EISDIR)
_TRIES: Final = 8


class FolderInUseError(CheckpointError, InputError):
    """Another process writes into the folder; the message says which."""


@final
class FolderLock:
    """A context manager that holds a folder for this process alone.

    It holds two locks: one on the folder itself, and one on the file ``.lock`` in it, which says who holds it. Both
    belong to files that only this object has open: copying the folder, or opening and closing ``.lock`` anywhere, does
    not drop them, and deleting ``.lock`` lets nobody in. The kernel drops them when the process ends, however it ends;
    a forked child gives them up at once, so that workers that live on hold nothing. File systems that have no locks on
    folders (NFS) leave the lock on the file, which is as good as the server's locks are.

    Args:
        folder: made if missing.

    Raises:
        FolderInUseError: (on entering) another process, or this one, holds it.
        CheckpointError: (on entering) ``.lock`` is a link or no file.
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
            # The folder first: its lock cannot be lost by deleting the file ``.lock``.
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
            _rewrite(self._file, b"")
        self.release()
        self._instances.discard(self)

    def release(self) -> None:
        """Close both files: in a forked child that leaves the parent's locks as they are."""
        for descriptor in (self._file, self._folder):
            if descriptor is not None:
                os.close(descriptor)
        self._file = None
        self._folder = None

    @classmethod
    def release_in_child(cls) -> None:
        """Let go of everything that the parent holds; for a process that was just forked."""
        for lock in cls._instances:
            lock.release()
        cls._instances.clear()

    def _locked_file(self) -> int:
        """Open and lock the file that has the name of the lock when it is locked.

        Raises:
            FolderInUseError: another process holds it, or it is deleted again and again.
            CheckpointError: it is a link or no file.
        """
        # Between open and lock the file may be deleted: then the lock is on a file that nobody else will open.
        for _ in range(_TRIES):
            try:
                file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.EISDIR):
                    raise
                raise CheckpointError(
                    f"{self.path} is a link or a folder, not the file of a lock: delete it"
                ) from error
            if not _lock_file(file):
                os.close(file)
                raise FolderInUseError(_describe_owner(self.path))
            if _has_name(file, self.path):
                return file
            os.close(file)  # it was deleted or replaced between the two
        raise FolderInUseError(f"{self.path} is replaced again and again: stop what does that")


def _lock_folder(folder: int) -> bool:
    """Lock a folder; False where another has it. A file system without such locks leaves it to the file's."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _LOCKED_ERRNOS:
            return False
        if error.errno not in _NO_LOCKS_ON_FOLDERS:
            raise
    return True


def _lock_file(file: int) -> bool:
    """Lock a file; False where another has it, a process of an earlier version included."""
    try:
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
    """Whether an open file is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(file), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def _owner_json() -> bytes:
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "since": datetime.now(UTC).isoformat(timespec="seconds")}
    return json.dumps(owner).encode()


def _write_owner(file: int) -> None:
    """Write into the lock's file who holds it; on a full disk the lock holds without that."""
    try:
        _rewrite(file, _owner_json())
    except OSError as error:
        if not lacks_space(error):
            raise


def _rewrite(descriptor: int, content: bytes) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, content, 0)


def _describe_owner(path: Path) -> str:
    """Say who holds a folder, as far as its lock file tells."""
    owner = _owner(path)
    host, pid, since = (str(owner.get(name, "unknown"))[:64] for name in ("host", "pid", "since"))
    if (host, pid) == (socket.gethostname(), str(os.getpid())):
        return f"{path.parent} is already held by this process (pid {pid}): use one Run per folder"
    what_to_do = f"wait for it, stop it (kill {pid} on {host}), or give this run another folder"
    return f"{path.parent} is being written by process {pid} on host {host} since {since}: {what_to_do}"


def _owner(path: Path) -> dict[str, Any]:
    """Return what a lock file says of its owner; nothing where it cannot be read."""
    try:
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


os.register_at_fork(after_in_child=FolderLock.release_in_child)
