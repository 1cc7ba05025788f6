"""What is raised where a memory snapshot cannot be read."""


class SnapshotError(ValueError):
    """A file is no memory snapshot, is damaged, or would run code if it were unpickled."""
