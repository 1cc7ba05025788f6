"""Error raised by the readers of camera exports."""

from fieldwatch import InputError


class ExportError(InputError):
    """Raised when an export of cameras cannot be read. The message states the problem and how to fix it."""
