"""Sink that writes one CSV file in long format, for spreadsheets and data frames."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fieldwatch.base import spreadsheet_cell
from fieldwatch.record.disk.backlog import WriteBacklog
from fieldwatch.record.metric import visible_columns
from fieldwatch.record.row import Block
from fieldwatch.record.sinks.text_file import TextFile

HEADER = "step,axis,position,seconds,metric,value\n"


class Csv:
    """Writes one line per value: ``step,axis,position,seconds,metric,value``.

    The format is long rather than wide because terms switch on and off during a run: wide files would need one file per
    phase, which would have to be joined again. In long format, a metric that first appears at step 7000 is just another
    line, nothing is kept in memory, and a resume only has to truncate the file. To convert it to wide format, use
    ``pandas.read_csv(path).pivot(index="step", columns="metric", values="value")``. The drawback is the size, about 60
    bytes per value.

    A name that a spreadsheet would interpret as a formula (starting with ``=``, ``+``, ``-`` or ``@``) is prefixed with
    an apostrophe. Values are written with full precision; non-finite ones as ``nan``, ``inf`` and ``-inf``.
    Bookkeeping columns are skipped.

    Args:
        path: path of the file, such as ``runs/bear/metrics.csv``.
    """

    def __init__(self, path: Path | str) -> None:
        self._file = TextFile(Path(path), HEADER)
        self._quoted: dict[str, str] = {}

    def __call__(self, block: Block) -> None:
        """Write the rows of a block."""
        visible = visible_columns(block.columns)
        indices = [block.columns.index(name) for name in visible]
        names = [self._name(name) for name in visible]
        heads = zip(block.steps.tolist(), block.positions.tolist(), block.seconds.tolist(), strict=True)
        rows = block.values[:, indices].tolist()
        lines = [
            # repr gives the shortest text that reads back as the same float64.
            f"{step},{block.axis},{position},{seconds:.6f},{name},{value!r}\n"
            for (step, position, seconds), row in zip(heads, rows, strict=True)
            for name, value in zip(names, row, strict=True)
        ]
        self._file.append("".join(lines))

    def defer_to(self, backlog: WriteBacklog) -> None:
        """Queue lines in a backlog while the disk is full."""
        self._file.queue.attach(backlog)

    def mark(self) -> dict[str, Any]:
        """Return the size of the file in bytes, by file name."""
        return self._file.mark()

    def rewind(self, mark: Mapping[str, Any] | None) -> None:
        """Truncate the file to the mark; with None, to its header."""
        self._file.rewind(mark)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _name(self, name: str) -> str:
        """Quote a name if CSV requires it."""
        # The csv module is slow and the same few names occur in every row, so cache the results.
        quoted = self._quoted.get(name)
        if quoted is None:
            text = io.StringIO()
            csv.writer(text, lineterminator="").writerow([spreadsheet_cell(name)])
            quoted = self._quoted[name] = text.getvalue()
        return quoted
