"""What can go wrong with a checkpoint, as values and as errors."""

from dataclasses import dataclass
from pathlib import Path

from fieldwatch.base import InputError


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, found, read or put back; the message says what to do.

    What is about the stored files, and so about input, is a :class:`StoredStateError`.
    """


class StoredStateError(CheckpointError, InputError):
    """What a run folder holds cannot be used: no checkpoint, a damaged one, or one that does not fit the run."""


class DamageError(StoredStateError):
    """A stored checkpoint is not what was written: a hash, a size or its structure is wrong."""


class NoWayBackError(StoredStateError):
    """The folder held checkpoints and none can be read: the run does not start from step 0 unless it is told to."""


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
