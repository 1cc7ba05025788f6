"""Error of foreground masks."""

from fieldwatch import InputError


class MaskingError(InputError):
    """No masks can be made; the message says why, and what to do."""
