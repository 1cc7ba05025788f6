"""Record: what happened during a run, written once and read back by rules, reports and sinks."""

from fieldwatch.record import tags
from fieldwatch.record.catalogue import Catalogue
from fieldwatch.record.checkpoint_folders import PLACE, checkpoint_places
from fieldwatch.record.damage import DAMAGED, Damage, DamageTally, same_damage
from fieldwatch.record.derive import derive_block
from fieldwatch.record.events import EVENTS, Events, refuse_taken_keys
from fieldwatch.record.following import JournalFollower, News, follow
from fieldwatch.record.history import History
from fieldwatch.record.journal import JOURNAL, Journal
from fieldwatch.record.lines import LineFile, read_lines
from fieldwatch.record.manifest import (
    Manifest,
    NotARun,
    State,
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
from fieldwatch.record.writer import Writer, WriterFailed

__all__ = [
    "DAMAGED",
    "EVENTS",
    "JOURNAL",
    "PLACE",
    "TOOLKIT",
    "Axis",
    "Better",
    "Block",
    "Catalogue",
    "Damage",
    "DamageTally",
    "Events",
    "History",
    "Journal",
    "JournalFollower",
    "LineFile",
    "Manifest",
    "Metric",
    "News",
    "NotARun",
    "Row",
    "SampleLosses",
    "Series",
    "Sink",
    "State",
    "Terminal",
    "Writer",
    "WriterFailed",
    "checkpoint_places",
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
    "refuse_taken_keys",
    "same_damage",
    "tags",
    "versions",
]
