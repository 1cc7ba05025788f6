"""Reader for TensorBoard folders of any program: every scalar of every file, as the series of our own record."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
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

__getattr__, __dir__ = lazy_names(__name__)
