"""The standing rows of a run as wide tables: one row per step (or epoch), one column per metric, in order."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record.catalogue import Catalogue
from fieldwatch.record.damage import DamageTally
from fieldwatch.record.manifest import Manifest
from fieldwatch.record.metric import Axis
from fieldwatch.record.reading import read_blocks, read_segments
from fieldwatch.record.row import Block, Row

_BATCH_CELLS = 1 << 21
_MAX_BATCH_ROWS = 1 << 16
_MIN_BATCH_ROWS = 512


@dataclass(frozen=True, kw_only=True)
class WideBatch:
    """Some consecutive rows of a wide table.

    Attributes:
        positions: ``[rows]`` step or epoch; strictly ascending.
        steps: ``[rows]`` 0-based step during which it was recorded.
        seconds: ``[rows]`` training time.
        segments: ``[rows]`` which start of the process recorded it, from 1.
        samples: per row, the names of the batch's samples.
        values: ``[columns, rows]``; NaN and infinity mean just that.
        present: ``[columns, rows]`` whether the metric was recorded there.
    """

    positions: NDArray[np.int64]
    steps: NDArray[np.int64]
    seconds: NDArray[np.float64]
    segments: NDArray[np.int32]
    samples: list[tuple[str, ...]]
    values: NDArray[np.float64]
    present: NDArray[np.bool_]

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.positions)


@dataclass(kw_only=True)
class Outline:
    """What a first pass over all rows of one axis finds.

    Attributes:
        columns: the metrics, in order of first appearance.
        rows: how many rows came, late ones included.
        names_samples: whether a row names samples.
        late: rows that came after one of the same or a later position, merged where several did; few, and so kept.
    """

    columns: dict[str, int] = field(default_factory=dict[str, int])
    rows: int = 0
    names_samples: bool = False
    late: dict[int, Row] = field(default_factory=dict[int, Row])
    _last: int = -1

    def add(self, block: Block) -> None:
        """Take in the next block."""
        for name in block.columns:
            self.columns.setdefault(name, len(self.columns))
        self.rows += len(block)
        self.names_samples = self.names_samples or bool(block.samples)
        late, self._last = lateness(block, self._last)
        if late.any():
            for row in block.part(late).rows():
                before = self.late.get(row.position)
                values = {**before.values, **row.values} if before else row.values
                samples = row.samples or (before.samples if before else ())
                self.late[row.position] = Row(
                    step=row.step,
                    seconds=row.seconds,
                    values=values,
                    axis=row.axis,
                    position=row.position,
                    samples=samples,
                )


def lateness(block: Block, last: int) -> tuple[NDArray[np.bool_], int]:
    """Return ``[rows]`` whether a row's position was reached before it, and the last position reached after them."""
    # A row is late if its position is not above all earlier ones.
    reached = np.maximum.accumulate(np.concatenate(([last], block.positions)))
    return block.positions <= reached[:-1], int(reached[-1])


def read_outlines(folder: Path, damage: DamageTally | None = None) -> dict[Axis, Outline]:
    """Read all valid rows once.

    Args:
        folder: the run's.
        damage: counts the damaged lines, which are left out.
    """
    found: dict[Axis, Outline] = {}
    for block in read_blocks(folder, damage):
        found.setdefault(block.axis, Outline()).add(block)
    return found


@dataclass(frozen=True, kw_only=True)
class ExportSource:
    """A run whose record is exported.

    Attributes:
        folder: the run's.
        manifest: its run.json.
        catalogue: what its metrics mean.
        outlines: the outline of its rows, per axis.
    """

    folder: Path
    manifest: Manifest
    catalogue: Catalogue
    outlines: Mapping[Axis, Outline]


def batches(source: ExportSource) -> Iterator[tuple[Axis, WideBatch]]:
    """Yield the wide tables of all axes piece by piece; memory stays flat, however long the run is.

    A position has one row: what came late is merged into it, the later value wins. What is recorded while this reads
    is left out.

    Raises:
        CorruptRecord: see :func:`read_history`.
    """
    starts = [segment.resume for segment in read_segments(source.folder)]
    tables: dict[Axis, _BatchBuilder] = {
        axis: _BatchBuilder(outline, starts) for axis, outline in source.outlines.items()
    }
    for block in read_blocks(source.folder):
        if block.axis in tables:
            for batch in tables[block.axis].add(block):
                yield block.axis, batch
    for axis, table in tables.items():
        for batch in table.rest():
            yield axis, batch


class _BatchBuilder:
    """Collects the rows of one axis into batches.

    Args:
        outline: of all rows.
        starts: the steps that the segments of the run start from.
    """

    def __init__(self, outline: Outline, starts: list[int]) -> None:
        self._outline = outline
        self._starts = starts
        columns = len(outline.columns)
        self._batch_rows = max(_MIN_BATCH_ROWS, min(_MAX_BATCH_ROWS, _BATCH_CELLS // max(columns, 1)))
        self._late = sorted(outline.late)
        self._rows_left = outline.rows
        self._last = -1
        self._blocks = list[Block]()
        self._column_indices: dict[tuple[str, ...], NDArray[np.intp]] = {}

    def add(self, block: Block) -> Iterator[WideBatch]:
        """Take in the next block, and yield the batch that is full."""
        # Rows that the run appends between the two passes are not in the outline.
        block = block.part(slice(self._rows_left))
        self._rows_left -= len(block)
        late, self._last = lateness(block, self._last)
        block = block.part(~late) if late.any() else block
        if len(block):
            self._blocks.append(block)
        if sum(map(len, self._blocks)) >= self._batch_rows:
            yield self._batch(self._take_late(bisect_right(self._late, int(self._blocks[-1].positions[-1]))))

    def rest(self) -> Iterator[WideBatch]:
        """Yield what is left."""
        if self._blocks or self._late:
            yield self._batch(self._take_late(len(self._late)))

    def _take_late(self, count: int) -> list[Row]:
        """Return the late rows of the first ``count`` positions, which are not asked for again."""
        taken = self._late[:count]
        self._late = self._late[count:]
        return [self._outline.late[position] for position in taken]

    def _batch(self, late: list[Row]) -> WideBatch:
        blocks = [*self._blocks, *map(Block.of, late)]
        self._blocks = []
        # Late rows come last, so their values overwrite those of the rows they repeat.
        arrivals = np.concatenate([block.positions for block in blocks])
        positions, rows = np.unique(arrivals, return_inverse=True)
        shape = len(self._outline.columns), len(positions)
        values = np.full(shape, np.nan)
        present = np.zeros(shape, np.bool_)
        steps = np.empty(len(positions), np.int64)
        seconds = np.empty(len(positions))
        samples: list[tuple[str, ...]] = [()] * len(positions)
        start = 0
        for block in blocks:
            at = rows[start : start + len(block)]
            start += len(block)
            # Without late rows positions ascend: a slice, which is a view, replaces fancy indexing.
            cells = (
                np.ix_(self._indices_of(block.columns), at) if late else (self._indices_of(block.columns), _span(at))
            )
            values[cells] = block.values[:, self._is_outlined(block.columns)].T
            present[cells] = True
            steps[at] = block.steps
            seconds[at] = block.seconds
            for i, names in zip(at.tolist(), block.samples, strict=False):
                samples[i] = names or samples[i]
        segments = np.zeros(len(positions), np.int32)
        for number, resume in enumerate(self._starts, 1):
            # Later segments overwrite earlier ones, since each holds all steps from its resume step on.
            segments[steps >= resume] = number
        return WideBatch(
            positions=positions,
            steps=steps,
            seconds=seconds,
            segments=segments,
            samples=samples,
            values=values,
            present=present,
        )

    def _indices_of(self, columns: tuple[str, ...]) -> NDArray[np.intp]:
        """Return the rows of the table's array that these columns have."""
        known = self._column_indices.get(columns)
        if known is None:
            places = [self._outline.columns[name] for name in columns if name in self._outline.columns]
            known = self._column_indices[columns] = np.array(places, np.intp)
        return known

    def _is_outlined(self, columns: tuple[str, ...]) -> list[bool]:
        """Return which of these columns were found in the first pass."""
        return [name in self._outline.columns for name in columns]


def _span(at: NDArray[np.intp]) -> slice:
    """Return consecutive places as a slice."""
    return slice(int(at[0]), int(at[-1]) + 1)
