"""TensorBoard folders written by anybody: every scalar of every file, as the series that our own record has."""

from fieldwatch.report.foreign.events import NoEventFiles, event_folders, holds_event_files
from fieldwatch.report.foreign.files import EventFile, read_event_file
from fieldwatch.report.foreign.run import ForeignRun, read_foreign_run

__all__ = [
    "EventFile",
    "ForeignRun",
    "NoEventFiles",
    "event_folders",
    "holds_event_files",
    "read_event_file",
    "read_foreign_run",
]
