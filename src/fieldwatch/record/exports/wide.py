"""Convert the valid rows of a run to wide tables: one row per step (or epoch), one column per metric."""

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
    """Consecutive rows of a wide table.

    Attributes:
        positions: ``[rows]`` step or 1-based epoch, strictly ascending.
        steps: ``[rows]`` 0-based step that recorded the row.
        seconds: ``[rows]`` training time.
        segments: ``[rows]`` 1-based number of the segment that recorded the row.
        samples: sample names of each row's batch.
        values: ``[columns, rows]``; NaN and infinity are recorded values where ``present`` is True.
        present: ``[columns, rows]`` whether the metric was recorded in the row.
    """

    positions: NDArray[np.int64]
    steps: NDArray[np.int64]
    seconds: NDArray[np.float64]
    segments: NDArray[np.int32]
    samples: list[tuple[str, ...]]
    values: NDArray[np.float64]
    present: NDArray[np.bool_]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.positions)


@dataclass(kw_only=True)
class Outline:
    """Summary of all rows of one axis, collected in a first pass.

    Attributes:
        columns: index of each metric, in order of first appearance.
        rows: number of rows, including late ones.
        names_samples: whether any row names samples.
        late: late rows by position, that is rows recorded after one of the same or a later position; several late rows
            of one position are merged. They are few, so they are kept in memory.
    """

    columns: dict[str, int] = field(default_factory=dict[str, int])
    rows: int = 0
    names_samples: bool = False
    late: dict[int, Row] = field(default_factory=dict[int, Row])
    _last: int = -1

    def add(self, block: Block) -> None:
        """Add the next block."""
        for name in block.columns:
            self.columns.setdefault(name, len(self.columns))
        self.rows += len(block)
        self.names_samples = self.names_samples or bool(block.samples)
        late, self._last = lateness(block, self._last)
        if late.any():
            for row in block.part(late).rows():
                # Merge with an earlier late row of the same position: the later value of a metric wins.
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
    """Return ``[rows]`` whether each row is late, and the highest position reached by the end of the block.

    Args:
        block: next block of an axis.
        last: highest position reached before the block.
    """
    # A row is late if its position does not exceed all earlier positions.
    reached = np.maximum.accumulate(np.concatenate(([last], block.positions)))
    return block.positions <= reached[:-1], int(reached[-1])


def read_outlines(folder: Path, damage: DamageTally | None = None) -> dict[Axis, Outline]:
    """Read all valid rows once and summarize them per axis.

    Args:
        folder: the run folder.
        damage: counter of damaged lines, which are skipped.
    """
    outlines: dict[Axis, Outline] = {}
    for block in read_blocks(folder, damage):
        outlines.setdefault(block.axis, Outline()).add(block)
    return outlines


@dataclass(frozen=True, kw_only=True)
class ExportSource:
    """A run to export.

    Attributes:
        folder: the run folder.
        manifest: contents of its run.json.
        catalogue: declarations of its metrics.
        outlines: summary of its rows, per axis.
    """

    folder: Path
    manifest: Manifest
    catalogue: Catalogue
    outlines: Mapping[Axis, Outline]


def batches(source: ExportSource) -> Iterator[tuple[Axis, WideBatch]]:
    """Yield the wide tables of all axes in batches, with constant memory use.

    Each position has one row: late rows are merged into it, and the later value wins. Rows that are recorded during the
    export are not included.

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
        outline: summary of all rows of the axis.
        starts: first step of each segment of the run.
    """

    def __init__(self, outline: Outline, starts: list[int]) -> None:
        self._outline = outline
        self._starts = starts
        # Limit the number of cells rather than rows, since a run may have thousands of columns.
        columns = len(outline.columns)
        self._batch_rows = max(_MIN_BATCH_ROWS, min(_MAX_BATCH_ROWS, _BATCH_CELLS // max(columns, 1)))
        self._late = sorted(outline.late)
        self._rows_left = outline.rows
        self._last = -1
        self._blocks = list[Block]()
        self._column_indices: dict[tuple[str, ...], NDArray[np.intp]] = {}

    def add(self, block: Block) -> Iterator[WideBatch]:
        """Add the next block, and yield a batch once enough rows are collected."""
        # Skip rows that the run has appended since the first pass: they are not in the outline.
        block = block.part(slice(self._rows_left))
        self._rows_left -= len(block)
        late, self._last = lateness(block, self._last)
        # Late rows were already collected by the outline.
        block = block.part(~late) if late.any() else block
        if len(block):
            self._blocks.append(block)
        # Late rows up to the last position belong to this batch; those beyond it wait for their batch.
        if sum(map(len, self._blocks)) >= self._batch_rows:
            yield self._batch(self._take_late(bisect_right(self._late, int(self._blocks[-1].positions[-1]))))

    def rest(self) -> Iterator[WideBatch]:
        """Yield the remaining rows."""
        if self._blocks or self._late:
            yield self._batch(self._take_late(len(self._late)))

    def _take_late(self, count: int) -> list[Row]:
        """Remove and return the late rows of the first ``count`` positions."""
        taken = self._late[:count]
        self._late = self._late[count:]
        return [self._outline.late[position] for position in taken]

    def _batch(self, late: list[Row]) -> WideBatch:
        blocks = [*self._blocks, *map(Block.of, late)]
        self._blocks = []
        # Late rows come last, so that their values overwrite those of earlier rows of the same position.
        arrivals = np.concatenate([block.positions for block in blocks])
        positions, rows = np.unique(arrivals, return_inverse=True)
        # Columns first, because the table writers process one column at a time.
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
            # Without late rows the indices are consecutive: a slice is faster than fancy indexing.
            cells = (
                np.ix_(self._indices_of(block.columns), at) if late else (self._indices_of(block.columns), _span(at))
            )
            values[cells] = block.values[:, self._is_outlined(block.columns)].T
            present[cells] = True
            steps[at] = block.steps
            seconds[at] = block.seconds
            # Not strict: `samples` is empty in a block without sample names.
            for i, names in zip(at.tolist(), block.samples, strict=False):
                samples[i] = names or samples[i]
        segments = np.zeros(len(positions), np.int32)
        for number, resume in enumerate(self._starts, 1):
            # Later segments overwrite earlier ones: each contains all steps from its resume step on.
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
        """Return the indices of these columns in the outline; columns that are not in it are skipped."""
        known = self._column_indices.get(columns)
        if known is None:
            indices = [self._outline.columns[name] for name in columns if name in self._outline.columns]
            known = self._column_indices[columns] = np.array(indices, np.intp)
        return known

    def _is_outlined(self, columns: tuple[str, ...]) -> list[bool]:
        """Return for each of these columns whether the first pass has found it."""
        return [name in self._outline.columns for name in columns]


def _span(at: NDArray[np.intp]) -> slice:
    """Convert consecutive indices to a slice."""
    return slice(int(at[0]), int(at[-1]) + 1)
