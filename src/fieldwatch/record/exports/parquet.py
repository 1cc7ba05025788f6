"""Write the tables of an export as Parquet files (requires the extra ``fieldwatch[parquet]``)."""

# pyarrow has no type annotations, so strict checking is disabled in this module.
# pyright: basic

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fieldwatch.record.catalogue import Catalogue
from fieldwatch.record.exports.columns import EVENT_COLUMNS, Cells, Columns
from fieldwatch.record.exports.wide import WideBatch
from fieldwatch.record.sinks import MissingExtra


class ParquetTable:
    """Writer of one Parquet file, which grows by row groups.

    Metrics are doubles: null if not recorded in a step, NaN if the recorded value was NaN. The metadata of a column
    contains ``unit``, ``meaning`` and ``better`` if the metric is declared.

    Args:
        path: path of the file.
        columns: columns of the table.
        catalogue: declarations of the metrics.
        about: metadata of the file.

    Raises:
        MissingExtra: if pyarrow is not installed.
    """

    suffix = ".parquet"

    def __init__(self, path: Path, columns: Columns, catalogue: Catalogue, about: Mapping[str, str]) -> None:
        try:
            import pyarrow as pa  # noqa: PLC0415  optional, and 0.3 s
            import pyarrow.parquet as pq  # noqa: PLC0415  optional, and 0.3 s
        except ImportError as error:
            raise MissingExtra("parquet") from error
        self._pa = pa
        kinds = {"int": pa.int64(), "real": pa.float64(), "text": pa.string(), "texts": pa.list_(pa.string())}
        fields = [pa.field(name, kinds[kind]) for name, kind in columns.head.items()]
        fields += [
            pa.field(column, pa.float64(), metadata=_metadata(catalogue, name))
            for name, column in columns.metrics.items()
        ]
        self._schema = pa.schema(fields, metadata=dict(about))
        # Dictionary encoding pays off for repeated texts only; metric values are mostly distinct.
        texts: Any = [name for name, kind in columns.head.items() if kind == "text"]
        texts += [f"{name}.list.element" for name, kind in columns.head.items() if kind == "texts"]
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd", use_dictionary=texts)

    def write(self, batch: WideBatch, head: Sequence[Cells]) -> None:
        """Append a batch as one row group; ``head`` holds the columns that precede the metrics."""
        arrays = [self._pa.array(values, type=self._schema.field(i).type) for i, values in enumerate(head)]
        for values, present in zip(batch.values, batch.present, strict=True):
            # The mask marks nulls; `from_pandas=False` keeps NaN as a value instead of turning it into a null.
            absent = None if present.all() else ~present
            arrays.append(self._pa.array(values, mask=absent, from_pandas=False))
        self._append(arrays)

    def write_events(self, events: Sequence[Sequence[Any]]) -> None:
        """Append events as one row group."""
        columns = list(zip(*events, strict=True)) if events else [()] * len(EVENT_COLUMNS)
        self._append([self._pa.array(list(cells), type=self._schema.field(i).type) for i, cells in enumerate(columns)])

    def _append(self, arrays: list[Any]) -> None:
        self._writer.write_batch(self._pa.record_batch(arrays, schema=self._schema))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._writer.close()


def _metadata(catalogue: Catalogue, name: str) -> dict[str, str] | None:
    """Return the column metadata of a metric, or None if it is not declared."""
    metric = catalogue.find(name)
    if metric is None:
        return None
    return {"unit": metric.unit, "meaning": metric.meaning, "better": metric.better, "metric": name}
