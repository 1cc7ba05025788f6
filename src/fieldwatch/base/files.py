"""Atomic and durable file writing, and opening files without following links."""

import errno
import os
import shutil
import stat
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from fieldwatch.base.errors import InputError

# O_NONBLOCK, since opening a pipe without a reader would block.
_OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@contextmanager
def whole_file(path: Path) -> Generator[Path]:
    """Yield a temporary path to write to, which is renamed to ``path`` on success and deleted on failure.

    A link at ``path`` is replaced; its target is not changed.

    Args:
        path: final path; its folder is created if missing, an existing file is replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}")  # unguessable: no link is there
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path, *, replace: bool = False) -> Generator[Path]:
    """Yield a temporary folder to write into, which is renamed to ``path`` on success and deleted on failure.

    Args:
        path: final path; its parent is created if missing.
        replace: whether an existing folder is replaced. Otherwise, the rename fails if there is one with content.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Next to the final path, because a rename is atomic only within one file system.
    draft, old = (path.with_name(f".{path.name}.{os.getpid()}{end}") for end in ("", ".old"))
    draft.mkdir()
    try:
        yield draft
        # Rename an old folder instead of deleting it: if the second rename fails, no data is lost yet.
        if replace and path.exists():
            path.replace(old)
        draft.replace(path)
    finally:
        for left in (draft, old):
            if left.exists():
                shutil.rmtree(left)


def write_file(path: Path, data: bytes, *, durable: bool = False) -> Path:
    """Write a file atomically, as :func:`whole_file` does, and return its path.

    Args:
        path: path of the file.
        data: content of the file.
        durable: whether to sync the content and the name to disk, so that a power cut leaves either the old or the new
            file.
    """
    # If durable, sync the content before the rename: after a power cut, no name may refer to missing content.
    with whole_file(path) as draft:
        if durable:
            write_synced(draft, [data])
        else:
            draft.write_bytes(data)
    if durable:
        sync_folder(path.parent)
    return path


def write_synced(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a new, empty or preallocated file from its first byte, and sync its content to disk."""
    # Without O_TRUNC, so that blocks preallocated for the file are kept.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        for piece in pieces:
            _write_all(descriptor, memoryview(piece))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, piece: memoryview) -> None:
    done = 0
    while done < len(piece):
        # A write may be partial: above 2 GiB, or on a disk that is nearly full.
        done += os.write(descriptor, piece[done:])


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_for_append(path: Path) -> FileIO:
    """Open a file for appending, unbuffered; create it and its folder if missing.

    Raises:
        InputError: the path is a link, a folder, a pipe or a device.
    """
    return _open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, "ab")


def open_new(path: Path) -> FileIO:
    """Open an empty file for writing, unbuffered; truncate an existing one, and create its folder if missing.

    Raises:
        InputError: the path is a link, a folder, a pipe or a device; nothing is changed.
    """
    # Without O_TRUNC, so that nothing is lost if the file turns out not to be a regular one.
    file = _open_regular(path, os.O_WRONLY | os.O_CREAT, "wb")
    os.ftruncate(file.fileno(), 0)
    return file


def open_for_update(path: Path) -> FileIO:
    """Open an existing file for reading and writing in place, unbuffered.

    Raises:
        FileNotFoundError: the file is missing.
        InputError: the path is a link, a folder, a pipe or a device.
    """
    return _open_regular(path, os.O_RDWR, "r+b")


def _open_regular(path: Path, flags: int, mode: str) -> FileIO:
    if flags & os.O_CREAT:
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, flags | _OPEN_FLAGS, 0o644)
    except OSError as error:
        # ELOOP is a link, ENXIO a pipe without a reader or a socket, EISDIR a folder.
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise _not_a_regular_file(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_a_regular_file(path)
    # O_NONBLOCK was only for the call to open.
    os.set_blocking(descriptor, True)
    return FileIO(descriptor, mode)


def _not_a_regular_file(path: Path) -> InputError:
    what = "a symbolic link" if path.is_symlink() else "a folder" if path.is_dir() else "a pipe, socket or device"
    return InputError(
        f"{path}: expected a regular file or none, got {what}, which is not written to: delete it, or replace it by "
        "the file"
    )
