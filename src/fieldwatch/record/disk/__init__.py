"""Handling of a full disk: a reserve of disk blocks, and a backlog of writes that wait in memory."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.record.disk.backlog import (
        DISK_EVENTS,
        DISK_FREED,
        DISK_FULL,
        FullDiskPause,
        WriteBacklog,
        try_optional,
    )
    from fieldwatch.record.disk.reserve import Reserve

__all__ = [
    "DISK_EVENTS",
    "DISK_FREED",
    "DISK_FULL",
    "FullDiskPause",
    "Reserve",
    "WriteBacklog",
    "try_optional",
]

__getattr__, __dir__ = lazy_names(__name__)
