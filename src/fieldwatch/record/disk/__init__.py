"""A full disk: blocks that a run reserves, and writes that wait in memory until there is room."""

from fieldwatch.record.disk.backlog import DISK_EVENTS, DISK_FREED, DISK_FULL, FullDiskPause, WriteBacklog, try_optional
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
