"""Progress bar of a training, as a sink of its record."""

import math
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from fieldwatch.base import number
from fieldwatch.record import Block
from fieldwatch.record.disk import DISK_EVENTS, DISK_FULL


class ProgressBar:
    """Displays step, remaining time and the latest values of a few metrics.

    Args:
        total: number of steps of the whole run.
        formats: text by metric name, with ``{}`` for the value.
        console: console to print to.
    """

    def __init__(self, total: int, formats: Mapping[str, str], console: Console) -> None:
        self._formats = formats
        self._last: dict[str, float] = {}
        self._note = ""
        self._total = total
        self._progress = Progress(
            BarColumn(bar_width=12),
            MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=len(f"{total}/{total}"))),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            TextColumn("{task.fields[values]}"),
            console=console,
            refresh_per_second=2,
        )
        self._task = self._progress.add_task("", total=total, values="")
        self._started_at: int | None = None

    def __call__(self, block: Block) -> None:
        """Display the latest values of a block."""
        # Metrics are recorded on different axes; each block updates only its own.
        for name in self._formats.keys() & set(block.columns):
            self._last[name] = float(block.values[-1, block.columns.index(name)])
        if block.axis == "step":
            self._advance(int(block.steps[-1]) + 1, int(block.steps[0]))

    def event(self, event: Mapping[str, Any]) -> None:
        """Display a note while the disk is full."""
        if event["kind"] in DISK_EVENTS:
            self._note = "disk full, rows wait" if event["kind"] == DISK_FULL else ""
            self._show()

    def _show(self) -> None:
        known = [text.format(_short(self._last[name])) for name, text in self._formats.items() if name in self._last]
        self._progress.update(self._task, values=" ".join([self._note, *known] if self._note else known))

    def _advance(self, done: int, first: int) -> None:
        # In a resumed run, only the steps of this process count for the speed.
        if self._started_at is None:
            self._started_at = first
            self._progress.reset(self._task, total=self._total, completed=first)
        self._progress.update(self._task, completed=done)
        self._show()

    def __enter__(self) -> Self:
        """Start the display."""
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave the last state on the screen."""
        self._progress.stop()


def _short(value: float) -> str:
    # A loss of NaN is shown by its name: it is no missing value.
    return "nan" if math.isnan(value) else number(value)
