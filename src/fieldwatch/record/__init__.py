"""Record: what happened during a run, written once and read back by rules, reports and sinks."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names
from fieldwatch.record import tags

if TYPE_CHECKING:
    from fieldwatch.record.catalogue import Catalogue
    from fieldwatch.record.damage import DAMAGED, Damage, DamageTally, same_damage
    from fieldwatch.record.derive import derive_block
    from fieldwatch.record.events import EVENTS, EventLog, refuse_reserved_keys
    from fieldwatch.record.following import JournalFollower, RecordUpdate, follow
    from fieldwatch.record.history import History
    from fieldwatch.record.journal import JOURNAL, Journal
    from fieldwatch.record.lines import LineFile, read_lines
    from fieldwatch.record.manifest import (
        Manifest,
        NotARun,
        RunState,
        git_state,
        holds_run,
        new_segment,
        read_manifest,
        versions,
    )
    from fieldwatch.record.metric import Axis, Better, Metric
    from fieldwatch.record.reading import note_damage, read_blocks, read_events, read_history
    from fieldwatch.record.row import Block, Row, Sink
    from fieldwatch.record.series import SampleLosses, Series
    from fieldwatch.record.terminal import Terminal
    from fieldwatch.record.toolkit_metrics import TOOLKIT
    from fieldwatch.record.writer import WriterFailed, WriterThread
from fieldwatch.record.checkpoint_listing import CHECKPOINTS, checkpoint_folders

__all__ = [
    "CHECKPOINTS",
    "DAMAGED",
    "EVENTS",
    "JOURNAL",
    "TOOLKIT",
    "Axis",
    "Better",
    "Block",
    "Catalogue",
    "Damage",
    "DamageTally",
    "EventLog",
    "History",
    "Journal",
    "JournalFollower",
    "LineFile",
    "Manifest",
    "Metric",
    "NotARun",
    "RecordUpdate",
    "Row",
    "RunState",
    "SampleLosses",
    "Series",
    "Sink",
    "Terminal",
    "WriterFailed",
    "WriterThread",
    "checkpoint_folders",
    "derive_block",
    "follow",
    "git_state",
    "holds_run",
    "new_segment",
    "note_damage",
    "read_blocks",
    "read_events",
    "read_history",
    "read_lines",
    "read_manifest",
    "refuse_reserved_keys",
    "same_damage",
    "tags",
    "versions",
]

__getattr__, __dir__ = lazy_names(__name__)
