"""Rows and blocks of rows: what one step recorded, and what many steps recorded."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record.metric import Axis


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one step recorded.

    Attributes:
        step: 0-based index of the step during which it was recorded.
        seconds: training time since the run's first step, continued over resumes.
        values: metric name to value; a metric that does not apply is absent, never zero.
        axis: what ``position`` counts.
        position: where the row stands on its axis; the step itself on the step axis.
        samples: names of the samples (views, frames, patches) of the batch.
    """

    step: int
    seconds: float
    values: Mapping[str, float]
    axis: Axis = "step"
    position: int = -1
    samples: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Stand on the step itself where no other position is named."""
        if self.position < 0:
            object.__setattr__(self, "position", self.step)


@dataclass(frozen=True, kw_only=True)
class Block:
    """Consecutive rows that recorded the same set of metrics.

    Attributes:
        axis: the axis of all rows.
        columns: metric names, one per column of ``values``.
        steps: ``[rows]`` int64.
        seconds: ``[rows]`` float64.
        positions: ``[rows]`` int64.
        values: ``[rows, columns]`` float64; NaN and infinity mean just that.
        samples: per row, the names of the batch's samples; an empty tuple where no row names any.
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
        """Make a block of one row."""
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
        """Count the rows."""
        return len(self.steps)

    def part(self, selection: slice | NDArray[np.bool_]) -> "Block":
        """Return the block of the rows in these places."""
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
            samples=samples if any(samples) else (),
        )

    def before(self, step: float) -> "Block":
        """Return the block of the rows of earlier steps."""
        early = self.steps < step
        # No copy in the usual case, where nothing is void.
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
"""Takes the rows as they come; called from the writer's thread, one block after the other."""
