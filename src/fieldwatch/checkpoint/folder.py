"""One checkpoint's folder, written whole and read with every hash checked.

``tensors.bin`` holds raw arrays, each at a multiple of 64 bytes; ``manifest.json`` says what they are;
``manifest.sha256`` is that file's hash.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fieldwatch.checkpoint.array import Array, Source
from fieldwatch.checkpoint.files import (
    forget_cached,
    open_regular,
    read_into,
    read_small,
    reserve,
    sync_folder,
    write_synced,
)
from fieldwatch.checkpoint.incident import DamageError
from fieldwatch.checkpoint.manifest import ALIGNMENT, LARGEST, Entry, Manifest, aligned, decode, seal
from fieldwatch.checkpoint.tree import Packer
from fieldwatch.checkpoint.unpack import Unpacker

TENSORS, MANIFEST, SEAL = "tensors.bin", "manifest.json", "manifest.sha256"
T = TypeVar("T")
HASHING = min(4, os.cpu_count() or 1)
_PIECE = 8 * 2**20


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What goes into a checkpoint, and what comes out.

    Attributes:
        step: the step it was made at.
        metrics: the figures it is ranked by.
        note: the caller's note, any tree.
        items: each item's tree.
    """

    step: int
    metrics: Mapping[str, float]
    note: Any
    items: Mapping[str, Any]


Hold = Callable[[Sequence[Source]], list[Array]]
"""What takes the bytes of arrays: shares their memory, or copies them."""


def shared(sources: Sequence[Source]) -> list[Array]:
    """Take the bytes where they are; those on a device come to the host."""
    return [source.array() for source in sources]


class Draft:
    """Contents taken apart, with every array's place known: ready to be written.

    Args:
        contents: what to write.
        hold: takes the arrays' bytes. By default they are shared, so that nothing may change until all is written.

    Attributes:
        step: the step it is made at.
        nbytes: what its arrays take on the disk.

    Raises:
        CheckpointError: it holds a value that cannot be stored; the message names its path.
    """

    def __init__(self, contents: Contents, hold: Hold = shared) -> None:
        packer = Packer()
        self._contents, self.step = contents, contents.step
        self._items = {name: packer.pack(tree, f"items[{name!r}]") for name, tree in contents.items.items()}
        self._arrays = hold(packer.sources)
        self._packer, self._note = packer, None
        self.put_note(contents.note)

    def put_note(self, note: Any) -> None:
        """Give it the caller's note, where that was not known when the items were taken.

        Raises:
            CheckpointError: it holds a value that cannot be stored.
        """
        self._note = self._packer.pack(note, "note")
        self._arrays += shared(self._packer.sources[len(self._arrays) :])
        self.nbytes = sum(aligned(array.raw.size) for array in self._arrays)

    def release(self) -> None:
        """Let go of the arrays; it can be written no more."""
        self._arrays, self._packer = [], Packer()

    def write(self, folder: Path, *, threads: int = HASHING) -> None:
        """Write all files into an empty folder and return when they are on the disk.

        Args:
            folder: where to.
            threads: how many hash while one more writes.

        Raises:
            OSError: the disk is full or fails.
        """
        reserve(folder / TENSORS, self.nbytes)
        with ThreadPoolExecutor(threads) as pool:
            sums = _sums(self._arrays, pool)
            write_synced(folder / TENSORS, _padded(self._arrays))
            manifest = self._manifest(sums()).encode()
        write_synced(folder / MANIFEST, [manifest])
        write_synced(folder / SEAL, [seal(manifest)])
        sync_folder(folder)

    def _manifest(self, sums: Sequence[str]) -> Manifest:
        offset, entries = 0, list[Entry]()
        for array, sha256 in zip(self._arrays, sums, strict=True):
            nbytes = array.raw.size
            entries.append(Entry(dtype=array.dtype, shape=array.shape, offset=offset, nbytes=nbytes, sha256=sha256))
            offset = aligned(offset + nbytes)
        return Manifest(
            step=self._contents.step,
            created=datetime.now(UTC).isoformat(timespec="milliseconds"),
            metrics=dict(self._contents.metrics),
            note=self._note,
            items=self._items,
            tensors=tuple(entries),
        )


def read_manifest(folder: Path) -> Manifest:
    """Read a checkpoint's manifest, checking its hash, every field and the size of the tensors' file.

    Raises:
        DamageError: something is wrong with it.
        CheckpointError: it was written by a newer fieldwatch.
    """
    text = read_small(folder / MANIFEST, LARGEST)
    if read_small(folder / SEAL, 1024) != seal(text):
        raise DamageError(f"{MANIFEST} does not have the hash that {SEAL} names")
    manifest = decode(text)
    check_size(folder, manifest)
    return manifest


def check_size(folder: Path, manifest: Manifest) -> None:
    """Check that the tensors' file is as long as the manifest says.

    Raises:
        DamageError: it is not, or is missing.
    """
    last = manifest.tensors[-1:]
    wanted = aligned(last[0].offset + last[0].nbytes) if last else 0
    descriptor = open_regular(folder / TENSORS)
    size = os.fstat(descriptor).st_size
    os.close(descriptor)
    if size != wanted:
        raise DamageError(f"{TENSORS} has {size:,} bytes, the manifest wants {wanted:,}")


def read_folder(folder: Path) -> Contents:
    """Read a checkpoint into memory, checking every hash.

    Raises:
        DamageError: something is wrong with it.
        CheckpointError: it was written by a newer fieldwatch.
    """
    manifest = read_manifest(folder)
    unpacker = Unpacker(_read_arrays(folder / TENSORS, manifest.tensors))
    items = {name: unpacker.unpack(node) for name, node in manifest.items.items()}
    return Contents(step=manifest.step, metrics=manifest.metrics, note=unpacker.unpack(manifest.note), items=items)


def verify_folder(folder: Path) -> None:
    """Read a checkpoint back from the disk, not from the system's memory, and check every hash; nothing is kept.

    Raises:
        DamageError: something is wrong with it.
        OSError: it cannot be read.
    """
    for name in (TENSORS, MANIFEST, SEAL):
        forget_cached(folder / name)
    entries = read_manifest(folder).tensors
    descriptor = open_regular(folder / TENSORS)
    try:
        for number, entry in enumerate(entries):
            _verify_array(descriptor, entry, number)
    finally:
        os.close(descriptor)


def _verify_array(descriptor: int, entry: Entry, number: int) -> None:
    summed, piece = hashlib.sha256(), memoryview(bytearray(min(entry.nbytes, _PIECE)))
    for start in range(0, entry.nbytes, _PIECE):
        part = piece[: entry.nbytes - start]
        read_into(descriptor, part, entry.offset + start, TENSORS)
        summed.update(part)
    if summed.hexdigest() != entry.sha256:
        what = f"array {number} ({entry.dtype} {entry.shape})"
        raise DamageError(f"{TENSORS}: {what} does not have the hash written with it")


def _padded(arrays: Sequence[Array]) -> Iterator[memoryview]:
    zeros = memoryview(bytes(ALIGNMENT))
    for array in arrays:
        yield array.raw.data
        yield zeros[: aligned(array.raw.size) - array.raw.size]


def _read_arrays(path: Path, entries: Sequence[Entry]) -> list[Array]:
    """Read and check all arrays: each thread reads and hashes its own share."""
    descriptor = open_regular(path)

    def read(share: list[int]) -> dict[int, Array]:
        return {i: _read_array(descriptor, entries[i], i) for i in share}

    try:
        with ThreadPoolExecutor(HASHING) as pool:
            parts = list(pool.map(read, _shares([entry.nbytes for entry in entries])))
    finally:
        os.close(descriptor)
    return _in_order(parts)


def _sums(arrays: Sequence[Array], pool: ThreadPoolExecutor) -> Callable[[], list[str]]:
    """Start hashing; the returned function waits for the hashes."""

    def hashes(share: list[int]) -> dict[int, str]:
        return {i: _sha256(arrays[i].raw) for i in share}

    parts = pool.map(hashes, _shares([array.raw.size for array in arrays]))
    return lambda: _in_order(list(parts))


def _in_order(parts: Sequence[dict[int, T]]) -> list[T]:
    whole = {i: value for part in parts for i, value in part.items()}
    return [whole[i] for i in range(len(whole))]


def _shares(sizes: Sequence[int]) -> list[list[int]]:
    """Deal out the indices to the threads, largest first: few hand-overs, about equal work."""
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    return [order[k::HASHING] for k in range(HASHING)]


def _read_array(descriptor: int, entry: Entry, number: int) -> Array:
    whole = np.empty(aligned(entry.nbytes), np.uint8)
    read_into(descriptor, whole.data, entry.offset, TENSORS)
    raw = whole[: entry.nbytes]
    if whole[entry.nbytes :].any():
        raise DamageError(f"{TENSORS} is not zero between two arrays, after byte {entry.offset + entry.nbytes}")
    if _sha256(raw) != entry.sha256:
        what = f"array {number} ({entry.dtype} {entry.shape})"
        raise DamageError(f"{TENSORS}: {what} does not have the hash written with it")
    if entry.dtype == "bool" and raw.size and raw.max() > 1:
        raise DamageError(f"{TENSORS} holds a bool that is neither 0 nor 1")
    return Array(dtype=entry.dtype, shape=entry.shape, raw=raw)


def _sha256(raw: NDArray[np.uint8]) -> str:
    return hashlib.sha256(raw.data).hexdigest()
