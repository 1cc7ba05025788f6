"""Record scalars in blocks: rows of a GPU stay there until they are copied, those of a CPU are read at once."""

import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
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


class Heading(NamedTuple):
    """Coordinates of a row; see :class:`~fieldwatch.record.Row`."""

    axis: Axis
    step: int
    position: int
    seconds: float
    samples: tuple[str, ...] = ()


class RingTransfer:
    """An asynchronous copy of ring rows to the host, beside values that were there already."""

    def __init__(
        self,
        values: Float32[Tensor, "rows width"],
        host_values: "array[float]",
        lines: Sequence[_RowInfo],
        arrived: Any = None,
    ) -> None:
        self._values = values
        self._host_values = host_values
        self._row_infos = lines
        self._arrived = arrived

    def ready(self) -> bool:
        """Whether the copy is complete; queries the CUDA event without waiting for it."""
        return self._arrived is None or bool(self._arrived.query())

    def blocks(self) -> list[Block]:
        """Return the rows, one block for each run of consecutive steps that recorded the same metrics."""
        # Rows of the ring have a common width; the columns beyond a block's metrics are unused.
        values = self._values.numpy().astype(np.float64)

        def device_values(first: int, rows: int, names: int) -> NDArray[np.float64]:
            return values[first : first + rows, :names]

        return _blocks(self._row_infos, device_values, _in_order(self._host_values))


class HostTransfer:
    """Rows that are on the host already."""

    def __init__(self, values: "array[float]", host_values: "array[float]", lines: Sequence[_RowInfo]) -> None:
        self._values = values
        self._host_values = host_values
        self._row_infos = lines

    def ready(self) -> bool:
        """Return True: there is nothing to wait for."""
        return True

    def blocks(self) -> list[Block]:
        """Return the rows, one block for each run of consecutive steps that recorded the same metrics."""
        return _blocks(self._row_infos, _in_order(self._values), _in_order(self._host_values))


_ValuesOfRun = Callable[[int, int, int], NDArray[np.float64]]
"""Returns the ``[rows, names]`` values of a run, given its first row, its number of rows and its number of names.
It is called once for each run, in order.
"""


def _in_order(values: "array[float]") -> _ValuesOfRun:
    """Return the values of each run of rows, which stand one behind the other."""
    numbers = np.array(values, np.float64)
    end = 0

    def take(_: int, rows: int, names: int) -> NDArray[np.float64]:
        nonlocal end
        end += rows * names
        return numbers[end - rows * names : end].reshape(rows, names)

    return take


def _blocks(lines: Sequence[_RowInfo], device_values: _ValuesOfRun, host_values: _ValuesOfRun) -> list[Block]:
    """Return one block for each run of consecutive rows that share their columns."""
    # One pass over each kind of entry is several times faster than reading the entries row by row.
    axes, steps, positions, seconds, samples, device_names, host_names = zip(*lines, strict=True)
    all_steps = np.array(steps, np.int64)
    all_positions = np.array(positions, np.int64)
    all_seconds = np.array(seconds, np.float64)
    # Rows with equal keys have the same columns and can share a block.
    keys = list(zip(axes, device_names, host_names, map(bool, samples), strict=True))
    cuts = [0, *(row for row in range(1, len(keys)) if keys[row] != keys[row - 1]), len(keys)]
    blocks: list[Block] = []
    for first, end in pairwise(cuts):
        axis, device, host, has_samples = keys[first]
        values = np.empty((end - first, len(device) + len(host)))
        values[:, : len(device)] = device_values(first, end - first, len(device))
        values[:, len(device) :] = host_values(first, end - first, len(host))
        part = slice(first, end)
        blocks.append(
            Block(
                axis=axis,
                columns=device + host,
                steps=all_steps[part],
                seconds=all_seconds[part],
                positions=all_positions[part],
                values=values,
                samples=samples[part] if has_samples else (),
            )
        )
    return blocks


def is_on_host(device: torch.device) -> bool:
    """Return whether the host can read tensors on a device without synchronizing."""
    return device.type == "cpu"


class _WaitingRows:
    """Rows of steps that wait for their transfer to the writer thread."""

    def __init__(self) -> None:
        self._row_infos: list[_RowInfo] = []
        self._host_values = array("d")
        self._last_take = time.monotonic()

    def due(self) -> bool:
        """Whether there is a full block of rows, or `MAX_WAIT_SECONDS` have passed since the last transfer."""
        count = len(self._row_infos)
        return count >= ROWS or (count > 0 and time.monotonic() - self._last_take > MAX_WAIT_SECONDS)

    def _add(self, heading: "Heading", device_values: Mapping[str, Tensor], host_values: Mapping[str, float]) -> None:
        self._host_values.fromlist(list(host_values.values()))
        self._row_infos.append(_RowInfo(*heading, tuple(device_values), tuple(host_values)))


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
        self._add(heading, device_values, host_values)

    def take(self) -> HostTransfer | None:
        """Return all rows and begin anew; None if there are no rows."""
        self._last_take = time.monotonic()
        if not self._row_infos:
            return None
        transfer = HostTransfer(self._values, self._host_values, self._row_infos)
        self._values = array("f")
        self._host_values = array("d")
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
        host_values = self._host_values
        self._row_infos = []
        self._host_values = array("d")
        rows = self._values[: len(lines)]
        # On a CPU the ring is reused at once, so the rows must be copied.
        if self._stream is None:
            return RingTransfer(rows.clone(), host_values, lines)
        return self._start_copy(rows, host_values, lines)

    def _start_copy(self, rows: Tensor, host_values: "array[float]", lines: list[_RowInfo]) -> RingTransfer:
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
        return RingTransfer(host, host_values, lines, arrived)

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
