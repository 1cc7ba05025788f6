"""Error raised by the transforms.json reader."""

from fieldwatch import InputError


class TransformsError(InputError):
    """Raised when a transforms*.json cannot be read. The message states the problem and how to fix it."""
