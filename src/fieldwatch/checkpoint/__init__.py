"""Whole checkpoints or none, verified on the way back, with everything a run needs to go on as the same run."""

from fieldwatch.checkpoint.folder import Draft, shared
from fieldwatch.checkpoint.incident import CheckpointError, DamageError, Incident
from fieldwatch.checkpoint.interval import Autosave, Every, Interval
from fieldwatch.checkpoint.items import Item, Stateful
from fieldwatch.checkpoint.lock import FolderInUseError, OneWriter
from fieldwatch.checkpoint.mirror import Mirror
from fieldwatch.checkpoint.position import Shuffled
from fieldwatch.checkpoint.preflight import growth_ahead, rehearse
from fieldwatch.checkpoint.random_state import RandomState, preserve_random_state
from fieldwatch.checkpoint.retention import Candidate, Retention
from fieldwatch.checkpoint.saver import Saver
from fieldwatch.checkpoint.signals import StopRequest
from fieldwatch.checkpoint.snapshot import HostBuffers, ShortOfMemoryError
from fieldwatch.checkpoint.store import Checkpoints, Restored, Saved, Which
from fieldwatch.record import whole_file

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
    "OneWriter",
    "RandomState",
    "Restored",
    "Retention",
    "Saved",
    "Saver",
    "ShortOfMemoryError",
    "Shuffled",
    "Stateful",
    "StopRequest",
    "Which",
    "growth_ahead",
    "preserve_random_state",
    "rehearse",
    "shared",
    "whole_file",
]
