"""The error of everything that handles meshes."""

from fieldwatch import InputError


class MeshError(InputError):
    """A mesh cannot be made, read, written or judged; the message says what came, what was wanted and what to do."""
