"""The exception raised by all mesh operations."""

from fieldwatch import InputError


class MeshError(InputError):
    """A mesh cannot be reconstructed, read, written or evaluated; the message names the cause and a remedy."""
