"""Export the record of a run to Parquet, CSV or TensorBoard files."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.record.exports.export import TARGETS, ExportedRecord, Target, export_record

__all__ = [
    "TARGETS",
    "ExportedRecord",
    "Target",
    "export_record",
]

__getattr__, __dir__ = lazy_names(__name__)
