"""Sink that exports the journal to TensorBoard: one event per row, with a fast event writer."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record.charts.layout import Layout
from fieldwatch.record.disk.backlog import WriteBacklog
from fieldwatch.record.metric import visible_columns
from fieldwatch.record.row import Block
from fieldwatch.record.sinks import summaries
from fieldwatch.record.sinks.event_files import EventFiles, frame


class TensorBoard:
    """Writes TensorBoard event files: scalars, images, histograms, text, hyperparameters and the chart layout.

    One event contains all scalars of a row, at the row's position (the step or the 1-based epoch). Bookkeeping columns
    are skipped. NaN and infinity are written unchanged, and TensorBoard marks them. Wall times follow the training
    time, anchored at the first block. Writes are unbuffered.

    Args:
        folder: folder of the event files; created if missing.
        clock: returns seconds since 1970.
    """

    def __init__(self, folder: Path | str, *, clock: Callable[[], float] = time.time) -> None:
        self._files = EventFiles(Path(folder), clock)
        self._clock = clock
        self._start: float | None = None
        self._position = 0
        # Templates by set of columns: building one is expensive, and few sets alternate in a run.
        self._layouts: dict[tuple[str, ...], tuple[NDArray[np.intp], summaries.ScalarTags]] = {}

    def __call__(self, block: Block) -> None:
        """Write the rows of a block."""
        self.extend((block,))

    def extend(self, blocks: Sequence[Block]) -> None:
        """Write the rows of several blocks."""
        blocks = [block for block in blocks if len(block)]
        if not blocks:
            return
        if self._start is None:
            # Count back from the last row of the first block, so that the curve of a resumed run continues in time.
            self._start = self._clock() - float(blocks[0].seconds[-1])
        parts: list[summaries.Scalars] = []
        for block in blocks:
            indices, tags = self._layout_of(block.columns)
            if len(indices):
                wall = self._start + block.seconds
                parts.append(summaries.Scalars(tags, wall, block.positions, block.values[:, indices]))
        for records in summaries.scalar_events(parts):
            self._files.append(records)
        self._position = int(blocks[-1].positions[-1])

    def _layout_of(self, columns: tuple[str, ...]) -> tuple[NDArray[np.intp], summaries.ScalarTags]:
        """Return the indices of the visible columns, and their tags."""
        known = self._layouts.get(columns)
        if known is None:
            visible = set(visible_columns(columns))
            indices = np.array([index for index, name in enumerate(columns) if name in visible], np.intp)
            tags = summaries.ScalarTags(tuple(name for name in columns if name in visible))
            known = self._layouts[columns] = indices, tags
        return known

    def image(self, name: str, position: int, png_bytes: bytes, width: int, height: int) -> None:
        """Log an encoded PNG of ``width`` x ``height`` pixels.

        Raises:
            ValueError: if the bytes are not a PNG.
        """
        # Images and histograms are optional: on a full disk, they must not displace rows.
        self._write(summaries.image(name, png_bytes, width, height), position, optional=True)

    def histogram(self, name: str, position: int, values: NDArray[np.floating[Any]]) -> None:
        """Log the distribution of the finite entries in 30 bins; do nothing if there are none."""
        visible = summaries.histogram(name, np.asarray(values))
        if visible is not None:
            self._write(visible, position, optional=True)

    def text(self, name: str, position: int, markdown: str) -> None:
        """Log Markdown."""
        self._write(summaries.text(name, markdown), position)

    def config(self, flat_config: Mapping[str, Any], final_metrics: Mapping[str, float]) -> None:
        """Log hyperparameters; if there are final metrics, log them as ``Final/<name>`` and mark the run as ended."""
        # The hparams plugin identifies a session by its start record.
        self._write(summaries.session_start(flat_config, self._clock()))
        if final_metrics:
            tags = summaries.ScalarTags(tuple(f"Final/{name}" for name in final_metrics))
            values = np.array([list(final_metrics.values())], np.float64)
            row = summaries.Scalars(tags, np.array([self._clock()]), np.array([self._position]), values)
            self._files.append(b"".join(summaries.scalar_events([row])))
            self._write(summaries.session_end(self._clock()))

    def layout(self, layout: Layout) -> None:
        """Set the chart layout of the custom scalars dashboard."""
        self._write(summaries.chart_layout(layout))

    def defer_to(self, backlog: WriteBacklog) -> None:
        """Queue records in a backlog while the disk is full."""
        self._files.queue.attach(backlog)

    def flush(self) -> None:
        """Do nothing, since writes are unbuffered."""

    def mark(self) -> dict[str, Any]:
        """Return the size of each event file in bytes, by file name."""
        return self._files.mark()

    def rewind(self, mark: Mapping[str, Any] | None) -> None:
        """Restore the curves at the mark, in one file with a new name; with None, remove all files of this sink.

        Warns:
            UserWarning: if a file of the mark no longer exists.
        """
        self._files.rewind(mark)

    def close(self) -> None:
        """Close the current event file."""
        self._files.close()

    def _write(self, value: bytes, position: int = 0, *, optional: bool = False) -> None:
        record = frame(summaries.event(value, wall=self._clock(), step=position))
        self._files.append(record, optional=optional)
