"""Whole checkpoints or none, verified on the way back, with everything a run needs to go on as the same run."""

from fieldwatch.checkpoint.incident import CheckpointError, DamageError, Incident
from fieldwatch.checkpoint.items import Item, Stateful
from fieldwatch.checkpoint.lock import FolderInUseError, OneWriter
from fieldwatch.checkpoint.position import Shuffled
from fieldwatch.checkpoint.random_state import RandomState, preserve_random_state
from fieldwatch.checkpoint.retention import Candidate, Retention
from fieldwatch.checkpoint.signals import StopRequest
from fieldwatch.checkpoint.store import Checkpoints, Restored, Saved, Which
from fieldwatch.checkpoint.whole_file import whole_file

__all__ = [
    "Candidate",
    "CheckpointError",
    "Checkpoints",
    "DamageError",
    "FolderInUseError",
    "Incident",
    "Item",
    "OneWriter",
    "RandomState",
    "Restored",
    "Retention",
    "Saved",
    "Shuffled",
    "Stateful",
    "StopRequest",
    "Which",
    "preserve_random_state",
    "whole_file",
]
