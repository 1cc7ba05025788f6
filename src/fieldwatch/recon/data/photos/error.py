"""The error of everything that reads photos."""

from fieldwatch import InputError


class PhotoError(InputError):
    """Photos cannot be read or used as asked; the message says what came, what was wanted and what to do."""
