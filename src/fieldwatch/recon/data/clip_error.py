"""The error of everything that reads or writes clips."""

from fieldwatch import InputError


class ClipError(InputError):
    """A clip cannot be read or written as asked; the message says what came, what was wanted and what to do."""
