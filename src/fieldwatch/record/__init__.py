"""Record: what happened during a run, written once and read back by rules, reports and sinks."""

from fieldwatch.record import tags
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
from fieldwatch.record.checkpointed import PLACE, checkpoint_places
from fieldwatch.record.damage import DAMAGED, Damage, DamageTally, same_damage
from fieldwatch.record.derive import derive_block, trend
from fieldwatch.record.events import EVENTS, Events, refuse_taken_keys
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
from fieldwatch.record.metric import Axis, Better, Kind, Metric, shown_columns
from fieldwatch.record.profile_names import PROFILE_ROOTS, ProfileNames, profile_tag
from fieldwatch.record.reading import note_damage, read_blocks, read_events, read_history, read_segments
from fieldwatch.record.reserve import RESERVE, Reserve
from fieldwatch.record.row import Block, Row
from fieldwatch.record.segments import Segment
from fieldwatch.record.series import SampleLosses, Series
from fieldwatch.record.sink import (
    Closable,
    Flushable,
    Patient,
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
from fieldwatch.record.terminal import Terminal
from fieldwatch.record.toolkit_metrics import TOOLKIT
from fieldwatch.record.waiting import DISK_EVENTS, DISK_FREED, DISK_FULL, Lane, Pause, Waiting, attempt
from fieldwatch.record.writer import Transfer, Writer, WriterFailed

__all__ = [
    "AT_LEAST_ONE",
    "A_SHARE",
    "DAMAGED",
    "DISK_EVENTS",
    "DISK_FREED",
    "DISK_FULL",
    "EVENTS",
    "FINITE_WEIGHT",
    "JOURNAL",
    "MEMORY_LOG",
    "MEMORY_TAB",
    "NOT_NEGATIVE",
    "PLACE",
    "POSITIVE",
    "PROFILE_ROOTS",
    "RESERVE",
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
    "Damage",
    "DamageTally",
    "DuplicateMetric",
    "Events",
    "Flushable",
    "History",
    "Journal",
    "JournalFollower",
    "Kind",
    "Lane",
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
    "Patient",
    "Pause",
    "ProfileNames",
    "Reserve",
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
    "Terminal",
    "Transfer",
    "UndeclaredMetric",
    "Waiting",
    "Writer",
    "WriterFailed",
    "attempt",
    "checkpoint_places",
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
    "note_damage",
    "plain",
    "preset_of_run",
    "preset_values",
    "profile_tag",
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
    "refuse_taken_keys",
    "same_damage",
    "shown_columns",
    "standing",
    "tags",
    "trend",
    "versions",
]
