"""The record of a run in the files of other tools: Parquet, CSV, TensorBoard."""

from fieldwatch.record.exports.export import TARGETS, ExportedRecord, Target, export_record

__all__ = [
    "TARGETS",
    "ExportedRecord",
    "Target",
    "export_record",
]
