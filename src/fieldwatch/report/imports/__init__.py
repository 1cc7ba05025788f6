"""Imports of runs that other tools recorded: TensorBoard, W&B, MLflow, Trackio and tables."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.report.imports.find import choose_run, find_runs
    from fieldwatch.report.imports.names import recorded_names
    from fieldwatch.report.imports.source import BadSource, ImportableRun, SourcePicture, SourceRun, refuse_bad_steps
    from fieldwatch.report.imports.write import ImportedRun, refuse_target, write_run

__all__ = [
    "BadSource",
    "ImportableRun",
    "ImportedRun",
    "SourcePicture",
    "SourceRun",
    "choose_run",
    "find_runs",
    "recorded_names",
    "refuse_bad_steps",
    "refuse_target",
    "write_run",
]

__getattr__, __dir__ = lazy_names(__name__)
