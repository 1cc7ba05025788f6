"""Error raised by the normal map readers."""

from fieldwatch import InputError


class NormalMapError(InputError):
    """Raised when normal maps cannot be read or used. The message states the problem and how to fix it."""
