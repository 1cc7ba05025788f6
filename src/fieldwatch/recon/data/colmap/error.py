"""Error raised by the COLMAP readers."""

from fieldwatch import InputError


class ColmapError(InputError):
    """Raised when a COLMAP model cannot be read. The message states the problem and how to fix it."""
