"""The error of everything that reads COLMAP models."""


class ColmapError(ValueError):
    """A COLMAP model cannot be read; the message says what came, what was wanted and what to do."""
