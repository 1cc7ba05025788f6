"""The error of everything that reads normal maps."""

from fieldwatch import InputError


class NormalMapError(InputError):
    """Normal maps cannot be read or used as asked; the message says what came, what was wanted and what to do."""
