"""The error of everything that reads or writes clips."""


class ClipError(ValueError):
    """A clip cannot be read or written as asked; the message says what came, what was wanted and what to do."""
