"""The text log of tensor memory: one snapshot after another, in the grammar of the original profiler."""

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
# The ruled line and the head below it, where a snapshot begins.
_HEAD = re.compile(rb"(?:^|\n)=+\r?\nIteration ")
# The last section of a snapshot; the list of the largest tensors follows where there are large ones.
_END = re.compile(rb"\nLarge Tensors \(>\d+ *MB\): (\d+)\r?\n(?:Top \d+[^\n]*\n((?:  [^\n]*\n)*))?")
_NAME = re.compile(r"\w+")
_TAIL = 1 << 20


@dataclass(frozen=True, kw_only=True)
class LargeTensor:
    """One of the largest tensors of a snapshot.

    Attributes:
        size: in MB (2**20 bytes).
        shape: as text, such as ``"(4200000, 15, 3)"``.
        dtype: such as ``"float32"``.
    """

    size: float
    shape: str
    dtype: str


def _none() -> dict[str, float]:
    return {}


@dataclass(frozen=True, kw_only=True)
class TensorSnapshot:
    """Where the memory of a device was at one iteration; MB means 2**20 bytes.

    Attributes:
        iteration: the iteration it was taken at.
        time: local time, to the second.
        total_tensors: how many tensors there were.
        allocated: MB that tensors held.
        reserved: MB that the allocator held, its cache included.
        fragmentation: percent of the reserved memory that was not allocated; most of it can be used again at once.
        categories: MB by what the memory is for.
        dtypes: MB by type of the entries.
        large_count: how many tensors were above the threshold.
        large_threshold: that threshold, in MB.
        largest: the largest tensors, the largest first.
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
    """Return the snapshot as the original profiler wrote it, from the empty line before it to the last newline.

    At most five of the largest tensors are listed, and only where some tensor is above the threshold.

    Raises:
        ValueError: a category or dtype is not one word, a shape holds what would break the line, or fewer of the
            largest tensors are given than are to be listed.
    """
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
    """Appends snapshots to a log, each with one write to the system, whole or not at all.

    Opening cuts off a torn last snapshot (a process that was killed, a disk that lost power).

    Args:
        path: the file; it and its folder are made if missing. See :meth:`in_folder` for the usual name.

    Raises:
        ValueError: the file holds something else than such a log.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._file = open_for_append(self.path)
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
        """Open ``profiles/tensor_profile_<YYYYmmdd_HHMMSS>.log`` in a run's folder."""
        return cls(output_path(Path(run), "profiles", f"tensor_profile_{now:%Y%m%d_%H%M%S}.log"))

    def append(self, snapshot: TensorSnapshot) -> None:
        """Write one snapshot.

        Raises:
            ValueError: see :func:`format_snapshot`.
            OSError: the system refused (disk full); the file is as it was before.
        """
        self._queue.append(format_snapshot(snapshot).encode())

    def defer_to(self, backlog: WriteBacklog) -> None:
        """Let snapshots that a full disk refuses wait there."""
        self._queue.attach(backlog)

    def flush(self, *, fsync: bool = False) -> None:
        """Do nothing (nothing is held back), or return when everything is on the disk (``fsync=True``)."""
        if fsync:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; more than once is fine."""
        self._file.close()

    def _write(self, text: bytes) -> None:
        write_all(self._file.fileno(), text, self._size)
        self._size += len(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _check_listed(snapshot: TensorSnapshot) -> None:
    wanted = min(snapshot.large_count, TOP)
    if len(snapshot.largest) < wanted:
        raise ValueError(
            f"{snapshot.large_count} large tensors came with {len(snapshot.largest)} of them named: "
            f"wanted the largest {wanted} (a reader takes a shorter list for a torn one)"
        )


def _sizes(sizes: Mapping[str, float]) -> list[str]:
    """Return the lines of a mapping to MB, the largest first."""
    wrong = next((name for name in sizes if not _NAME.fullmatch(name)), None)
    if wrong is not None:
        raise ValueError(f"category or dtype {wrong!r} cannot stand in a tensor log: wanted one word like 'gradients'")
    ordered = sorted(sizes.items(), key=lambda pair: -pair[1])
    return [f"  {name:<15}: {size:8.2f} MB" for name, size in ordered]


def _large(tensor: LargeTensor) -> str:
    if not tensor.shape.isprintable() or "|" in tensor.shape or not _NAME.fullmatch(tensor.dtype):
        wanted = "wanted texts like '(1000, 3)' and 'float32'"
        raise ValueError(
            f"a large tensor with shape {tensor.shape!r}, dtype {tensor.dtype!r} cannot be logged: {wanted}"
        )
    return f"  {tensor.size:.2f} MB | shape={tensor.shape} | dtype={tensor.dtype}"


def _whole_size(path: Path) -> int:
    """Return the size of the log up to the end of its last whole snapshot.

    Raises:
        InputError: the file's end shows no snapshot.
    """
    size = path.stat().st_size
    start = max(0, size - _TAIL)
    with path.open("rb") as file:
        tail = os.pread(file.fileno(), size - start, start)
    heads = [match.start() for match in _HEAD.finditer(tail)]
    # Only blank lines and rules without a head: the file is empty, or was torn inside its first head.
    if not heads and tail.strip(b"\r\n="):
        raise InputError(f"{path} holds something else than a tensor log: nothing is appended to it; name another file")
    if not heads:
        return start
    return start + heads[-1] + _whole_end(tail[heads[-1] :])


def _whole_end(snapshot: bytes) -> int:
    """Return where a snapshot ends, 0 if some of it is missing."""
    end = _END.search(snapshot)
    if end is None:
        return 0
    listed = end[2]
    if listed is None:
        return 0 if snapshot[end.end() :].startswith(b"T") else end.end()  # cut off within "Top 5 largest:"
    return end.end() if listed.count(b"\n") >= min(int(end[1]), TOP) else 0
