"""The error of everything that reads COLMAP models."""

from fieldwatch import InputError


class ColmapError(InputError):
    """A COLMAP model cannot be read; the message says what came, what was wanted and what to do."""
