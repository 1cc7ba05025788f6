"""Checkpoints of a training of several ranks: the first one writes them, all are put back to the one that it chose."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fieldwatch.checkpoint import Restored, Which
from fieldwatch.run.ranks import Ranks
from fieldwatch.run.recording import Recording
from fieldwatch.run.saving import Saving


class SharedSaving(Saving):
    """The checkpoints of a run that may have several ranks; with one, just that."""

    def __init__(self, folder: Path, ranks: Ranks, **options: Any) -> None:
        super().__init__(folder, **options)
        self._ranks = ranks

    def meet(self, recording: Recording) -> None:
        """Let every rank read its record up to here, and see the same checkpoints on the disk."""
        if not self._ranks.alone:
            recording.flush()
            self._saver.wait()
            self._ranks.told(None)


class FirstSaving(SharedSaving):
    """That of the first rank, which tells the others what was put back, and when they have to wait for it."""

    def resume(
        self, recording: Recording, config: Mapping[str, Any], *, found: bool, may: bool = True
    ) -> Restored | None:
        """Put back what the run's folder, or else its mirror, has; and tell the others which step that is."""
        with self._ranks.announced("a checkpoint"):
            restored = super().resume(recording, config, found=found, may=may)
        self._ranks.told(None if restored is None else restored.step)
        return restored

    def save_behind(self, done: int, recording: Recording, seconds: float) -> None:
        """Take a snapshot and go on."""
        with self._ranks.announced("a checkpoint"):
            super().save_behind(done, recording, seconds)

    def begin(self, step: int, recording: Recording) -> None:
        """Write a checkpoint of the real size to the disk and read it back, before any training."""
        with self._ranks.announced("a checkpoint"):
            super().begin(step, recording)

    def save(self, done: int, recording: Recording, seconds: float) -> None:
        """Save now, and return when that is on the disk."""
        with self._ranks.announced("a checkpoint"):
            super().save(done, recording, seconds)


class FollowingSaving(SharedSaving):
    """That of every other rank: it writes nothing, and reads the first one's checkpoints, on a file system of both.

    The step is the one that the first rank put back, never another: a rank that cannot read it ends the training.
    """

    def __init__(self, folder: Path, ranks: Ranks, **options: Any) -> None:
        super().__init__(folder, ranks, **options | {"mirror": ""})
        self._read: dict[str, Any] = {}
        self._told: int | None = None

    def keep(self, items: Mapping[str, Any]) -> None:
        """Say what is put back; nothing of it is ever saved from here."""
        self._read = dict(items)

    def resume(
        self, recording: Recording, config: Mapping[str, Any], *, found: bool, may: bool = True
    ) -> Restored | None:
        """Put back what the first rank did.

        Raises:
            CheckpointError: it cannot be read from here.
        """
        self._told = self._ranks.told(None)
        return super().resume(recording, config, found=found or self._told is not None, may=may)

    def restore(self, recording: Recording, step: Which = "last") -> Restored | None:
        """Put a step back, "last" the one that was told; where the first rank's files stood does not count here."""
        which = self._told if step == "last" else step
        if which is None:
            return None
        restored = self._checkpoints.restore(self._read, step=which)
        recording.event("restored", restored.step)
        return Restored(step=restored.step, note={**restored.note, "sinks": {}})

    def save_behind(self, done: int, recording: Recording, seconds: float) -> None:
        """Leave it to the first rank."""
        self.save(done, recording, seconds)  # which has nothing to save


def saving_of(ranks: Ranks, folder: Path, **options: Any) -> SharedSaving:
    """The checkpoints of a run, for its rank."""
    if ranks.alone:
        return SharedSaving(folder, ranks, **options)
    return (FirstSaving if ranks.is_first else FollowingSaving)(folder, ranks, **options)
