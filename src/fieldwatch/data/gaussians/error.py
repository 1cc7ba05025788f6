"""The errors of everything that reads and writes splats."""


class PlyError(ValueError):
    """A PLY file cannot be read or written; the message says what came, what was wanted and what to do."""


class SplatFolderError(ValueError):
    """A folder of a 3D Gaussian splatting run cannot be used; the message says what is there and what to do."""
