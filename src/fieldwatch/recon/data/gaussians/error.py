"""Errors raised for unusable splat folders and splat files."""

from fieldwatch import InputError


class SplatFolderError(InputError):
    """Raised when a 3D Gaussian splatting run folder cannot be used. The message states what was found and the fix."""


class SplatFileError(InputError):
    """Raised when a file of Gaussians cannot be read or written. The message states what was found and the fix."""
