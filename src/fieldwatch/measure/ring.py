"""Record scalars in blocks: rows of a GPU stay there until they are copied, those of a CPU are read at once."""

import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float32
from numpy.typing import NDArray
from torch import Tensor

from fieldwatch.record import Axis, Block

ROWS = 64
"""Number of rows per transfer."""

MAX_CACHED_WIDTHS = 8
"""Number of row widths whose views are cached; occasional wide steps recur."""

MAX_WAIT_SECONDS = 1.0
"""Maximum time that a row waits for its transfer, in seconds, so that sinks stay up to date in slow runs."""

Names = tuple[str, ...]


class _RowInfo(NamedTuple):
    """Host-side data of one ring row."""

    axis: Axis
    step: int
    position: int
    seconds: float
    samples: tuple[str, ...]
    device_names: Names
    host_names: Names
    host_values: tuple[float, ...]


_new_row_info: Any = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  a tuple of anything
"""The constructor behind `_RowInfo(...)`, which takes a third of its time."""


class Heading(NamedTuple):
    """Coordinates of a row; see :class:`~fieldwatch.record.Row`."""

    axis: Axis
    step: int
    position: int
    seconds: float
    samples: tuple[str, ...] = ()


class RingTransfer:
    """An asynchronous copy of ring rows to the host."""

    def __init__(self, values: Float32[Tensor, "rows width"], lines: Sequence[_RowInfo], arrived: Any = None) -> None:
        self._values = values
        self._row_infos = lines
        self._arrived = arrived

    def ready(self) -> bool:
        """Whether the copy is complete; queries the CUDA event without waiting for it."""
        return self._arrived is None or bool(self._arrived.query())

    def blocks(self) -> list[Block]:
        """Return the rows, one block for each run of consecutive steps that recorded the same metrics."""
        values = self._values.numpy()
        blocks: list[Block] = []
        first = 0
        for lines in _runs(self._row_infos):
            blocks.append(_block(lines, values[first : first + len(lines)]))
            first += len(lines)
        return blocks


class HostTransfer:
    """Rows that are on the host already."""

    def __init__(self, values: "array[float]", lines: Sequence[_RowInfo]) -> None:
        self._values = values
        self._row_infos = lines

    def ready(self) -> bool:
        """Return True: there is nothing to wait for."""
        return True

    def blocks(self) -> list[Block]:
        """Return the rows, one block for each run of consecutive steps that recorded the same metrics."""
        values = np.frombuffer(self._values, np.float32) if self._values else np.empty(0, np.float32)
        blocks: list[Block] = []
        first = 0
        for lines in _runs(self._row_infos):
            width = len(lines[0].device_names)
            blocks.append(_block(lines, values[first : first + width * len(lines)].reshape(len(lines), width)))
            first += width * len(lines)
        return blocks


def _runs(lines: Sequence[_RowInfo]) -> Iterator[list[_RowInfo]]:
    """Yield the runs of consecutive rows that share a block."""
    yield from (list(run) for _, run in groupby(lines, key=_block_key))


def _block_key(line: _RowInfo) -> tuple[Axis, Names, Names, bool]:
    # Rows with equal keys have the same columns and can share a block.
    return line.axis, line.device_names, line.host_names, bool(line.samples)


def _block(lines: list[_RowInfo], values: NDArray[np.float32]) -> Block:
    head = lines[0]
    # Rows of the ring have a common width; the columns beyond this block's metrics are unused.
    device = values[:, : len(head.device_names)].astype(np.float64)
    host = np.array([line.host_values for line in lines], np.float64).reshape(len(lines), len(head.host_names))
    return Block(
        axis=head.axis,
        columns=head.device_names + head.host_names,
        steps=np.array([line.step for line in lines], np.int64),
        seconds=np.array([line.seconds for line in lines], np.float64),
        positions=np.array([line.position for line in lines], np.int64),
        values=np.concatenate([device, host], axis=1),
        samples=tuple(line.samples for line in lines) if head.samples else (),
    )


def is_on_host(device: torch.device) -> bool:
    """Return whether the host can read tensors on a device without synchronizing."""
    return device.type == "cpu"


class _WaitingRows:
    """Rows of steps that wait for their transfer to the writer thread."""

    def __init__(self) -> None:
        self._row_infos: list[_RowInfo] = []
        self._last_take = time.monotonic()

    def due(self) -> bool:
        """Whether there is a full block of rows, or `MAX_WAIT_SECONDS` have passed since the last transfer."""
        count = len(self._row_infos)
        return count >= ROWS or (count > 0 and time.monotonic() - self._last_take > MAX_WAIT_SECONDS)

    def _add(self, heading: "Heading", device_values: Mapping[str, Tensor], host_values: Mapping[str, float]) -> None:
        info = _RowInfo(*heading, tuple(device_values), tuple(host_values), tuple(host_values.values()))
        self._row_infos.append(info)


class HostRows(_WaitingRows):
    """Collects one row of scalars per step on the host, for tensors on a CPU.

    Reading a scalar on a CPU takes a fraction of a microsecond, and waits for nothing. Values are rounded to float32,
    as on a GPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.device = torch.device("cpu")
        self._values = array("f")

    def write(self, heading: "Heading", device_values: Mapping[str, Tensor], host_values: Mapping[str, float]) -> None:
        """Add one row. The caller is responsible for taking the rows once they are ``due``.

        Raises:
            TypeError: if a tensor is complex; the row is not added.
        """
        self._values.fromlist([value.item() for value in device_values.values()])
        # As `_add`, without its calls: this runs at every step.
        info = (*heading, tuple(device_values), tuple(host_values), tuple(host_values.values()))
        self._row_infos.append(_new_row_info(_RowInfo, info))

    def take(self) -> HostTransfer | None:
        """Return all rows and begin anew; None if there are no rows."""
        self._last_take = time.monotonic()
        if not self._row_infos:
            return None
        transfer = HostTransfer(self._values, self._row_infos)
        self._values = array("f")
        self._row_infos = []
        return transfer


class DeviceRing(_WaitingRows):
    """Collects one row of scalars per step in device memory.

    Writing a row is a single fused ``stack`` into preallocated memory, without synchronization or allocation. The set
    of metrics may change from step to step; the names of each row are kept on the host.

    Args:
        device: device of the recorded tensors.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self._width = 64
        self._values = self._new_values()
        self._row_views: dict[int, Sequence[Tensor]] = {}
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def write(self, heading: "Heading", device_values: Mapping[str, Tensor], host_values: Mapping[str, float]) -> None:
        """Add one row. The caller is responsible for taking the rows once they are ``due``."""
        if device_values:
            values = list(device_values.values())
            # A single kernel writes all values in place; copying them one by one would launch a kernel for each.
            row = self._row(len(values))
            with torch.no_grad():
                torch.stack(values, out=row)
        self._add(heading, device_values, host_values)

    def take(self) -> RingTransfer | None:
        """Start copying all rows to the host and clear the ring; None if there are no rows."""
        self._last_take = time.monotonic()
        if not self._row_infos:
            return None
        lines = self._row_infos
        self._row_infos = []
        rows = self._values[: len(lines)]
        # On a CPU the ring is reused at once, so the rows must be copied.
        if self._stream is None:
            return RingTransfer(rows.clone(), lines)
        return self._start_copy(rows, lines)

    def _start_copy(self, rows: Tensor, lines: list[_RowInfo]) -> RingTransfer:
        # A device-to-host copy is asynchronous only into pinned memory.
        host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
        current = torch.cuda.current_stream(self.device)
        assert self._stream is not None  # noqa: S101  only called with a stream
        # The copy must wait for the rows that are queued on the training's stream.
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            host.copy_(rows, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(self._stream)
        # Keep the caching allocator from reusing this memory before the side stream has read it.
        rows.record_stream(self._stream)
        # Continue in fresh memory: the next row must not overwrite values that are still being copied.
        self._values = self._new_values()
        self._row_views.clear()
        return RingTransfer(host, lines, arrived)

    def _row(self, count: int) -> Tensor:
        row_index = len(self._row_infos)
        if count > self._width or row_index >= len(self._values):
            self._enlarge(count)
        rows = self._row_views.get(count)
        if rows is None:
            if len(self._row_views) >= MAX_CACHED_WIDTHS:
                self._row_views.clear()
            # `unbind` creates all row views at once; slicing a view at every step would cost more than the write.
            self._row_views[count] = rows = self._values[:, :count].unbind()
        return rows[row_index]

    def _enlarge(self, count: int) -> None:
        old_values = self._values
        # Double the width, so that a growing set of metrics causes few reallocations.
        self._width = self._width if count <= self._width else max(count, 2 * self._width)
        self._values = self._new_values(2 * len(self._row_infos))
        self._values[: len(old_values), : old_values.shape[1]] = old_values
        self._row_views.clear()

    def _new_values(self, rows: int = 0) -> Float32[Tensor, "rows width"]:
        # Room for twice the rows of a transfer, so that a late transfer does not enlarge the ring.
        return torch.zeros(max(rows, 2 * ROWS), self._width, device=self.device)
