"""One checkpoint's folder, written whole and read with every hash checked.

``tensors.safetensors`` holds the arrays (``tensors.bin`` in version 1, see `fieldwatch.checkpoint.layout`);
``manifest.json`` says what they are, and holds everything else; ``manifest.sha256`` is that file's hash.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
from numpy.typing import NDArray

from fieldwatch.base import sync_folder, write_synced
from fieldwatch.checkpoint.array import Array, ArraySource
from fieldwatch.checkpoint.files import (
    forget_cached,
    open_regular,
    preallocate,
    read_into,
    read_small,
)
from fieldwatch.checkpoint.incident import DamageError, StoredStateError
from fieldwatch.checkpoint.layout import LAYOUTS, VERSION, ArrayEntry, ArrayLayout, file_size
from fieldwatch.checkpoint.manifest import MAX_MANIFEST_BYTES, CheckpointManifest, decode, seal
from fieldwatch.checkpoint.tree import Packer
from fieldwatch.checkpoint.unpack import Unpacker

MANIFEST = "manifest.json"
SEAL = "manifest.sha256"
Value = TypeVar("Value")
HASH_THREADS = min(4, os.cpu_count() or 1)
_CHUNK_BYTES = 8 * 2**20


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


CopyArrays = Callable[[Sequence[ArraySource]], list[Array]]
"""What takes the bytes of arrays: shares their memory, or copies them."""


def share_memory(sources: Sequence[ArraySource]) -> list[Array]:
    """Take the bytes where they are; those on a device come to the host."""
    return [source.array() for source in sources]


class Draft:
    """Contents taken apart, with every array's place known: ready to be written.

    Args:
        contents: what to write.
        copy_arrays: takes the arrays' bytes. By default they are shared: then nothing may change until all is written.

    Attributes:
        step: the step it is made at.
        nbytes: what its arrays take on the disk, without the header before them.

    Raises:
        CheckpointError: it holds a value that cannot be stored; the message names its path.
    """

    def __init__(self, contents: Contents, copy_arrays: CopyArrays = share_memory) -> None:
        packer = Packer()
        self._contents = contents
        self.step = contents.step
        self._items = {name: packer.pack(tree, ("items", name)) for name, tree in contents.items.items()}
        self._arrays = copy_arrays(packer.sources)
        self._packer = packer
        self._note = None
        self._run = ""
        self.put_note(contents.note)

    def put_note(self, note: Any) -> None:
        """Give it the caller's note, where that was not known when the items were taken.

        Raises:
            CheckpointError: it holds a value that cannot be stored.
        """
        self._note = self._packer.pack(note, ("note",))
        self._arrays += share_memory(self._packer.sources[len(self._arrays) :])
        self.nbytes = sum(array.raw.size for array in self._arrays)

    def put_run(self, text: str) -> None:
        """Give it the contents of the run's run.json, so that they can be made anew from this checkpoint."""
        self._run = text

    def release(self) -> None:
        """Let go of the arrays; it can be written no more."""
        self._arrays = []
        self._packer = Packer()

    def write(self, folder: Path, *, threads: int = HASH_THREADS) -> None:
        """Write all files into an empty folder and return when they are on the disk.

        Args:
            folder: where to.
            threads: how many hash while one more writes.

        Raises:
            OSError: the disk is full or fails.
        """
        layout = LAYOUTS[VERSION]
        entries = self._entries()
        file = folder / layout.file
        header = layout.header(entries)
        # A full disk shows here, before anything is written.
        preallocate(file, file_size(layout, header, entries))
        with ThreadPoolExecutor(threads) as pool:
            # Hashing and writing run at the same time: both read the same memory, and neither changes it.
            hashes_when_done = _start_hashing(self._arrays, pool)
            write_synced(file, self._file_contents(header, entries))
            hashed = [replace(entry, sha256=sha256) for entry, sha256 in zip(entries, hashes_when_done(), strict=True)]
        manifest = self._manifest(hashed).encode()
        write_synced(folder / MANIFEST, [manifest])
        # The seal comes last: a folder without it was never finished.
        write_synced(folder / SEAL, [seal(manifest)])
        sync_folder(folder)

    def _entries(self) -> list[ArrayEntry]:
        """Describe the arrays and give each its place; their hashes are not known yet."""
        entries = [
            ArrayEntry(name=name, dtype=array.dtype, shape=array.shape, nbytes=array.raw.size)
            for name, array in zip(self._packer.names, self._arrays, strict=True)
        ]
        offsets = LAYOUTS[VERSION].offsets(entries)
        return [replace(entry, offset=offset) for entry, offset in zip(entries, offsets, strict=True)]

    def _file_contents(self, header: bytes, entries: Sequence[ArrayEntry]) -> Iterator[bytes | memoryview]:
        """Yield the contents of the arrays' file."""
        yield header
        for i in sorted(range(len(entries)), key=lambda i: entries[i].offset):
            yield self._arrays[i].raw.data

    def _manifest(self, entries: Sequence[ArrayEntry]) -> CheckpointManifest:
        return CheckpointManifest(
            step=self._contents.step,
            created=datetime.now(UTC).isoformat(timespec="milliseconds"),
            metrics=dict(self._contents.metrics),
            note=self._note,
            items=self._items,
            tensors=tuple(entries),
            run=self._run,
        )


def read_manifest(folder: Path) -> CheckpointManifest:
    """Read a checkpoint's manifest, checking its hash, every field, and the size of the tensors' file.

    Raises:
        DamageError: something is wrong with it.
        CheckpointError: it was written by a newer fieldwatch.
    """
    manifest = _read_sealed(folder)
    _check_size(folder, manifest)
    return manifest


def _read_sealed(folder: Path) -> CheckpointManifest:
    if folder.is_symlink():
        raise DamageError(f"{folder.name} is a symbolic link, and a checkpoint is a folder of its own")
    text = read_small(folder / MANIFEST, MAX_MANIFEST_BYTES)
    if read_small(folder / SEAL, 1024) != seal(text):
        raise DamageError(f"{MANIFEST} does not have the hash that {SEAL} names")
    return decode(text)


def _check_size(folder: Path, manifest: CheckpointManifest) -> None:
    """Check that the tensors' file is as long as the manifest says."""
    file = manifest.layout.file
    wanted = file_size(manifest.layout, manifest.header, manifest.tensors)
    descriptor = open_regular(folder / file)
    size = os.fstat(descriptor).st_size
    os.close(descriptor)
    if size != wanted:
        raise DamageError(f"{file} has {size:,} bytes, the manifest wants {wanted:,}")


def _check_header(descriptor: int, manifest: CheckpointManifest) -> int:
    """Check that the tensors' file begins with the header that the manifest implies, and return the header's length.

    The header is compared and never parsed: nothing in it can mislead the reader.
    """
    found = bytearray(len(manifest.header))
    read_into(descriptor, memoryview(found), 0, manifest.layout.file)
    if bytes(found) != manifest.header:
        raise DamageError(f"{manifest.layout.file} does not begin with the header that follows from the manifest")
    return len(found)


def read_folder(folder: Path) -> Contents:
    """Read a checkpoint into memory, checking every hash.

    Raises:
        DamageError: something is wrong with it.
        CheckpointError: it was written by a newer fieldwatch, or does not fit into this machine's memory.
    """
    manifest = read_manifest(folder)
    _check_memory(manifest)
    unpacker = Unpacker(_read_arrays(folder, manifest))
    items = {name: unpacker.unpack(node) for name, node in manifest.items.items()}
    return Contents(step=manifest.step, metrics=manifest.metrics, note=unpacker.unpack(manifest.note), items=items)


def _check_memory(manifest: CheckpointManifest) -> None:
    """Refuse arrays that this machine cannot hold: a file with holes may claim terabytes and take no space."""
    wanted = sum(entry.nbytes for entry in manifest.tensors)
    memory = psutil.virtual_memory().total + psutil.swap_memory().total
    if wanted > memory:
        raise StoredStateError(
            f"its tensors take {wanted:,} bytes, expected at most the {memory:,} bytes of memory of this machine: "
            "use a machine with more memory"
        )


def verify_folder(folder: Path) -> None:
    """Read a checkpoint back from the disk, not from the system's memory, and check every hash; nothing is kept.

    Raises:
        DamageError: something is wrong with it.
        OSError: it cannot be read.
    """
    # Dropped from the page cache first: what is read below then comes from the disk.
    for name in (MANIFEST, SEAL):
        forget_cached(folder / name)
    manifest = _read_sealed(folder)
    file = folder / manifest.layout.file
    forget_cached(file)
    _check_size(folder, manifest)
    descriptor = open_regular(file)
    try:
        start = _check_header(descriptor, manifest)
        for number, entry in enumerate(manifest.tensors):
            _verify_array(descriptor, file.name, start, entry, number)
    finally:
        os.close(descriptor)


def _verify_array(descriptor: int, file: str, start: int, entry: ArrayEntry, number: int) -> None:
    summed = hashlib.sha256()
    buffer = memoryview(bytearray(min(entry.nbytes, _CHUNK_BYTES)))
    for done in range(0, entry.nbytes, _CHUNK_BYTES):
        part = buffer[: entry.nbytes - done]
        read_into(descriptor, part, start + entry.offset + done, file)
        summed.update(part)
    if summed.hexdigest() != entry.sha256:
        raise _wrong_hash(file, entry, number)


def _wrong_hash(file: str, entry: ArrayEntry, number: int) -> DamageError:
    what = f"array {number} ({entry.dtype} {entry.shape})"
    return DamageError(f"{file}: {what} does not have the hash written with it")


def _read_arrays(folder: Path, manifest: CheckpointManifest) -> list[Array]:
    """Read and check all arrays: each thread reads and hashes its own share."""
    entries = manifest.tensors
    descriptor = open_regular(folder / manifest.layout.file)

    def read(share: list[int]) -> dict[int, Array]:
        return {i: _read_array(descriptor, manifest.layout, start, entries[i], i) for i in share}

    try:
        start = _check_header(descriptor, manifest)
        with ThreadPoolExecutor(HASH_THREADS) as pool:
            parts = list(pool.map(read, _shares([entry.nbytes for entry in entries])))
    finally:
        os.close(descriptor)
    return _in_order(parts)


def _start_hashing(arrays: Sequence[Array], pool: ThreadPoolExecutor) -> Callable[[], list[str]]:
    """Start hashing; the returned function waits for the hashes."""

    def hashes(share: list[int]) -> dict[int, str]:
        return {i: _sha256(arrays[i].raw) for i in share}

    parts = pool.map(hashes, _shares([array.raw.size for array in arrays]))
    return lambda: _in_order(list(parts))


def _in_order(parts: Sequence[dict[int, Value]]) -> list[Value]:
    whole = {i: value for part in parts for i, value in part.items()}
    return [whole[i] for i in range(len(whole))]


def _shares(sizes: Sequence[int]) -> list[list[int]]:
    """Deal out the indices to the threads, largest first: few hand-overs, about equal work."""
    # Dealing out by falling size keeps the shares about equal without a queue between the threads.
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    return [order[k::HASH_THREADS] for k in range(HASH_THREADS)]


def _read_array(descriptor: int, layout: ArrayLayout, start: int, entry: ArrayEntry, number: int) -> Array:
    whole = np.empty(layout.padded(entry.nbytes), np.uint8)
    read_into(descriptor, whole.data, start + entry.offset, layout.file)
    raw = whole[: entry.nbytes]
    # No hash covers the padding, and a format without slack leaves no place to hide data.
    if whole[entry.nbytes :].any():
        raise DamageError(f"{layout.file} is not zero between two arrays, after byte {entry.offset + entry.nbytes}")
    if _sha256(raw) != entry.sha256:
        raise _wrong_hash(layout.file, entry, number)
    # torch and numpy assume 0 and 1; another byte behaves differently from operation to operation.
    if entry.dtype == "bool" and raw.size and raw.max() > 1:
        raise DamageError(f"{layout.file} holds a bool that is neither 0 nor 1")
    return Array(dtype=entry.dtype, shape=entry.shape, raw=raw)


def _sha256(raw: NDArray[np.uint8]) -> str:
    return hashlib.sha256(raw.data).hexdigest()
