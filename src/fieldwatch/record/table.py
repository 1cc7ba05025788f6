"""The rows of one set of columns, kept as one array that grows by doubling and then keeps its last part."""

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record import tags
from fieldwatch.record.row import Block

ARRIVAL, STEP, SECONDS, POSITION = range(4)
_HEAD_ROWS = 4
_FIRST_ROWS = 64
_RAMP = np.arange(4096.0)


class Table:
    """Array ``[4 + slots + columns, rows]``: arrival (running count), step, seconds, position, sample codes, values.

    A slot is a place in the batch whose sample's loss is known: one per column ``Sample/<k>/loss``, or one for
    ``Loss/total``, which is the loss of a row's only sample. What is handed out is a view, and stays as it is: rows are
    only ever added behind it, everything else makes a new array.

    Args:
        columns: the metric names.
        capacity: how many rows must be kept (up to twice as many are); None keeps all.
        codes: sample name to code, shared by all tables of a history.

    Attributes:
        names_samples: whether some row said which sample its loss is of.
    """

    def __init__(self, columns: tuple[str, ...], capacity: int | None, codes: dict[str, int]) -> None:
        slots = [(slot, name) for name in columns if (slot := tags.sample_place(name)) is not None]
        self._has_lone_sample = not slots and tags.TOTAL in columns
        self._slots = [(0, tags.TOTAL)] if self._has_lone_sample else slots
        self.names_samples = False
        self._first = _HEAD_ROWS + len(self._slots)
        self._row_of_column = {name: self._first + i for i, name in enumerate(columns)}
        self._capacity = capacity
        self._codes = codes
        self._array = np.empty((self._first + len(columns), _FIRST_ROWS))
        self._length = 0
        self._uncoded: list[tuple[NDArray[np.float64], tuple[tuple[str, ...], ...]]] = []
        self._checked = 0
        self._ascending = True

    def __len__(self) -> int:
        return self._length

    def append(self, block: Block, arrival: int) -> None:
        """Append a block of these columns whose first row is the run's ``arrival``-th."""
        count = len(block)
        if self._length + count > self._array.shape[1]:
            self._make_room(count)
        target = self._array[:, self._length : self._length + count]
        # A slice of a prepared ramp plus an offset is cheaper than a new range for the usual small block.
        target[ARRIVAL] = range(arrival, arrival + count) if count > len(_RAMP) else _RAMP[:count] + arrival
        target[STEP] = block.steps
        target[SECONDS] = block.seconds
        target[POSITION] = block.positions
        target[self._first :] = block.values.T
        # Sample names are turned into codes when somebody asks: here only the block is remembered.
        if self._slots:
            target[_HEAD_ROWS : self._first] = -1
            if block.samples:
                self._uncoded.append((target[_HEAD_ROWS : self._first], block.samples))
                self.names_samples = True
        self._length += count

    def ascending(self) -> bool:
        """Whether every row's step is larger than that of the row before."""
        # Only rows since the last call are compared, with the one before them.
        steps = self._array[STEP, max(0, self._checked - 1) : self._length]
        self._ascending = self._ascending and bool((steps[1:] > steps[:-1]).all())
        self._checked = self._length
        return self._ascending

    def head(self) -> NDArray[np.float64]:
        """Return ``[4, n]``: arrival, step, seconds, position."""
        return self._array[:_HEAD_ROWS, self._last_rows()]

    def column(self, name: str) -> NDArray[np.float64]:
        """Return the ``[n]`` values of a metric."""
        return self._array[self._row_of_column[name], self._last_rows()]

    def last_step(self) -> int:
        """Return the largest step, -1 if there is no row."""
        return int(self._array[STEP, : self._length].max(initial=-1))

    def discard(self, step: int) -> None:
        """Drop the rows of ``step`` and later ones."""
        self._code_samples()
        keep = np.flatnonzero(self._array[STEP, : self._length] < step)
        array = np.empty_like(self._array)
        array[:, : len(keep)] = self._array[:, keep]
        self._array = array
        self._length = len(keep)
        self._checked = 0

    def sample_rows(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return ``[n]`` sample codes (-1: none) and ``[5, n]`` arrival, step, seconds, position, loss, row by row."""
        self._code_samples()
        count = len(self._slots)
        last_rows = self._last_rows()
        codes = self._array[_HEAD_ROWS : self._first, last_rows].T.reshape(-1)
        losses = self._array[[self._row_of_column[name] for _, name in self._slots], last_rows].T.reshape(-1)
        return codes, np.vstack((np.repeat(self.head(), count, axis=1), losses))

    def _code_samples(self) -> None:
        """Fill in the codes that ``append`` has put off (it is in the hot path, this is not)."""
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
        """Move the last rows to the front of another array, twice as large where the capacity does not allow less."""
        self._code_samples()
        last_rows = self._length
        size = self._array.shape[1]
        # With a capacity the array stops growing at twice that size, and old rows are dropped in bulk.
        if self._capacity is not None and size >= 2 * self._capacity:
            last_rows = min(last_rows, self._capacity)
        while size < last_rows + count:
            size *= 2
        array = np.empty((len(self._array), size))
        array[:, :last_rows] = self._array[:, self._length - last_rows : self._length]
        self._array = array
        self._length = last_rows
        self._checked = 0
