"""The error of everything that handles meshes."""


class MeshError(ValueError):
    """A mesh cannot be made, read, written or judged; the message says what came, what was wanted and what to do."""
