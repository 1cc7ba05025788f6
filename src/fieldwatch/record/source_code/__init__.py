"""The source of the user's program, kept in the run folder, so that two runs can be told apart by their code."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.record.source_code.differences import LineChange, changed_lines
    from fieldwatch.record.source_code.snapshot import SOURCE, SourceCode, is_installed, read_source_code

__all__ = [
    "SOURCE",
    "LineChange",
    "SourceCode",
    "changed_lines",
    "is_installed",
    "read_source_code",
]

__getattr__, __dir__ = lazy_names(__name__)
