"""Error raised by the clip readers and writers."""

from fieldwatch import InputError


class ClipError(InputError):
    """Raised when a clip cannot be read or written. The message states the problem and how to fix it."""
