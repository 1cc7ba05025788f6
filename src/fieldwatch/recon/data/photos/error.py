"""Error raised by the photo readers."""

from fieldwatch import InputError


class PhotoError(InputError):
    """Raised when photos cannot be read or used. The message states the problem and how to fix it."""
