"""Storage for rows with the same columns: one array that grows geometrically, up to twice the capacity."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record import tags
from fieldwatch.record.row import Block

ARRIVAL, STEP, SECONDS, POSITION, VALUE = range(5)
_HEAD_ROWS = 4
_FIRST_ROWS = 64
BEGINNING = 64
"""Number of first rows that are kept when old rows are dropped."""
THINNED = 1024
"""Number of further rows that are kept of those that were dropped, evenly spread."""
_STRIDE = 4
"""Every how many of them are kept at first; of longer runs, fewer."""
_GROWTH = 8
"""Factor by which a table without a capacity grows. Memory is occupied only where rows are written."""
_RAMP = np.arange(4096.0)


class Table:
    """Array ``[4 + slots + columns, rows]``: arrival (running count), step, seconds, position, sample codes, values.

    A slot is an index of the batch for which a per-sample loss is recorded: one per column ``Sample/<k>/loss``, or a
    single one for ``Loss/total``, which is the loss of a row's only sample. Returned arrays are views that never
    change: new rows are written behind them, and every other change allocates a new array.

    Args:
        columns: metric names.
        capacity: minimum number of rows to keep (up to twice as many are kept); None keeps all.
        codes: sample name to code, shared by all tables of a history.

    Attributes:
        names_samples: whether any row names the sample of its loss.
        changes: how often rows were dropped or discarded.
    """

    def __init__(self, columns: tuple[str, ...], capacity: int | None, codes: dict[str, int]) -> None:
        # Per-sample columns take precedence; without them, the total is the loss of a batch with one sample.
        slots = [(slot, name) for name in columns if (slot := tags.sample_place(name)) is not None]
        self._has_lone_sample = not slots and tags.TOTAL in columns
        self._slots = [(0, tags.TOTAL)] if self._has_lone_sample else slots
        self.names_samples = False
        self.changes = 0
        self._first = _HEAD_ROWS + len(self._slots)
        self._row_of_column = {name: self._first + i for i, name in enumerate(columns)}
        self._capacity = capacity
        self._codes = codes
        self._array = np.empty((self._first + len(columns), _FIRST_ROWS))
        self._length = 0
        self._beginning: NDArray[np.float64] | None = None
        self._thinned: NDArray[np.float64] | None = None
        self._stride = _STRIDE
        self._uncoded: list[tuple[NDArray[np.float64], tuple[tuple[str, ...], ...]]] = []
        self._checked = 0
        self._ascending = True

    def __len__(self) -> int:
        return self._length

    def append(self, block: Block, arrival: int) -> None:
        """Append a block with these columns; ``arrival`` is the running number of its first row within the run."""
        count = len(block)
        if self._length + count > self._array.shape[1]:
            self._make_room(count)
        target = self._array[:, self._length : self._length + count]
        # For the usual small block, slicing a precomputed ramp is cheaper than building a new range.
        target[ARRIVAL] = range(arrival, arrival + count) if count > len(_RAMP) else _RAMP[:count] + arrival
        target[STEP] = block.steps
        target[SECONDS] = block.seconds
        target[POSITION] = block.positions
        target[self._first :] = block.values.T
        # Encoding sample names is deferred until they are read, since this is the hot path.
        if self._slots:
            target[_HEAD_ROWS : self._first] = -1
            if block.samples:
                self._uncoded.append((target[_HEAD_ROWS : self._first], block.samples))
                self.names_samples = True
        # Only now the rows become visible to readers of this table.
        self._length += count

    def ascending(self) -> bool:
        """Whether the steps of all rows are strictly ascending."""
        # Check only the rows added since the last call, starting with the one before them.
        steps = self._array[STEP, max(0, self._checked - 1) : self._length]
        self._ascending = self._ascending and bool((steps[1:] > steps[:-1]).all())
        self._checked = self._length
        return self._ascending

    def head(self) -> NDArray[np.float64]:
        """Return ``[4, n]`` arrival, step, seconds and position."""
        return self._array[:_HEAD_ROWS, self._last_rows()]

    def column(self, name: str) -> NDArray[np.float64]:
        """Return the ``[n]`` values of a metric."""
        return self._array[self._row_of_column[name], self._last_rows()]

    def columns(self, names: Sequence[str], count: int) -> NDArray[np.float64]:
        """Return the ``[metrics, count]`` last values of several metrics; there are as many."""
        return self._array[[self._row_of_column[name] for name in names], self._length - count : self._length]

    def beginning(self, name: str) -> NDArray[np.float64]:
        """Return ``[5, n]`` arrival, step, seconds, position and value of a metric in the first ``BEGINNING`` rows."""
        rows = self._array[:, : min(self._length, BEGINNING)] if self._beginning is None else self._beginning
        return rows[[ARRIVAL, STEP, SECONDS, POSITION, self._row_of_column[name]]]

    def thinned(self, name: str) -> NDArray[np.float64] | None:
        """Return ``[5, n]`` arrival, step, seconds, position and value of a metric in some of the dropped rows."""
        if self._thinned is None:
            return None
        return self._thinned[[ARRIVAL, STEP, SECONDS, POSITION, self._row_of_column[name]]]

    def drops(self) -> bool:
        """Return whether `column` lacks rows that were appended."""
        return self._beginning is not None or self._last_rows().start > 0

    def last_step(self) -> int:
        """Return the largest step, or -1 if there are no rows."""
        return int(self._array[STEP, : self._length].max(initial=-1))

    def discard(self, step: int) -> None:
        """Drop the rows of ``step`` and later steps."""
        # Deferred codes refer to rows of the current array, so fill them in before it is replaced.
        self._code_samples()
        keep = np.flatnonzero(self._array[STEP, : self._length] < step)
        array = np.empty_like(self._array)
        array[:, : len(keep)] = self._array[:, keep]
        self._array = array
        self._length = len(keep)
        self._checked = 0
        if self._beginning is not None:
            kept = self._beginning[:, self._beginning[STEP] < step]
            # Without any row, the run begins again.
            self._beginning = kept if kept.size else None
        if self._thinned is not None:
            self._thinned = self._thinned[:, self._thinned[STEP] < step]
            self.changes += 1

    def sample_rows(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return ``[n]`` sample codes (-1 for none) and ``[5, n]`` arrival, step, seconds, position and loss."""
        self._code_samples()
        count = len(self._slots)
        last_rows = self._last_rows()
        codes = self._array[_HEAD_ROWS : self._first, last_rows].T.reshape(-1)
        losses = self._array[[self._row_of_column[name] for _, name in self._slots], last_rows].T.reshape(-1)
        return codes, np.vstack((np.repeat(self.head(), count, axis=1), losses))

    def _code_samples(self) -> None:
        """Fill in the sample codes that ``append`` has deferred."""
        for target, samples in self._uncoded:
            for row, (slot, _) in zip(target, self._slots, strict=True):
                row[:] = self._coded(samples, slot)
        self._uncoded.clear()

    def _coded(self, samples: tuple[tuple[str, ...], ...], slot: int) -> list[int]:
        codes = self._codes
        if self._has_lone_sample:
            return [codes.setdefault(names[0], len(codes)) if len(names) == 1 else -1 for names in samples]
        return [codes.setdefault(names[slot], len(codes)) if len(names) > slot else -1 for names in samples]

    def _last_rows(self) -> slice:
        return slice(0 if self._capacity is None else max(0, self._length - self._capacity), self._length)

    def _make_room(self, count: int) -> None:
        """Move the rows to a larger array; at twice the capacity, drop the oldest rows instead of growing."""
        self._code_samples()
        last_rows = self._length
        size = self._array.shape[1]
        # Dropping old rows in bulk, rather than one by one, keeps the amortized cost per row constant.
        if self._capacity is not None and size >= 2 * self._capacity:
            last_rows = min(last_rows, self._capacity)
            if self._beginning is None and last_rows < self._length:
                self._beginning = self._array[:, : min(self._length, BEGINNING)].copy()
            self._thin(self._array[:, : self._length - last_rows])
        while size < last_rows + count:
            size *= 2 if self._capacity is not None else _GROWTH
        # Views returned earlier keep the old array alive, so they never change.
        array = np.empty((len(self._array), size))
        array[:, :last_rows] = self._array[:, self._length - last_rows : self._length]
        self._array = array
        self._length = last_rows
        self._checked = 0

    def _thin(self, dropped: NDArray[np.float64]) -> None:
        """Keep a few of the rows that are being dropped, evenly spread over all that ever were."""
        kept = dropped[:, dropped[ARRIVAL] % self._stride == 0]
        thinned = kept if self._thinned is None else np.concatenate((self._thinned, kept), axis=1)
        while thinned.shape[1] > THINNED:
            self._stride *= 2
            thinned = thinned[:, thinned[ARRIVAL] % self._stride == 0]
        self._thinned = thinned
        self.changes += 1
