"""TensorBoard, as an export of the journal: one event per row, written by ourselves."""

import time
from collections.abc import Callable, Mapping
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
    """Writes event files that TensorBoard shows: scalars, images, histograms, text, hyperparameters, chart layout.

    One event carries all scalars of a row, at the row's position (the step, or the 1-based epoch); bookkeeping columns
    are left out; NaN and infinity are written as they are (TensorBoard marks them). Wall times follow training time
    from the moment of the first block. Each block is one write; nothing is held back.

    Args:
        folder: the event files' folder; made if missing.
        clock: seconds since 1970.
    """

    def __init__(self, folder: Path | str, *, clock: Callable[[], float] = time.time) -> None:
        self._files = EventFiles(Path(folder), clock)
        self._clock = clock
        self._start: float | None = None
        self._position = 0
        self._layouts: dict[tuple[str, ...], tuple[NDArray[np.intp], summaries.ScalarRows]] = {}

    def __call__(self, block: Block) -> None:
        """Write the rows of a block."""
        if not len(block):
            return
        if self._start is None:
            # Wall times count back from the first block's last row, so that a resumed curve continues in time.
            self._start = self._clock() - float(block.seconds[-1])
        known = self._layouts.get(block.columns)
        if known is None:
            visible = visible_columns(block.columns)
            indices = np.array([block.columns.index(name) for name in visible], np.intp)
            known = self._layouts[block.columns] = indices, summaries.ScalarRows(visible)
        indices, rows = known
        if len(indices):
            self._files.append(rows(self._start + block.seconds, block.positions, block.values[:, indices]))
        self._position = int(block.positions[-1])

    def image(self, name: str, position: int, png_bytes: bytes, width: int, height: int) -> None:
        """Show an encoded PNG of ``width`` x ``height`` pixels.

        Raises:
            ValueError: the bytes are not a PNG.
        """
        self._write(summaries.image(name, png_bytes, width, height), position, optional=True)

    def histogram(self, name: str, position: int, values: NDArray[np.floating[Any]]) -> None:
        """Show the distribution (30 bins) of the finite entries; nothing where there are none."""
        visible = summaries.histogram(name, np.asarray(values))
        if visible is not None:
            self._write(visible, position, optional=True)

    def text(self, name: str, position: int, markdown: str) -> None:
        """Show Markdown."""
        self._write(summaries.text(name, markdown), position)

    def config(self, flat_config: Mapping[str, Any], final_metrics: Mapping[str, float]) -> None:
        """Show the hyperparameters; with final metrics, also those (as ``Final/<name>``) and that the run has ended."""
        self._write(summaries.session_start(flat_config, self._clock()))
        if final_metrics:
            rows = summaries.ScalarRows(tuple(f"Final/{name}" for name in final_metrics))
            values = np.array([list(final_metrics.values())], np.float64)
            self._files.append(rows(np.array([self._clock()]), np.array([self._position]), values))
            self._write(summaries.session_end(self._clock()))

    def layout(self, layout: Layout) -> None:
        """Arrange the charts of the custom scalars dashboard."""
        self._write(summaries.chart_layout(layout))

    def defer_to(self, backlog: WriteBacklog) -> None:
        """Let records that a full disk refuses wait there."""
        self._files.queue.attach(backlog)

    def flush(self) -> None:
        """Do nothing: nothing is held back."""

    def mark(self) -> dict[str, Any]:
        """Return the sizes of the event files."""
        return self._files.mark()

    def rewind(self, mark: Mapping[str, Any] | None) -> None:
        """Make the folder end exactly at the mark, in one file of a new name; None removes all of our files.

        Warns:
            UserWarning: a file of the mark is gone.
        """
        self._files.rewind(mark)

    def close(self) -> None:
        """Close the file."""
        self._files.close()

    def _write(self, value: bytes, position: int = 0, *, optional: bool = False) -> None:
        record = frame(summaries.event(value, wall=self._clock(), step=position))
        self._files.append(record, optional=optional)
