"""Files that are there whole or not at all, files that survive a power cut, and opening without following links."""

import errno
import os
import stat
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from fieldwatch.base.errors import InputError

_OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe without a reader must not block


@contextmanager
def whole_file(path: Path) -> Generator[Path]:
    """Give out a path to write to; the file gets its name when it is complete, and whoever fails leaves none behind.

    A link at ``path`` is replaced by the file; what it leads to is not touched.

    Args:
        path: where the file is to be; its folder is made, a file that is there is replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}")  # nobody can have put a link there
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_file(path: Path, data: bytes, *, durable: bool = False) -> Path:
    """Write a file whole or not at all, as :func:`whole_file` does; return its path.

    Args:
        path: where the file is to be.
        data: its contents.
        durable: return only when the contents and the name are on the disk, so that a power cut leaves the old file or
            the new one.
    """
    # Where durable, contents are synced before the name: after a power cut no name leads to missing contents.
    with whole_file(path) as draft:
        if durable:
            write_synced(draft, [data])
        else:
            draft.write_bytes(data)
    if durable:
        sync_folder(path.parent)
    return path


def write_synced(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write an empty, a reserved or a new file from its first byte on, and return when its contents are on the disk."""
    # Not O_TRUNC: blocks that were reserved for the file must stay its own.
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
        # A write may take a part only, at 2 GiB or on a disk that is nearly full.
        done += os.write(descriptor, piece[done:])


def sync_folder(folder: Path) -> None:
    """Return when the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_for_append(path: Path) -> FileIO:
    """Open a file for appending, unbuffered; made if missing, its folder too.

    Raises:
        InputError: there is a link, a folder, a pipe or a device in its place; the message names it.
    """
    return _open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, "ab")


def open_new(path: Path) -> FileIO:
    """Open a file for writing from its start, unbuffered; what it held is lost; made if missing, its folder too.

    Raises:
        InputError: there is a link, a folder, a pipe or a device in its place; nothing is lost.
    """
    file = _open_regular(path, os.O_WRONLY | os.O_CREAT, "wb")  # not O_TRUNC: what is opened is looked at first
    os.ftruncate(file.fileno(), 0)
    return file


def open_for_update(path: Path) -> FileIO:
    """Open a file that exists for reading and writing in place, unbuffered.

    Raises:
        FileNotFoundError: it is missing.
        InputError: there is a link, a folder, a pipe or a device in its place.
    """
    return _open_regular(path, os.O_RDWR, "r+b")


def _open_regular(path: Path, flags: int, mode: str) -> FileIO:
    if flags & os.O_CREAT:
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, flags | _OPEN_FLAGS, 0o644)
    except OSError as error:
        # A link, a pipe that nobody reads (or a socket), a folder.
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise _not_a_regular_file(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_a_regular_file(path)
    # Not to block was for the opening alone.
    os.set_blocking(descriptor, True)
    return FileIO(descriptor, mode)


def _not_a_regular_file(path: Path) -> InputError:
    what = "a symbolic link" if path.is_symlink() else "a folder" if path.is_dir() else "a pipe, socket or device"
    return InputError(
        f"{path}: expected a regular file or none, got {what}, and nothing is written through it: delete it, or put "
        "the file itself there"
    )
