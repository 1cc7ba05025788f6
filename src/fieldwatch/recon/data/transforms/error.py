"""The error of everything that reads transforms.json."""

from fieldwatch import InputError


class TransformsError(InputError):
    """A transforms*.json cannot be read; the message says what came, what was wanted and what to do."""
