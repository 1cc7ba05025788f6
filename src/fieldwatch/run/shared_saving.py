"""Checkpoints of a training of several ranks: the first one writes them, and chooses the one that all restore."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fieldwatch.checkpoint import CheckpointSelector, Restored
from fieldwatch.run.ranks import Ranks
from fieldwatch.run.recording import Recording
from fieldwatch.run.saving import RunCheckpoints


class SharedSaving(RunCheckpoints):
    """The checkpoints of the first rank, or of the only one; the others wait while it works on them.

    Args:
        folder: the run folder.
        ranks: the processes that train together.
        **options: of `RunCheckpoints`.
    """

    def __init__(self, folder: Path, ranks: Ranks, **options: Any) -> None:
        super().__init__(folder, **options)
        self._ranks = ranks

    def meet(self, recording: Recording) -> None:
        """Let every rank read its record up to here, and see the same checkpoints on the disk."""
        if not self._ranks.alone:
            recording.flush()
            self._saver.wait()
            self._ranks.told(None)

    def resume(
        self, recording: Recording, config: Mapping[str, Any], *, found: bool, may: bool = True
    ) -> Restored | None:
        """Restore from the run folder, or else from its mirror, and tell the others which step that is."""
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
    """The checkpoints as every other rank sees them: it writes nothing, and reads those of the first rank.

    It restores the step that the first rank restored, never another: a rank that cannot read it ends the training.
    """

    def __init__(self, folder: Path, ranks: Ranks, **options: Any) -> None:
        super().__init__(folder, ranks, **options | {"mirror": ""})
        self.incidents.allow_step_0()  # the first rank decides whether that may be
        self._to_restore: dict[str, Any] = {}
        self._chosen: int | None = None

    def keep(
        self, items: Mapping[str, Any], *, renamed: Mapping[str, str] | None = None, optional: Collection[str] = ()
    ) -> None:
        """Say what is restored; nothing of it is ever saved from here."""
        super().keep({}, renamed=renamed, optional=optional)
        self._to_restore = dict(items)

    def resume(
        self, recording: Recording, config: Mapping[str, Any], *, found: bool, may: bool = True
    ) -> Restored | None:
        """Restore what the first rank did.

        Raises:
            CheckpointError: it cannot be read from here.
        """
        self._chosen = self._ranks.told(None)
        return RunCheckpoints.resume(self, recording, config, found=found or self._chosen is not None, may=may)

    def restore(self, recording: Recording, step: CheckpointSelector = "last") -> Restored | None:
        """Restore a step; "last" is the one that the first rank chose. How far its files were written is not ours."""
        which = self._chosen if step == "last" else step
        if which is None:
            return None
        restored = self._checkpoints.restore(
            self._to_restore, step=which, renamed=self._renamed, optional=self._optional
        )
        recording.event("restored", restored.step)
        return Restored(step=restored.step, note={**restored.note, "sinks": {}, "elsewhere": True})

    def save_behind(self, done: int, recording: Recording, seconds: float) -> None:
        """Leave it to the first rank."""
        self.save(done, recording, seconds)

    def save(self, done: int, recording: Recording, seconds: float) -> None:
        """Leave it to the first rank, and write this rank's record as far as that checkpoint."""
        recording.flush()  # a rank that is killed later goes on from there, and must not miss rows before it
        super().save(done, recording, seconds)  # there are no items to save


def saving_of(ranks: Ranks, folder: Path, **options: Any) -> SharedSaving:
    """The checkpoints of a run, for its rank."""
    return (SharedSaving if ranks.is_first else FollowingSaving)(folder, ranks, **options)
