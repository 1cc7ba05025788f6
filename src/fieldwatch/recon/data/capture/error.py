"""`CaptureError`, raised for films and photos that no cameras can be found for."""

from fieldwatch import InputError


class CaptureError(InputError):
    """A film or a folder of photos cannot be used; the message says what to do."""
