"""Export the record of a run to Parquet, CSV or TensorBoard files."""

from fieldwatch.record.exports.export import TARGETS, ExportedRecord, Target, export_record

__all__ = [
    "TARGETS",
    "ExportedRecord",
    "Target",
    "export_record",
]
