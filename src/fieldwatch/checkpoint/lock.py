"""One process at a time writes into a run's folder."""

import fcntl
import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, cast, final

from fieldwatch.checkpoint.files import make_folder
from fieldwatch.checkpoint.incident import CheckpointError


class FolderInUseError(CheckpointError):
    """Another process writes into the folder; the message says which."""


@final
class OneWriter:
    """A context manager that holds a folder for this process alone.

    It is a POSIX record lock on ``.lock``: the kernel drops it when the process ends, however it ends, even while
    forked workers live on. It is also dropped when this process closes *any* descriptor of that file, so nothing else
    in it may open the file; and on NFS it is not reliable.

    Args:
        folder: made if missing.

    Raises:
        FolderInUseError: (on entering) another process, or this one, holds it.
    """

    _held: ClassVar[set[tuple[int, Path]]] = set()

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder).absolute() / ".lock"
        self._descriptor: int | None = None

    def __enter__(self) -> "OneWriter":
        make_folder(self.path.parent)
        key = (os.getpid(), self.path.resolve())
        if key in self._held:  # opening and closing it here would drop the lock
            raise FolderInUseError(
                f"{self.path.parent} is already held by this process (pid {key[0]}): use one Run per folder"
            )
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            owner = os.pread(descriptor, 4096, 0)
            os.close(descriptor)
            raise FolderInUseError(_refusal(self.path.parent, owner)) from error
        self._held.add(key)
        self._descriptor = descriptor
        _rewrite(descriptor, _present_owner())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        key = (os.getpid(), self.path.resolve())
        if self._descriptor is not None and key in self._held:
            _rewrite(self._descriptor, b"")
            os.close(self._descriptor)
            self._held.discard(key)
        self._descriptor = None


def _present_owner() -> bytes:
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "since": datetime.now(UTC).isoformat(timespec="seconds")}
    return json.dumps(owner).encode()


def _rewrite(descriptor: int, content: bytes) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, content, 0)


def _refusal(folder: Path, content: bytes) -> str:
    try:
        owner: Any = json.loads(content)
    except ValueError:
        owner = {}
    known = cast("dict[str, Any]", owner) if isinstance(owner, dict) else {}
    host, pid, since = (known.get(name, "unknown") for name in ("host", "pid", "since"))
    what_to_do = f"wait for it, stop it (kill {pid} on {host}), or give this run another folder"
    return f"{folder} is being written by process {pid} on host {host} since {since}: {what_to_do}"
