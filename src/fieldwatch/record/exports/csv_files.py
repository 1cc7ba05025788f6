"""CSV files of a run, for spreadsheets and everything else."""

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
    """One CSV file with the columns of the Parquet file.

    A metric that was not recorded in a step is an empty field; non-finite values are ``nan``, ``inf`` and ``-inf``.
    Numbers have all their digits. Names of samples are joined by ``;``. A text that a spreadsheet would take for a
    formula gets an apostrophe in front of it.

    Args:
        path: the file.
        columns: its columns.
        catalogue: not used: CSV has no place for what metrics mean.
        about: not used either.
    """

    suffix = ".csv"

    def __init__(self, path: Path, columns: Columns, catalogue: Catalogue, about: Mapping[str, str]) -> None:  # noqa: ARG002  as ParquetTable
        self._file = TextIOWrapper(BufferedWriter(open_new(path)), newline="", encoding="utf-8")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._kinds = tuple(columns.head.values())
        self._writer.writerow([spreadsheet_cell(name) for name in (*columns.head, *columns.metrics.values())])

    def write(self, batch: WideBatch, head: Sequence[Cells]) -> None:
        """Append a batch; ``head`` are the columns before the metrics."""
        shown = [
            [spreadsheet_cell(";".join(names)) for names in values] if kind == "texts" else _plain(values)
            for kind, values in zip(self._kinds, head, strict=True)
        ]
        cells = [_texts(values, present) for values, present in zip(batch.values, batch.present, strict=True)]
        self._writer.writerows(zip(*shown, *cells, strict=True))

    def write_events(self, events: Sequence[Sequence[Any]]) -> None:
        """Append events."""
        self._writer.writerows([spreadsheet_cell(cell) for cell in event] for event in events)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()


def _plain(values: Cells) -> Sequence[Any]:
    """Return numbers as Python's own, which print with all their digits."""
    return values.tolist() if isinstance(values, np.ndarray) else [spreadsheet_cell(value) for value in values]


def _texts(values: NDArray[np.float64], present: NDArray[np.bool_]) -> list[str]:
    """Return each cell's text: the number, a name where it is not finite, nothing where there is none."""
    # orjson writes null for non-finite numbers; these are replaced below.
    texts = orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY).decode()[1:-1].split(",")
    for i in np.flatnonzero(~np.isfinite(values)).tolist():
        texts[i] = repr(float(values[i])) if present[i] else ""
    return texts
