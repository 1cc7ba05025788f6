"""Rows (the values of one step) and blocks (consecutive rows with the same columns)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record.metric import Axis


@dataclass(frozen=True, kw_only=True)
class Row:
    """The values that one step recorded.

    Attributes:
        step: 0-based index of the step that recorded the row.
        seconds: training time since the run's first step, accumulated over resumes.
        values: value of each metric by name; a metric that does not apply is absent, never zero.
        axis: unit of ``position``.
        position: coordinate on the axis; equal to ``step`` on the step axis.
        samples: names of the samples (views, frames, patches) in the batch.
    """

    step: int
    seconds: float
    values: Mapping[str, float]
    axis: Axis = "step"
    position: int = -1
    samples: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Default the position to the step."""
        if self.position < 0:
            # Regular assignment is not possible in a frozen dataclass.
            object.__setattr__(self, "position", self.step)


@dataclass(frozen=True, kw_only=True)
class Block:
    """Consecutive rows that recorded the same set of metrics.

    Attributes:
        axis: axis shared by all rows.
        columns: metric names, one per column of ``values``.
        steps: ``[rows]`` int64, 0-based step of each row.
        seconds: ``[rows]`` float64, training time of each row.
        positions: ``[rows]`` int64, coordinate of each row on the axis.
        values: ``[rows, columns]`` float64; NaN and infinity are recorded values, not markers of missing ones.
        samples: sample names of each row's batch; empty if no row names any.
    """

    axis: Axis
    columns: tuple[str, ...]
    steps: NDArray[np.int64]
    seconds: NDArray[np.float64]
    positions: NDArray[np.int64]
    values: NDArray[np.float64]
    samples: tuple[tuple[str, ...], ...] = field(default=())

    @classmethod
    def of(cls, row: Row) -> "Block":
        """Return a block that holds a single row."""
        return cls(
            axis=row.axis,
            columns=tuple(row.values),
            steps=np.array([row.step], np.int64),
            seconds=np.array([row.seconds], np.float64),
            positions=np.array([row.position], np.int64),
            values=np.array([list(row.values.values())], np.float64).reshape(1, -1),
            samples=(row.samples,) if row.samples else (),
        )

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.steps)

    def part(self, selection: slice | NDArray[np.bool_]) -> "Block":
        """Return a block of the selected rows."""
        samples = self.samples
        if samples:
            samples = samples[selection] if isinstance(selection, slice) else tuple(compress(samples, selection))
        return Block(
            axis=self.axis,
            columns=self.columns,
            steps=self.steps[selection],
            seconds=self.seconds[selection],
            positions=self.positions[selection],
            values=self.values[selection],
            # Normalize to the empty tuple if the selected rows name no samples.
            samples=samples if any(samples) else (),
        )

    def before(self, step: float) -> "Block":
        """Return a block of the rows whose step is less than ``step``."""
        early = self.steps < step
        # Avoid the copy in the common case: no row was invalidated by a resume.
        return self if early.all() else self.part(early)

    def rows(self) -> Iterator[Row]:
        """Yield the rows one by one."""
        for i, step in enumerate(self.steps):
            values = dict(zip(self.columns, self.values[i].tolist(), strict=True))
            samples = self.samples[i] if self.samples else ()
            position = int(self.positions[i])
            seconds = float(self.seconds[i])
            yield Row(
                step=int(step), seconds=seconds, values=values, axis=self.axis, position=position, samples=samples
            )


Sink = Callable[[Block], None]
"""A consumer of blocks. The writer thread calls it with one block after the other."""
