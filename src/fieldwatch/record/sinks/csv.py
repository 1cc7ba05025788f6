"""One CSV file in long format, for spreadsheets and data frames."""

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

    Long format rather than one wide file per set of columns: terms switch on and off during a run, so wide files would
    come one per phase and would have to be joined again; here a metric that appears at step 7000 is just another line,
    nothing is held in memory, and a resume only has to cut the file. ``pandas.read_csv(path).pivot(index="step",
    columns="metric", values="value")`` makes it wide. The price is size, about 60 bytes per value.

    A name that a spreadsheet would take for a formula (``=``, ``+``, ``-``, ``@`` in front) gets an apostrophe in front
    of it. Values are written with all their digits; non-finite ones as ``nan``, ``inf`` and ``-inf``.
    Bookkeeping columns are left out.

    Args:
        path: the file, such as ``runs/bear/metrics.csv``.
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
            f"{step},{block.axis},{position},{seconds:.6f},{name},{value!r}\n"
            for (step, position, seconds), row in zip(heads, rows, strict=True)
            for name, value in zip(names, row, strict=True)
        ]
        self._file.append("".join(lines))

    def defer_to(self, backlog: WriteBacklog) -> None:
        """Let lines that a full disk refuses wait there."""
        self._file.queue.attach(backlog)

    def mark(self) -> dict[str, Any]:
        """Return the file's size."""
        return self._file.mark()

    def rewind(self, mark: Mapping[str, Any] | None) -> None:
        """Cut the file back to the mark; to its header for None."""
        self._file.rewind(mark)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _name(self, name: str) -> str:
        """Quote a name where CSV needs it."""
        # The same few names come in every line; the csv module is slow enough to cache its answers.
        quoted = self._quoted.get(name)
        if quoted is None:
            text = io.StringIO()
            csv.writer(text, lineterminator="").writerow([spreadsheet_cell(name)])
            quoted = self._quoted[name] = text.getvalue()
        return quoted
