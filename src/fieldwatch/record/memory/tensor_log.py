"""Write the text log of tensor memory: a sequence of snapshots in the format of the original profiler."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from fieldwatch.base import InputError, open_for_append, output_path
from fieldwatch.record.disk.backlog import WriteBacklog, WriteQueue
from fieldwatch.record.lines import write_all

RULE = "=" * 80
TOP = 5
# The start of a snapshot: a line of equals signs, followed by the head.
_HEAD = re.compile(rb"(?:^|\n)=+\r?\nIteration ")
# The last section of a snapshot, followed by the list of the largest tensors if there are large ones.
_END = re.compile(rb"\nLarge Tensors \(>\d+ *MB\): (\d+)\r?\n(?:Top \d+[^\n]*\n((?:  [^\n]*\n)*))?")
_NAME = re.compile(r"\w+")
# Bytes to search for the last snapshot. A snapshot takes a few KB, so its head is always within this range.
_TAIL = 1 << 20


@dataclass(frozen=True, kw_only=True)
class LargeTensor:
    """One of the largest tensors of a snapshot.

    Attributes:
        size: size in MiB.
        shape: shape as text, such as ``"(4200000, 15, 3)"``.
        dtype: name of the dtype, such as ``"float32"``.
    """

    size: float
    shape: str
    dtype: str


def _none() -> dict[str, float]:
    return {}


@dataclass(frozen=True, kw_only=True)
class TensorSnapshot:
    """Memory of a device at one iteration. Sizes are in MiB.

    Attributes:
        iteration: iteration of the snapshot.
        time: local time, to the second.
        total_tensors: number of tensors.
        allocated: memory allocated by tensors, in MiB.
        reserved: memory held by the allocator including its cache, in MiB.
        fragmentation: percentage of the reserved memory that is not allocated; most of it is reusable at once.
        categories: memory by purpose, in MiB.
        dtypes: memory by dtype, in MiB.
        large_count: number of tensors above the threshold.
        large_threshold: threshold for large tensors, in MiB.
        largest: largest tensors, in descending order of size.
    """

    iteration: int
    time: datetime
    total_tensors: int
    allocated: float
    reserved: float
    fragmentation: float
    categories: Mapping[str, float] = field(default_factory=_none)
    dtypes: Mapping[str, float] = field(default_factory=_none)
    large_count: int = 0
    large_threshold: int = 100
    largest: tuple[LargeTensor, ...] = ()


def format_snapshot(snapshot: TensorSnapshot) -> str:
    """Format a snapshot as the original profiler does, from the empty line before it to the last newline.

    At most five of the largest tensors are listed, and only if any tensor exceeds the threshold.

    Raises:
        ValueError: if a category or dtype is not a single word, a shape contains characters that would break the line,
            or ``largest`` has fewer entries than need to be listed.
    """
    # The format is fixed: existing tools parse these logs, so every space counts.
    lines = ["", RULE, f"Iteration {snapshot.iteration} | {snapshot.time:%Y-%m-%d %H:%M:%S}", RULE]
    lines.append(f"Total Tensors: {snapshot.total_tensors}")
    held = f"Allocated: {snapshot.allocated:.2f} MB | Reserved: {snapshot.reserved:.2f} MB"
    lines.append(f"{held} | Fragmentation: {snapshot.fragmentation:.1f}%")
    lines += ["", "Tensor Categories:", *_sizes(snapshot.categories)]
    lines += ["", "Data Types:", *_sizes(snapshot.dtypes)]
    lines += ["", f"Large Tensors (>{snapshot.large_threshold}MB): {snapshot.large_count}"]
    if snapshot.large_count > 0:
        _check_listed(snapshot)
        lines += [f"Top {TOP} largest:", *map(_large, snapshot.largest[:TOP])]
    return "\n".join(lines) + "\n"


class TensorLog:
    """Appends snapshots to a log, each with a single write that succeeds completely or not at all.

    Opening the file truncates a torn last snapshot, left by a killed process or a power failure.

    Args:
        path: path of the file; the file and its folder are created if missing. See :meth:`in_folder` for the usual
            name.

    Raises:
        ValueError: if the file is not a tensor log.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._file = open_for_append(self.path)
        # Do not leak the open file if it turns out to be something else.
        try:
            self._size = _whole_size(self.path)
        except ValueError:
            self._file.close()
            raise
        if self._size < self.path.stat().st_size:
            os.ftruncate(self._file.fileno(), self._size)
        self._queue = WriteQueue(self._write)

    @classmethod
    def in_folder(cls, run: Path | str, now: datetime) -> Self:
        """Open ``profiles/tensor_profile_<YYYYmmdd_HHMMSS>.log`` in a run folder."""
        return cls(output_path(Path(run), "profiles", f"tensor_profile_{now:%Y%m%d_%H%M%S}.log"))

    def append(self, snapshot: TensorSnapshot) -> None:
        """Write one snapshot.

        Raises:
            ValueError: see :func:`format_snapshot`.
            OSError: if the write fails (disk full); the file is then unchanged.
        """
        self._queue.append(format_snapshot(snapshot).encode())

    def defer_to(self, backlog: WriteBacklog) -> None:
        """Queue snapshots in a backlog while the disk is full."""
        self._queue.attach(backlog)

    def flush(self, *, fsync: bool = False) -> None:
        """With ``fsync=True``, block until everything is on the disk; else do nothing, since writes are unbuffered."""
        if fsync:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file. May be called more than once."""
        self._file.close()

    def _write(self, text: bytes) -> None:
        write_all(self._file.fileno(), text, self._size)
        self._size += len(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _check_listed(snapshot: TensorSnapshot) -> None:
    # A shorter list than the count implies is how readers recognize a torn snapshot.
    expected = min(snapshot.large_count, TOP)
    if len(snapshot.largest) < expected:
        raise ValueError(
            f"a snapshot with {snapshot.large_count} large tensors must list the largest {expected}, got "
            f"{len(snapshot.largest)}"
        )


def _sizes(sizes: Mapping[str, float]) -> list[str]:
    """Format sizes in MiB by name, as MB, one line each, in descending order."""
    invalid = next((name for name in sizes if not _NAME.fullmatch(name)), None)
    if invalid is not None:
        raise ValueError(f"a category or dtype in a tensor log must be one word such as 'gradients', got {invalid!r}")
    # Largest first; the sort is stable, so equal sizes keep their order.
    ordered = sorted(sizes.items(), key=lambda pair: -pair[1])
    return [f"  {name:<15}: {size:8.2f} MB" for name, size in ordered]


def _large(tensor: LargeTensor) -> str:
    # A newline or pipe in a shape would break the line format.
    if not tensor.shape.isprintable() or "|" in tensor.shape or not _NAME.fullmatch(tensor.dtype):
        expected = "expected texts such as '(1000, 3)' and 'float32'"
        raise ValueError(
            f"a large tensor with shape {tensor.shape!r}, dtype {tensor.dtype!r} cannot be logged: {expected}"
        )
    return f"  {tensor.size:.2f} MB | shape={tensor.shape} | dtype={tensor.dtype}"


def _whole_size(path: Path) -> int:
    """Return the size of the log in bytes, up to the end of its last whole snapshot.

    Raises:
        InputError: if the end of the file contains no snapshot.
    """
    size = path.stat().st_size
    start = max(0, size - _TAIL)
    with path.open("rb") as file:
        tail = os.pread(file.fileno(), size - start, start)
    heads = [match.start() for match in _HEAD.finditer(tail)]
    # Only blank lines and lines of "=" mean that the file is empty or was torn inside its first head. Anything else
    # without a head is not a tensor log.
    if not heads and tail.strip(b"\r\n="):
        raise InputError(f"{path} is not a tensor log, so nothing is appended to it: choose another file")
    if not heads:
        return start
    return start + heads[-1] + _whole_end(tail[heads[-1] :])


def _whole_end(snapshot: bytes) -> int:
    """Return the length of a snapshot in bytes, or 0 if it is incomplete."""
    end = _END.search(snapshot)
    if end is None:
        return 0
    listed = end[2]
    if listed is None:
        return 0 if snapshot[end.end() :].startswith(b"T") else end.end()  # torn inside "Top 5 largest:"
    return end.end() if listed.count(b"\n") >= min(int(end[1]), TOP) else 0
