"""Checkpoints: written atomically, verified when read, and complete enough to resume a run exactly."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.checkpoint.data_orders import take_used_orders
    from fieldwatch.checkpoint.folder import Draft, share_memory
    from fieldwatch.checkpoint.incident import CheckpointError, DamageError, Incident, NoWayBackError, StoredStateError
    from fieldwatch.checkpoint.interval import Autosave, Every, Interval
    from fieldwatch.checkpoint.items import Item, Stateful, gather, load_item, stored_item
    from fieldwatch.checkpoint.loader import ResumableLoader
    from fieldwatch.checkpoint.lock import FolderInUseError, FolderLock
    from fieldwatch.checkpoint.mirror import Mirror
    from fieldwatch.checkpoint.preflight import optimizer_growth, write_test_checkpoint
    from fieldwatch.checkpoint.random_state import RandomState, preserve_random_state, seed_everything
    from fieldwatch.checkpoint.retention import CheckpointSelector, Retention, RetentionCandidate
    from fieldwatch.checkpoint.shuffled import Shuffled
    from fieldwatch.checkpoint.signals import StopRequest
    from fieldwatch.checkpoint.snapshot import HostBuffers, ShortOfMemoryError
    from fieldwatch.checkpoint.store import Checkpoints, Restored, StoredCheckpoint
    from fieldwatch.checkpoint.worker import BackgroundWorker

__all__ = [
    "Autosave",
    "BackgroundWorker",
    "CheckpointError",
    "CheckpointSelector",
    "Checkpoints",
    "DamageError",
    "Draft",
    "Every",
    "FolderInUseError",
    "FolderLock",
    "HostBuffers",
    "Incident",
    "Interval",
    "Item",
    "Mirror",
    "NoWayBackError",
    "RandomState",
    "Restored",
    "ResumableLoader",
    "Retention",
    "RetentionCandidate",
    "ShortOfMemoryError",
    "Shuffled",
    "Stateful",
    "StopRequest",
    "StoredCheckpoint",
    "StoredStateError",
    "gather",
    "load_item",
    "optimizer_growth",
    "preserve_random_state",
    "seed_everything",
    "share_memory",
    "stored_item",
    "take_used_orders",
    "write_test_checkpoint",
]

__getattr__, __dir__ = lazy_names(__name__)
