"""Export a run's record to TensorBoard event files: one continuous curve per metric, one event per step."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import numpy as np

from fieldwatch.record.charts.layout import default_layout
from fieldwatch.record.config.values import flattened
from fieldwatch.record.exports.wide import ExportSource, WideBatch, batches
from fieldwatch.record.manifest import Manifest
from fieldwatch.record.metric import Axis
from fieldwatch.record.row import Block
from fieldwatch.record.sinks import TensorBoard


def write_event_files(source: ExportSource, out: Path) -> dict[Axis, int]:
    """Write a run's valid rows, its config and its chart layout; return the number of rows per axis.

    Wall times are the run's first start plus the training time.

    Raises:
        ValueError: if a step is negative or exceeds TensorBoard's limit.
        CorruptRecord: see :func:`read_history`.
    """
    began = _start(source.manifest)
    # The sink derives wall times from its clock. A list, so that the time can be set in the loop below.
    clock = [began]
    sink = TensorBoard(out, clock=lambda: clock[0])
    recorded = [name for outline in source.outlines.values() for name in outline.columns]
    declared = dict.fromkeys(metric for name in recorded if (metric := source.catalogue.find(name)) is not None)
    if declared:
        sink.layout(default_layout(declared))
    sink.config(flattened(source.manifest.config), {})
    rows: dict[Axis, int] = {}
    for axis, batch in batches(source):
        for block in _blocks(axis, tuple(source.outlines[axis].columns), batch):
            if not rows:  # the sink derives the start time from its clock and the last row of the first block
                clock[0] = began + float(block.seconds[-1])
            sink(block)
            rows[axis] = rows.get(axis, 0) + len(block)
    sink.close()
    return rows


def _start(manifest: Manifest) -> float:
    """Return the start time of the run's first segment, in seconds since 1970; 0 if unknown."""
    started = manifest.segments[0].get("started", "") if manifest.segments else ""
    try:
        return datetime.fromisoformat(started).timestamp()
    except (TypeError, ValueError):
        return 0.0


def _blocks(axis: Axis, columns: tuple[str, ...], batch: WideBatch) -> Iterator[Block]:
    """Split a batch into blocks of consecutive rows that recorded the same metrics."""
    # All rows of a block share one set of columns, so cut wherever the set of recorded metrics changes.
    borders = np.flatnonzero((batch.present[:, 1:] != batch.present[:, :-1]).any(axis=0)) + 1
    for start, stop in zip([0, *borders], [*borders, len(batch)], strict=True):
        present = np.flatnonzero(batch.present[:, start])
        yield Block(
            axis=axis,
            columns=tuple(columns[i] for i in present),
            steps=batch.steps[start:stop],
            seconds=batch.seconds[start:stop],
            positions=batch.positions[start:stop],
            values=np.ascontiguousarray(batch.values[present, start:stop].T),
        )
