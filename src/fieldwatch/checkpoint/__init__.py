"""Whole checkpoints or none, verified on the way back, with everything a run needs to go on as the same run."""

from fieldwatch.checkpoint.data_orders import take_drawn
from fieldwatch.checkpoint.folder import Draft, shared
from fieldwatch.checkpoint.incident import CheckpointError, DamageError, Incident, NoWayBackError, StoredStateError
from fieldwatch.checkpoint.interval import Autosave, Every, Interval
from fieldwatch.checkpoint.items import Item, Stateful, load_part, part_of
from fieldwatch.checkpoint.loader import ResumableLoader
from fieldwatch.checkpoint.lock import FolderInUseError, OneWriter
from fieldwatch.checkpoint.mirror import Mirror
from fieldwatch.checkpoint.preflight import growth_ahead, rehearse
from fieldwatch.checkpoint.random_state import RandomState, preserve_random_state
from fieldwatch.checkpoint.retention import Candidate, Retention
from fieldwatch.checkpoint.shuffled import Shuffled
from fieldwatch.checkpoint.signals import StopRequest
from fieldwatch.checkpoint.snapshot import HostBuffers, ShortOfMemoryError
from fieldwatch.checkpoint.store import Checkpoints, Restored, Saved, Which
from fieldwatch.checkpoint.worker import Saver

__all__ = [
    "Autosave",
    "Candidate",
    "CheckpointError",
    "Checkpoints",
    "DamageError",
    "Draft",
    "Every",
    "FolderInUseError",
    "HostBuffers",
    "Incident",
    "Interval",
    "Item",
    "Mirror",
    "NoWayBackError",
    "OneWriter",
    "RandomState",
    "Restored",
    "ResumableLoader",
    "Retention",
    "Saved",
    "Saver",
    "ShortOfMemoryError",
    "Shuffled",
    "Stateful",
    "StopRequest",
    "StoredStateError",
    "Which",
    "growth_ahead",
    "load_part",
    "part_of",
    "preserve_random_state",
    "rehearse",
    "shared",
    "take_drawn",
]
