"""Record: what happened during a run, written once and read back by rules, reports and sinks."""

from fieldwatch.record.bounds import (
    A_SHARE,
    AT_LEAST_ONE,
    FINITE_WEIGHT,
    NOT_NEGATIVE,
    POSITIVE,
    Bounds,
    refuse_out_of_bounds,
)
from fieldwatch.record.catalogue import Catalogue, DuplicateMetric, UndeclaredMetric
from fieldwatch.record.derive import derive_block, trend
from fieldwatch.record.events import EVENTS, Events
from fieldwatch.record.following import JournalFollower, News, follow
from fieldwatch.record.history import History
from fieldwatch.record.journal import JOURNAL, Journal
from fieldwatch.record.layout import Chart, Layout, Margin, Tab, default_layout
from fieldwatch.record.lines import CorruptRecord, LineFile, read_lines
from fieldwatch.record.manifest import (
    ConfigMismatch,
    Manifest,
    NotARun,
    State,
    config_differences,
    flat,
    git_state,
    holds_run,
    new_segment,
    plain,
    read_manifest,
    refuse_mismatch,
    versions,
)
from fieldwatch.record.memory_log import MEMORY_LOG, MemoryLog, read_memory_log
from fieldwatch.record.memory_tab import MEMORY_TAB
from fieldwatch.record.metric import BOOKKEEPING, Axis, Better, Kind, Metric, shown_columns
from fieldwatch.record.reading import read_blocks, read_events, read_history, read_segments
from fieldwatch.record.row import Block, Row
from fieldwatch.record.rows import Segment
from fieldwatch.record.series import SampleLosses, Series
from fieldwatch.record.sink import (
    Closable,
    Flushable,
    Rewindable,
    ShowsConfig,
    ShowsHistograms,
    ShowsImages,
    ShowsLayout,
    ShowsText,
    Sink,
    TakesEvents,
)
from fieldwatch.record.stored_config import config_from_plain, config_of_run, preset_of_run, preset_values
from fieldwatch.record.tensor_log import LargeTensor, TensorLog, TensorSnapshot, format_snapshot
from fieldwatch.record.tensor_reading import NotATensorLog, read_tensor_log
from fieldwatch.record.tensor_table import TensorLogTable, standing
from fieldwatch.record.toolkit_metrics import TOOLKIT
from fieldwatch.record.whole_file import whole_file
from fieldwatch.record.writer import Transfer, Writer, WriterFailed

__all__ = [
    "AT_LEAST_ONE",
    "A_SHARE",
    "BOOKKEEPING",
    "EVENTS",
    "FINITE_WEIGHT",
    "JOURNAL",
    "MEMORY_LOG",
    "MEMORY_TAB",
    "NOT_NEGATIVE",
    "POSITIVE",
    "TOOLKIT",
    "Axis",
    "Better",
    "Block",
    "Bounds",
    "Catalogue",
    "Chart",
    "Closable",
    "ConfigMismatch",
    "CorruptRecord",
    "DuplicateMetric",
    "Events",
    "Flushable",
    "History",
    "Journal",
    "JournalFollower",
    "Kind",
    "LargeTensor",
    "Layout",
    "LineFile",
    "Manifest",
    "Margin",
    "MemoryLog",
    "Metric",
    "News",
    "NotARun",
    "NotATensorLog",
    "Rewindable",
    "Row",
    "SampleLosses",
    "Segment",
    "Series",
    "ShowsConfig",
    "ShowsHistograms",
    "ShowsImages",
    "ShowsLayout",
    "ShowsText",
    "Sink",
    "State",
    "Tab",
    "TakesEvents",
    "TensorLog",
    "TensorLogTable",
    "TensorSnapshot",
    "Transfer",
    "UndeclaredMetric",
    "Writer",
    "WriterFailed",
    "config_differences",
    "config_from_plain",
    "config_of_run",
    "default_layout",
    "derive_block",
    "flat",
    "follow",
    "format_snapshot",
    "git_state",
    "holds_run",
    "new_segment",
    "plain",
    "preset_of_run",
    "preset_values",
    "read_blocks",
    "read_events",
    "read_history",
    "read_lines",
    "read_manifest",
    "read_memory_log",
    "read_segments",
    "read_tensor_log",
    "refuse_mismatch",
    "refuse_out_of_bounds",
    "shown_columns",
    "standing",
    "trend",
    "versions",
    "whole_file",
]
