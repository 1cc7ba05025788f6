"""Error for memory snapshots that cannot be read."""

from fieldwatch.base import InputError


class SnapshotError(InputError):
    """A file is not a memory snapshot, is damaged, or would run code if it were unpickled."""
