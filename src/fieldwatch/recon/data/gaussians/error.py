"""The error of everything that reads and writes splats."""

from fieldwatch import InputError


class SplatFolderError(InputError):
    """A folder of a 3D Gaussian splatting run cannot be used; the message says what is there and what to do."""
