"""Saves in progress, and their outcomes: written, failed or refused."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class PendingSave:
    """Save whose snapshot has been taken.

    Attributes:
        done: number of finished steps.
        seconds: training time in seconds.
        metrics: metrics by which the checkpoint is ranked; None if the save was not requested.
        stall: time in ms that training waited for the save.
    """

    done: int
    seconds: float
    metrics: Mapping[str, float] | None
    stall: float

    @property
    def step(self) -> int:
        """Step at whose end the snapshot was taken."""
        # `done` is 0 for a checkpoint before the first step.
        return max(self.done - 1, 0)


@dataclass(frozen=True, kw_only=True)
class WrittenSave:
    """Save that is on disk.

    Attributes:
        save: pending save.
        path: checkpoint on disk.
        took: time in ms to write it.
    """

    save: PendingSave
    path: Path
    took: float


@dataclass(frozen=True, kw_only=True)
class FailedSave:
    """Save that could not be written.

    Attributes:
        save: pending save.
        reason: error message.
        free: free bytes on the disk at that time; -1 if unknown.
    """

    save: PendingSave
    reason: str
    free: int


@dataclass(frozen=True, kw_only=True)
class RefusedSave:
    """Save that was discarded, because updates were being refused or the run had diverged at that step.

    Attributes:
        save: pending save.
    """

    save: PendingSave


def free_bytes(folder: Path) -> int:
    """Return the free bytes on the disk of a folder; -1 if they cannot be determined."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return -1
