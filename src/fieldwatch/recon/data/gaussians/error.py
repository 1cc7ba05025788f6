"""Error raised for unusable splat folders."""

from fieldwatch import InputError


class SplatFolderError(InputError):
    """Raised when a 3D Gaussian splatting run folder cannot be used. The message states what was found and the fix."""
