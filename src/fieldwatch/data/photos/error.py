"""The error of everything that reads photos."""


class PhotoError(ValueError):
    """Photos cannot be read or used as asked; the message says what came, what was wanted and what to do."""
