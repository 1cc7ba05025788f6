"""The error of everything that reads transforms.json."""


class TransformsError(ValueError):
    """A transforms*.json cannot be read; the message says what came, what was wanted and what to do."""
