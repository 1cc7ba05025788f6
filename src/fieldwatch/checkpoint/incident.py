"""What can go wrong with a checkpoint, as values and as errors."""

from dataclasses import dataclass
from pathlib import Path


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, found, read or put back; the message says what to do."""


class DamageError(CheckpointError):
    """A stored checkpoint is not what was written: a hash, a size or its structure is wrong."""


@dataclass(frozen=True, kw_only=True)
class Incident:
    """Something that was survived and that the run's record should show.

    Attributes:
        step: the checkpoint's step.
        what: ``"damaged"`` (set aside), ``"abandoned"`` (a later step of a branch that was left), or ``"kept"``
            (it should have gone and could not be deleted).
        reason: one sentence.
        path: where the checkpoint's folder stands now.
    """

    step: int
    what: str
    reason: str
    path: Path
