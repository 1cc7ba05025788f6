"""Saves on their way: what was taken, and what became of it."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class PendingSave:
    """A save that was taken.

    Attributes:
        done: how many steps were finished.
        seconds: training time then.
        metrics: what it is ranked by.
        stall: milliseconds that training waited for it.
    """

    done: int
    seconds: float
    metrics: Mapping[str, float]
    stall: float

    @property
    def step(self) -> int:
        """The step it was made at the end of."""
        return max(self.done - 1, 0)


@dataclass(frozen=True, kw_only=True)
class WrittenSave:
    """It is on the disk.

    Attributes:
        save: what was taken.
        path: where it lies.
        took: milliseconds of the writing.
    """

    save: PendingSave
    path: Path
    took: float


@dataclass(frozen=True, kw_only=True)
class FailedSave:
    """The disk did not take it.

    Attributes:
        save: what was taken.
        reason: what the disk said.
        free: bytes that were free then; -1 where that is not known.
    """

    save: PendingSave
    reason: str
    free: int


@dataclass(frozen=True, kw_only=True)
class RefusedSave:
    """It was given up, because the rows up to it say that updates were being refused.

    Attributes:
        save: what was taken.
    """

    save: PendingSave


def free_bytes(folder: Path) -> int:
    """Bytes that are free on the disk of a folder; -1 where the disk does not say."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return -1
