"""Reading and writing the folder of one checkpoint, with every hash verified.

``tensors.safetensors`` contains the arrays (``tensors.bin`` in version 1, see `fieldwatch.checkpoint.layout`),
``manifest.json`` describes them and contains everything else, and ``manifest.sha256`` is the hash of the manifest.
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
# Size of a read when a checkpoint is verified without keeping its contents.
_CHUNK_BYTES = 8 * 2**20


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Contents of a checkpoint.

    Attributes:
        step: number of finished steps.
        metrics: metrics of the checkpoint.
        note: the caller's note, any tree.
        items: tree of each item, by name.
    """

    step: int
    metrics: Mapping[str, float]
    note: Any
    items: Mapping[str, Any]


CopyArrays = Callable[[Sequence[ArraySource]], list[Array]]
"""Function that takes the bytes of arrays, either sharing their memory or copying them."""


def share_memory(sources: Sequence[ArraySource]) -> list[Array]:
    """Return arrays that share the memory of the sources; arrays on a device are copied to the host."""
    return [source.array() for source in sources]


class Draft:
    """Contents of a checkpoint, packed into JSON and arrays, ready to be written.

    Args:
        contents: contents to write.
        copy_arrays: function that takes the arrays' bytes. By default their memory is shared; then they must not
            change until everything is written.

    Attributes:
        step: number of finished steps.
        nbytes: size of the arrays on the disk in bytes, without the header.

    Raises:
        CheckpointError: if a value cannot be stored; the message contains its path.
    """

    def __init__(self, contents: Contents, copy_arrays: CopyArrays = share_memory) -> None:
        # The note is packed later, into the same packer, because its tensors may be shared with the items.
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
        """Set the caller's note, which may be unknown when the items are taken.

        Raises:
            CheckpointError: if the note contains a value that cannot be stored.
        """
        self._note = self._packer.pack(note, ("note",))
        # Only the arrays that the note has added.
        self._arrays += share_memory(self._packer.sources[len(self._arrays) :])
        self.nbytes = sum(array.raw.size for array in self._arrays)

    def put_run(self, text: str) -> None:
        """Set the contents of the run's run.json, so that the file can be recreated from this checkpoint."""
        self._run = text

    def release(self) -> None:
        """Release the arrays; the draft cannot be written afterwards."""
        self._arrays = []
        self._packer = Packer()

    def write(self, folder: Path, *, threads: int = HASH_THREADS) -> None:
        """Write all files into an empty folder and return when they are synced to disk.

        Args:
            folder: target folder.
            threads: number of hashing threads, in addition to the one that writes.

        Raises:
            OSError: if the disk is full or fails.
        """
        layout = LAYOUTS[VERSION]
        entries = self._entries()
        file = folder / layout.file
        header = layout.header(entries)
        # A full disk is detected here, before anything is written.
        preallocate(file, file_size(layout, header, entries))
        with ThreadPoolExecutor(threads) as pool:
            # Hashing and writing run concurrently: both only read the memory.
            hashes_when_done = _start_hashing(self._arrays, pool)
            write_synced(file, self._file_contents(header, entries))
            hashed = [replace(entry, sha256=sha256) for entry, sha256 in zip(entries, hashes_when_done(), strict=True)]
        manifest = self._manifest(hashed).encode()
        write_synced(folder / MANIFEST, [manifest])
        # The hash of the manifest comes last: a folder without it is incomplete.
        write_synced(folder / SEAL, [seal(manifest)])
        sync_folder(folder)

    def _entries(self) -> list[ArrayEntry]:
        """Return the entries of the arrays with their offsets; their hashes are not known yet."""
        entries = [
            ArrayEntry(name=name, dtype=array.dtype, shape=array.shape, nbytes=array.raw.size)
            for name, array in zip(self._packer.names, self._arrays, strict=True)
        ]
        # Offsets depend only on sizes, so the file can be allocated before hashing is done.
        offsets = LAYOUTS[VERSION].offsets(entries)
        return [replace(entry, offset=offset) for entry, offset in zip(entries, offsets, strict=True)]

    def _file_contents(self, header: bytes, entries: Sequence[ArrayEntry]) -> Iterator[bytes | memoryview]:
        """Yield the contents of the arrays' file, ordered by offset."""
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
    """Read the manifest of a checkpoint; verify its hash, every field, and the size of the tensors' file.

    Raises:
        DamageError: if the checkpoint is damaged.
        CheckpointError: if it was written by a newer fieldwatch.
    """
    manifest = _read_sealed(folder)
    _check_size(folder, manifest)
    return manifest


def _read_sealed(folder: Path) -> CheckpointManifest:
    # A link could point to any folder outside the run.
    if folder.is_symlink():
        raise DamageError(f"{folder.name} is a symbolic link; a checkpoint must be a regular folder")
    text = read_small(folder / MANIFEST, MAX_MANIFEST_BYTES)
    if read_small(folder / SEAL, 1024) != seal(text):
        raise DamageError(f"{MANIFEST} does not have the hash in {SEAL}")
    return decode(text)


def _check_size(folder: Path, manifest: CheckpointManifest) -> None:
    """Check that the tensors' file has the size that follows from the manifest."""
    file = manifest.layout.file
    expected = file_size(manifest.layout, manifest.header, manifest.tensors)
    descriptor = open_regular(folder / file)
    size = os.fstat(descriptor).st_size
    os.close(descriptor)
    if size != expected:
        raise DamageError(f"{file} has {size:,} bytes, expected {expected:,} according to the manifest")


def _check_header(descriptor: int, manifest: CheckpointManifest) -> int:
    """Check that the tensors' file begins with the header that follows from the manifest; return the header's length.

    The header is compared and never parsed, so its contents cannot mislead the reader.
    """
    header = bytearray(len(manifest.header))
    read_into(descriptor, memoryview(header), 0, manifest.layout.file)
    if bytes(header) != manifest.header:
        raise DamageError(f"{manifest.layout.file} does not begin with the header that follows from the manifest")
    return len(header)


def read_folder(folder: Path) -> Contents:
    """Read a checkpoint into memory and verify every hash.

    Raises:
        DamageError: if the checkpoint is damaged.
        CheckpointError: if it was written by a newer fieldwatch, or does not fit into the memory of this machine.
    """
    # The manifest is verified before any array is allocated.
    manifest = read_manifest(folder)
    _check_memory(manifest)
    unpacker = Unpacker(_read_arrays(folder, manifest))
    items = {name: unpacker.unpack(node) for name, node in manifest.items.items()}
    return Contents(step=manifest.step, metrics=manifest.metrics, note=unpacker.unpack(manifest.note), items=items)


def _check_memory(manifest: CheckpointManifest) -> None:
    """Refuse arrays that do not fit into the memory of this machine."""
    # A sparse file may claim terabytes and occupy no space on the disk.
    nbytes = sum(entry.nbytes for entry in manifest.tensors)
    memory = psutil.virtual_memory().total + psutil.swap_memory().total
    if nbytes > memory:
        raise StoredStateError(
            f"its tensors take {nbytes:,} bytes, but this machine has only {memory:,} bytes of memory: "
            "use a machine with more memory"
        )


def verify_folder(folder: Path) -> None:
    """Verify every hash of a checkpoint, reading from the disk instead of the page cache.

    Raises:
        DamageError: if the checkpoint is damaged.
        OSError: if it cannot be read.
    """
    # Dropped from the page cache first, so that the reads below come from the disk.
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
    # One buffer for all chunks: a checkpoint may be larger than the memory.
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
    """Read and verify all arrays; each thread reads and hashes its own part."""
    entries = manifest.tensors
    descriptor = open_regular(folder / manifest.layout.file)

    def read(share: list[int]) -> dict[int, Array]:
        return {i: _read_array(descriptor, manifest.layout, start, entries[i], i) for i in share}

    try:
        start = _check_header(descriptor, manifest)
        # hashlib and preadv release the interpreter lock, so threads run in parallel.
        with ThreadPoolExecutor(HASH_THREADS) as pool:
            parts = list(pool.map(read, _shares([entry.nbytes for entry in entries])))
    finally:
        os.close(descriptor)
    return _in_order(parts)


def _start_hashing(arrays: Sequence[Array], pool: ThreadPoolExecutor) -> Callable[[], list[str]]:
    """Start hashing in the background; the returned function waits for the hashes."""

    def hashes(share: list[int]) -> dict[int, str]:
        return {i: _sha256(arrays[i].raw) for i in share}

    parts = pool.map(hashes, _shares([array.raw.size for array in arrays]))
    return lambda: _in_order(list(parts))


def _in_order(parts: Sequence[dict[int, Value]]) -> list[Value]:
    whole = {i: value for part in parts for i, value in part.items()}
    return [whole[i] for i in range(len(whole))]


def _shares(sizes: Sequence[int]) -> list[list[int]]:
    """Distribute the indices among the threads, with about equal work for each."""
    # Dealing them out by descending size balances the work without a queue between the threads.
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    return [order[k::HASH_THREADS] for k in range(HASH_THREADS)]


def _read_array(descriptor: int, layout: ArrayLayout, start: int, entry: ArrayEntry, number: int) -> Array:
    # The padding of version 1 is read too, so that it can be checked.
    whole = np.empty(layout.padded(entry.nbytes), np.uint8)
    read_into(descriptor, whole.data, start + entry.offset, layout.file)
    raw = whole[: entry.nbytes]
    # The hashes do not cover the padding, so it must be zero: the format has no room for hidden data.
    if whole[entry.nbytes :].any():
        raise DamageError(f"{layout.file} is not zero between two arrays, after byte {entry.offset + entry.nbytes}")
    if _sha256(raw) != entry.sha256:
        raise _wrong_hash(layout.file, entry, number)
    # torch and numpy assume 0 and 1; operations disagree about any other byte.
    if entry.dtype == "bool" and raw.size and raw.max() > 1:
        raise DamageError(f"{layout.file} contains a bool that is neither 0 nor 1")
    return Array(dtype=entry.dtype, shape=entry.shape, raw=raw)


def _sha256(raw: NDArray[np.uint8]) -> str:
    return hashlib.sha256(raw.data).hexdigest()
