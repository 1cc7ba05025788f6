"""What is raised where a memory snapshot cannot be read."""

from fieldwatch.base import InputError


class SnapshotError(InputError):
    """A file is no memory snapshot, is damaged, or would run code if it were unpickled."""
