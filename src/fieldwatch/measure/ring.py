"""Record scalars in blocks: rows of a GPU stay there until they are copied, those of a CPU are read at once."""

import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

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


class Heading(NamedTuple):
    """Coordinates of a row; see :class:`~fieldwatch.record.Row`."""

    axis: Axis
    step: int
    position: int
    seconds: float
    samples: tuple[str, ...] = ()


@dataclass(slots=True)
class _Run:
    """Consecutive rows that recorded the same metrics, and can share a block."""

    device_names: Names
    host_names: Names
    axis: Axis
    has_samples: bool
    rows: int = 0


class _Heads:
    """Host-side data of rows: no object per row, since reading the objects of another thread is slow.

    Attributes:
        runs: the rows in runs.
        count: number of rows.
    """

    def __init__(self) -> None:
        self.runs: list[_Run] = []
        self.count = 0
        self._steps = array("q")
        self._positions = array("q")
        self._seconds = array("d")
        self._host_values = array("d")
        self._samples: list[tuple[str, ...]] = []
        self._layout: tuple[Names, Names, Axis, bool] | None = None

    def add(self, heading: Heading, device_names: Names, host_values: Mapping[str, float]) -> None:
        """Add a row."""
        axis, step, position, seconds, samples = heading
        self._host_values.fromlist([*host_values.values()])
        self._steps.append(step)
        self._positions.append(position)
        self._seconds.append(seconds)
        self._samples.append(samples)
        self.count += 1
        layout = (device_names, tuple(host_values), axis, bool(samples))
        if layout != self._layout:
            self._layout = layout
            self.runs.append(_Run(*layout))
        self.runs[-1].rows += 1

    def blocks(self, device_values: Iterable[NDArray[np.float64]]) -> list[Block]:
        """Return a block for each run.

        Args:
            device_values: ``[rows, names]`` device values of each run.
        """
        steps = np.array(self._steps)
        positions = np.array(self._positions)
        seconds = np.array(self._seconds)
        host_values = _in_order(self._host_values, [len(run.host_names) for run in self.runs], self.runs)
        blocks: list[Block] = []
        end = 0
        for run, device, host in zip(self.runs, device_values, host_values, strict=True):
            part = slice(end, end + run.rows)
            end += run.rows
            blocks.append(
                Block(
                    axis=run.axis,
                    columns=run.device_names + run.host_names,
                    steps=steps[part],
                    seconds=seconds[part],
                    positions=positions[part],
                    values=np.concatenate([device, host], axis=1),
                    samples=tuple(self._samples[part]) if run.has_samples else (),
                )
            )
        return blocks


def _in_order(values: "array[float]", widths: Iterable[int], runs: Iterable[_Run]) -> Iterator[NDArray[np.float64]]:
    """Yield the ``[rows, width]`` values of each run, which stand one behind the other."""
    numbers = np.array(values, np.float64)
    end = 0
    for width, run in zip(widths, runs, strict=True):
        start = end
        end += run.rows * width
        yield numbers[start:end].reshape(run.rows, width)


class RingTransfer:
    """An asynchronous copy of ring rows to the host."""

    def __init__(self, values: Float32[Tensor, "rows width"], heads: _Heads, arrived: Any = None) -> None:
        self._values = values
        self._heads = heads
        self._arrived = arrived

    def ready(self) -> bool:
        """Whether the copy is complete; queries the CUDA event without waiting for it."""
        return self._arrived is None or bool(self._arrived.query())

    def blocks(self) -> list[Block]:
        """Return the rows, one block for each run of consecutive steps that recorded the same metrics."""
        return self._heads.blocks(self._values_of_runs())

    def _values_of_runs(self) -> Iterator[NDArray[np.float64]]:
        values = self._values.numpy().astype(np.float64)
        end = 0
        for run in self._heads.runs:
            start = end
            end += run.rows
            # Rows of the ring have a common width; the columns beyond a run's metrics are unused.
            yield values[start:end, : len(run.device_names)]


class HostTransfer:
    """Rows that are on the host already."""

    def __init__(self, values: "array[float]", heads: _Heads) -> None:
        self._values = values
        self._heads = heads

    def ready(self) -> bool:
        """Return True: there is nothing to wait for."""
        return True

    def blocks(self) -> list[Block]:
        """Return the rows, one block for each run of consecutive steps that recorded the same metrics."""
        runs = self._heads.runs
        return self._heads.blocks(_in_order(self._values, [len(run.device_names) for run in runs], runs))


def is_on_host(device: torch.device) -> bool:
    """Return whether the host can read tensors on a device without synchronizing."""
    return device.type == "cpu"


class _WaitingRows:
    """Rows of steps that wait for their transfer to the writer thread."""

    def __init__(self) -> None:
        self._heads = _Heads()
        self._last_take = time.monotonic()

    def due(self) -> bool:
        """Whether there is a full block of rows, or `MAX_WAIT_SECONDS` have passed since the last transfer."""
        count = self._heads.count
        return count >= ROWS or (count > 0 and time.monotonic() - self._last_take > MAX_WAIT_SECONDS)

    def _take_heads(self) -> _Heads | None:
        """Return the heads of all rows and begin anew; None if there are no rows."""
        self._last_take = time.monotonic()
        if not self._heads.count:
            return None
        heads = self._heads
        self._heads = _Heads()
        return heads


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
        # As item(), which would give the interpreter's lock to the writer thread in between, up to once per value.
        scalars = cast("Iterable[Any]", device_values.values())
        self._values.fromlist([scalar.tolist() for scalar in scalars])
        self._heads.add(heading, tuple(device_values), host_values)

    def take(self) -> HostTransfer | None:
        """Return all rows and begin anew; None if there are no rows."""
        heads = self._take_heads()
        if heads is None:
            return None
        transfer = HostTransfer(self._values, heads)
        self._values = array("f")
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
        self._heads.add(heading, tuple(device_values), host_values)

    def take(self) -> RingTransfer | None:
        """Start copying all rows to the host and clear the ring; None if there are no rows."""
        heads = self._take_heads()
        if heads is None:
            return None
        rows = self._values[: heads.count]
        # On a CPU the ring is reused at once, so the rows must be copied.
        if self._stream is None:
            return RingTransfer(rows.clone(), heads)
        return self._start_copy(rows, heads)

    def _start_copy(self, rows: Tensor, heads: _Heads) -> RingTransfer:
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
        return RingTransfer(host, heads, arrived)

    def _row(self, count: int) -> Tensor:
        row_index = self._heads.count
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
        self._values = self._new_values(2 * self._heads.count)
        self._values[: len(old_values), : old_values.shape[1]] = old_values
        self._row_views.clear()

    def _new_values(self, rows: int = 0) -> Float32[Tensor, "rows width"]:
        # Room for twice the rows of a transfer, so that a late transfer does not enlarge the ring.
        return torch.zeros(max(rows, 2 * ROWS), self._width, device=self.device)
