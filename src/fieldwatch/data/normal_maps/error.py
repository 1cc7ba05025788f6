"""The error of everything that reads normal maps."""


class NormalMapError(ValueError):
    """Normal maps cannot be read or used as asked; the message says what came, what was wanted and what to do."""
