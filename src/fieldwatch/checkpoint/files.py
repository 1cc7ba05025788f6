"""Durable file operations: files are written, synced and then renamed; folders are renamed before deletion."""

import errno
import os
import shutil
import stat
from pathlib import Path

from fieldwatch.base import sync_folder
from fieldwatch.checkpoint.incident import DamageError


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, and sync each to disk."""
    if folder.is_dir():
        return
    # Each new entry must be synced in its parent, or a power failure may lose the whole path.
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def preallocate(path: Path, size: int) -> None:
    """Create a file of ``size`` bytes with all blocks allocated, so that a full disk is detected before writing."""
    # O_EXCL refuses an existing file or link.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        if size:
            os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)


def rename_synced(old: Path, new: Path) -> None:
    """Rename within one folder, and return when the new name is synced to disk."""
    # A rename within a folder is atomic: readers see the old or the new name.
    old.rename(new)
    sync_folder(new.parent)


def delete_folder(folder: Path) -> None:
    """Delete a folder, renaming it first."""
    # A half-deleted folder under its original name would look like a damaged checkpoint.
    trash = folder.with_name(f".trash-{folder.name}-{os.getpid()}-{os.urandom(4).hex()}")
    folder.rename(trash)
    # Delete only the link, not the folder that it points to.
    if trash.is_symlink():
        trash.unlink()
        return
    shutil.rmtree(trash)


def open_regular(path: Path) -> int:
    """Open a regular file for reading; links, pipes and devices are refused.

    Returns:
        The file descriptor, which the caller must close.

    Raises:
        DamageError: if the file is missing or not a regular file.
    """
    try:
        # `O_NONBLOCK`, because opening a pipe in place of the file would block forever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
            raise DamageError(f"{path.name} is missing or not a regular file") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DamageError(f"{path.name} is not a regular file: a checkpoint contains regular files only")
    return descriptor


def forget_cached(path: Path) -> None:
    """Ask the kernel to drop a synced file from the page cache, so that the next read comes from the disk."""
    descriptor = open_regular(path)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def read_into(descriptor: int, target: memoryview, offset: int, name: str) -> None:
    """Fill ``target`` from a file, starting at byte ``offset``.

    Raises:
        DamageError: if the file is too short or the disk cannot read it.
    """
    done = 0
    while done < len(target):
        try:
            # A call may return fewer bytes than requested, for example at a signal or beyond 2 GB.
            got = os.preadv(descriptor, [target[done:]], offset + done)
        except OSError as error:
            if error.errno == errno.EIO:
                raise DamageError(f"{name} cannot be read: {error}") from error
            raise
        if not got:
            raise DamageError(f"{name} ends {len(target) - done:,} bytes early")
        done += got


def read_small(path: Path, largest: int) -> bytes:
    """Read an entire regular file of at most ``largest`` bytes.

    Raises:
        DamageError: if the file is missing, not a regular file, or longer.
    """
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        if size > largest:
            raise DamageError(f"{path.name} has {size:,} bytes, expected at most {largest:,}")
        content = bytearray(size)
        read_into(descriptor, memoryview(content), 0, path.name)
        return bytes(content)
    finally:
        os.close(descriptor)
