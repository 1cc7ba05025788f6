"""Fixed-size summary of a run's metrics: minimum and maximum per metric in at most 256 buckets of steps."""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record import Block

BUCKETS: Final = 256
"""Number of buckets of steps. When they are used up, they are merged in pairs, so at least half of them are in use."""
LOW, HIGH, BAD, SUM = range(4)
# Initial capacity for metrics.
_FIRST_NAMES: Final = 32


class Envelopes:
    """Summarizes recorded blocks in memory that does not depend on the length of the run.

    A bucket contains the smallest and the largest finite value of its steps, and whether one was not finite, so that a
    single outlier among a million steps remains visible.

    Attributes:
        first: first step; -1 if there is none.
        step: last step; -1 if there is none.
        rows: number of rows added.
    """

    def __init__(self) -> None:
        self.first = self.step = -1
        self.rows = 0
        self._origin = -1
        self._width = 1
        self._row_of: dict[str, int] = {}
        # Blocks repeat the same few sets of columns, so their rows are cached.
        self._rows_of_columns: dict[tuple[str, ...], NDArray[np.intp]] = {}
        self._buckets = np.full((4, _FIRST_NAMES, BUCKETS), np.nan)
        self._last: dict[str, tuple[int, float]] = {}

    def extend(self, block: Block) -> None:
        """Add the rows of a block."""
        if not len(block) or not block.columns:
            return
        steps = block.steps
        values = block.values
        # reduceat below requires the rows of a bucket to be adjacent.
        if (np.diff(steps) < 0).any():
            order = np.argsort(steps, kind="stable")
            steps = steps[order]
            values = values[order]
        self.first = int(steps[0]) if self.first < 0 else min(self.first, int(steps[0]))
        self.step = max(self.step, int(steps[-1]))
        self.rows += len(block)
        buckets = np.maximum(steps - self._start(int(steps[-1])), 0) // self._width
        self._condense(self._metric_rows(block.columns), buckets, values)
        at = int(steps[-1])
        # The last row contains all columns of the block.
        self._last |= {name: (at, value) for name, value in zip(block.columns, values[-1].tolist(), strict=True)}

    def discard(self, step: int, last: Mapping[str, tuple[int, float]]) -> None:
        """Discard ``step`` and later steps, because the run continues from there again.

        The bucket that contains ``step`` keeps its values, which may include discarded ones.

        Args:
            step: first step to discard.
            last: step and value of each metric's last remaining record.
        """
        if step > self.step:
            return
        # Rounded up, so that the bucket that contains `step` is kept.
        keep = 0 if step <= self.first else -(-(step - self._origin) // self._width)
        # NaN marks buckets without a record.
        self._buckets[:, :, keep:] = np.nan
        self._last = dict(last)
        self.step = max((at for at, _ in last.values()), default=-1)

    def names(self) -> tuple[str, ...]:
        """Return the names of all metrics in order of first appearance."""
        return tuple(self._row_of)

    def last(self, name: str) -> tuple[int, float] | None:
        """Return the step and value of a metric's last record; None if there is none."""
        return self._last.get(name)

    def total(self, name: str) -> float:
        """Return the sum of a metric's finite values over the whole run; 0 if it was never recorded."""
        row = self._row_of.get(name)
        return 0.0 if row is None else float(np.nansum(self._buckets[SUM, row]))

    def trend(self, name: str) -> NDArray[np.float64]:
        """Return ``[3, n]``: minimum, maximum (NaN if empty), and 1 if a value was not finite, for each bucket.

        All metrics have the same buckets, from the first step of the run to the last.
        """
        row = self._row_of.get(name)
        used = 0 if self.step < 0 else max(0, self.step - self._origin) // self._width + 1
        return np.empty((3, 0)) if row is None else self._buckets[:SUM, row, :used].copy()

    def _start(self, last: int) -> int:
        if self._origin < 0:
            self._origin = self.first
        while (last - self._origin) // self._width >= BUCKETS:
            self._halve()
        return self._origin

    def _halve(self) -> None:
        # Adjacent buckets are merged in pairs: minimum of the minima, maximum of the maxima, sum of the sums.
        pairs = self._buckets.reshape(4, -1, BUCKETS // 2, 2)
        self._buckets = np.full_like(self._buckets, np.nan)
        half = self._buckets[:, :, : BUCKETS // 2]
        half[LOW] = np.fmin(pairs[LOW, ..., 0], pairs[LOW, ..., 1])
        half[HIGH:SUM] = np.fmax(pairs[HIGH:SUM, ..., 0], pairs[HIGH:SUM, ..., 1])
        half[SUM] = np.nansum(pairs[SUM], axis=-1)
        self._width *= 2

    def _metric_rows(self, columns: tuple[str, ...]) -> NDArray[np.intp]:
        known = self._rows_of_columns.get(columns)
        if known is None:
            for name in columns:
                self._row_of.setdefault(name, len(self._row_of))
            known = self._rows_of_columns[columns] = np.array([self._row_of[name] for name in columns], np.intp)
        # The capacity doubles, so that not every new metric requires a copy.
        while len(self._row_of) > self._buckets.shape[1]:
            self._buckets = np.concatenate((self._buckets, np.full_like(self._buckets, np.nan)), axis=1)
        return known

    def _condense(self, rows: NDArray[np.intp], columns: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        # Index of the first row of each bucket.
        starts = np.flatnonzero(np.diff(columns, prepend=-1))
        finite = np.where(np.isfinite(values), values, np.nan)
        at = np.ix_(rows, columns[starts])
        # fmin and fmax ignore NaN, which means that nothing is recorded yet.
        buckets = self._buckets
        buckets[LOW][at] = np.fmin(buckets[LOW][at], np.fmin.reduceat(finite, starts).T)
        buckets[HIGH][at] = np.fmax(buckets[HIGH][at], np.fmax.reduceat(finite, starts).T)
        buckets[BAD][at] = np.fmax(buckets[BAD][at], np.maximum.reduceat(~np.isfinite(values), starts).T)
        sums = np.add.reduceat(np.where(np.isfinite(values), values, 0.0), starts).T
        buckets[SUM][at] = np.nansum((buckets[SUM][at], sums), axis=0)
