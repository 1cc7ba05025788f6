"""Write the tables of an export as CSV files."""

import csv
from collections.abc import Mapping, Sequence
from io import BufferedWriter, TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import orjson
from numpy.typing import NDArray

from fieldwatch.base import open_new, spreadsheet_cell
from fieldwatch.record.catalogue import Catalogue
from fieldwatch.record.exports.columns import Cells, Columns
from fieldwatch.record.exports.wide import WideBatch


class CsvTable:
    """Writer of one CSV file with the same columns as the Parquet file.

    A metric that was not recorded in a step is an empty field. Non-finite values are ``nan``, ``inf`` and ``-inf``.
    Numbers are written with full precision. Sample names are joined by ``;``. A text that a spreadsheet would interpret
    as a formula is prefixed with an apostrophe.

    Args:
        path: path of the file.
        columns: columns of the table.
        catalogue: ignored, because CSV has no column metadata.
        about: ignored, because CSV has no file metadata.
    """

    suffix = ".csv"

    def __init__(self, path: Path, columns: Columns, catalogue: Catalogue, about: Mapping[str, str]) -> None:  # noqa: ARG002  as ParquetTable
        # newline="": the csv module writes line ends itself.
        self._file = TextIOWrapper(BufferedWriter(open_new(path)), newline="", encoding="utf-8")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._kinds = tuple(columns.head.values())
        # Tags may come from anywhere: escape names that a spreadsheet would run as a formula.
        self._writer.writerow([spreadsheet_cell(name) for name in (*columns.head, *columns.metrics.values())])

    def write(self, batch: WideBatch, head: Sequence[Cells]) -> None:
        """Append a batch; ``head`` holds the columns that precede the metrics."""
        head_cells = [
            [spreadsheet_cell(";".join(names)) for names in values] if kind == "texts" else _plain(values)
            for kind, values in zip(self._kinds, head, strict=True)
        ]
        cells = [_texts(values, present) for values, present in zip(batch.values, batch.present, strict=True)]
        self._writer.writerows(zip(*head_cells, *cells, strict=True))

    def write_events(self, events: Sequence[Sequence[Any]]) -> None:
        """Append events."""
        self._writer.writerows([spreadsheet_cell(cell) for cell in event] for event in events)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()


def _plain(values: Cells) -> Sequence[Any]:
    """Convert numbers to Python's types, which print with full precision, and escape texts for spreadsheets."""
    return values.tolist() if isinstance(values, np.ndarray) else [spreadsheet_cell(value) for value in values]


def _texts(values: NDArray[np.float64], present: NDArray[np.bool_]) -> list[str]:
    """Format a column: finite numbers, names of non-finite ones, and empty strings for absent values."""
    # orjson formats the whole column in one call but writes null for non-finite numbers; these are replaced below.
    texts = orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY).decode()[1:-1].split(",")
    for i in np.flatnonzero(~np.isfinite(values)).tolist():
        texts[i] = repr(float(values[i])) if present[i] else ""
    return texts
