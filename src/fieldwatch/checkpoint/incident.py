"""Errors and incidents of checkpoints."""

from dataclasses import dataclass
from pathlib import Path

from fieldwatch.base import InputError


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, found, read or restored; the message says what to do.

    Errors about stored files are :class:`StoredStateError`, because the files are input.
    """


class StoredStateError(CheckpointError, InputError):
    """The contents of a run folder cannot be used: no checkpoint, a damaged one, or one that does not fit the run."""


class DamageError(StoredStateError):
    """A stored checkpoint differs from what was written: a hash, a size or its structure is wrong."""


class NoWayBackError(StoredStateError):
    """The folder has checkpoints, but none of them can be read; the run does not silently restart from step 0."""


@dataclass(frozen=True, kw_only=True)
class Incident:
    """A problem with a checkpoint that was handled and belongs in the run's record.

    Attributes:
        step: step of the checkpoint; -1 if it concerns no particular one.
        what: ``"damaged"`` (renamed), ``"abandoned"`` (a later step of an abandoned branch), or ``"kept"`` (could not
            be deleted).
        reason: description of the problem.
        path: current path of the checkpoint's folder.
    """

    step: int
    what: str
    reason: str
    path: Path
