"""Reader for TensorBoard folders of any program: scalars as the series of our own record, and pictures."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.report.foreign.events import NoEventFiles, event_folders, holds_event_files
    from fieldwatch.report.foreign.files import EventFile, read_event_file
    from fieldwatch.report.foreign.pictures import EventPicture, read_logged_pictures
    from fieldwatch.report.foreign.run import ForeignRun, read_foreign_run

__all__ = [
    "EventFile",
    "EventPicture",
    "ForeignRun",
    "NoEventFiles",
    "event_folders",
    "holds_event_files",
    "read_event_file",
    "read_foreign_run",
    "read_logged_pictures",
]

__getattr__, __dir__ = lazy_names(__name__)
