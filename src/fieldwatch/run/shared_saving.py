"""Checkpoints of a training of several ranks: the first one writes them, and chooses the one that all restore."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fieldwatch.checkpoint import CheckpointSelector, Restored
from fieldwatch.run.ranks import Ranks
from fieldwatch.run.run_record import RunRecord
from fieldwatch.run.saving import RunCheckpoints


class SharedCheckpoints(RunCheckpoints):
    """The checkpoints of the first rank, or of the only one; the others wait while it works on them.

    Args:
        folder: the run folder.
        ranks: the processes that train together.
        **options: of `RunCheckpoints`.
    """

    def __init__(self, folder: Path, ranks: Ranks, **options: Any) -> None:
        super().__init__(folder, **options)
        self._ranks = ranks

    def synchronize(self, record: RunRecord) -> None:
        """Let every rank read its record up to here, and see the same checkpoints on the disk."""
        if not self._ranks.alone:
            record.flush()
            self._saver.wait()
            # Meeting last: each rank has read its rows by then, and the save in flight is on the disk.
            self._ranks.broadcast(None)

    def resume(
        self, record: RunRecord, config: Mapping[str, Any], *, resuming: bool, may_resume: bool = True
    ) -> Restored | None:
        """Restore from the run folder, or else from its mirror, and tell the others which step that is."""
        with self._ranks.announced("a checkpoint"):
            restored = super().resume(record, config, resuming=resuming, may_resume=may_resume)
        # The others wait for this broadcast before they read anything.
        self._ranks.broadcast(None if restored is None else restored.step)
        return restored

    def save_in_background(self, done: int, record: RunRecord, seconds: float) -> None:
        """Take a snapshot and go on."""
        with self._ranks.announced("a checkpoint"):
            super().save_in_background(done, record, seconds)

    def begin(self, step: int, record: RunRecord) -> None:
        """Write a checkpoint of the real size to the disk and read it back, before any training."""
        with self._ranks.announced("a checkpoint"):
            super().begin(step, record)

    def save(self, done: int, record: RunRecord, seconds: float) -> None:
        """Save now, and return when that is on the disk."""
        with self._ranks.announced("a checkpoint"):
            super().save(done, record, seconds)


class FollowerCheckpoints(SharedCheckpoints):
    """The checkpoints as every other rank sees them: it writes nothing, and reads those of the first rank.

    It restores the step that the first rank restored, never another: a rank that cannot read it ends the training.
    """

    def __init__(self, folder: Path, ranks: Ranks, **options: Any) -> None:
        # Only the first rank copies checkpoints, and only its mirror is read.
        super().__init__(folder, ranks, **options | {"mirror": ""})
        self.incidents.allow_step_0()  # the first rank decides whether that may be
        self._to_restore: dict[str, Any] = {}
        self._chosen: int | None = None

    def set_items(
        self, items: Mapping[str, Any], *, renamed: Mapping[str, str] | None = None, optional: Collection[str] = ()
    ) -> None:
        """Say what is restored; nothing of it is ever saved from here."""
        super().set_items({}, renamed=renamed, optional=optional)
        self._to_restore = dict(items)

    def resume(
        self, record: RunRecord, config: Mapping[str, Any], *, resuming: bool, may_resume: bool = True
    ) -> Restored | None:
        """Restore what the first rank did.

        Raises:
            CheckpointError: it cannot be read from here.
        """
        self._chosen = self._ranks.broadcast(None)
        return RunCheckpoints.resume(
            self, record, config, resuming=resuming or self._chosen is not None, may_resume=may_resume
        )

    def restore(self, record: RunRecord, step: CheckpointSelector = "last") -> Restored | None:
        """Restore a step; "last" is the one that the first rank chose. How far its files were written is not ours."""
        which = self._chosen if step == "last" else step
        if which is None:
            return None
        restored = self._checkpoints.restore(
            self._to_restore, step=which, renamed=self._renamed, optional=self._optional
        )
        record.event("restored", restored.step)
        # The note is the first rank's: its marks say nothing about this rank's record.
        return Restored(step=restored.step, note={**restored.note, "sinks": {}, "elsewhere": True})

    def save_in_background(self, done: int, record: RunRecord, seconds: float) -> None:
        """Leave it to the first rank."""
        self.save(done, record, seconds)

    def save(self, done: int, record: RunRecord, seconds: float) -> None:
        """Leave it to the first rank, and write this rank's record as far as that checkpoint."""
        record.flush()  # a rank that is killed later goes on from there, and must not miss rows before it
        super().save(done, record, seconds)  # there are no items to save


def checkpoints_of_rank(ranks: Ranks, folder: Path, **options: Any) -> SharedCheckpoints:
    """The checkpoints of a run, for its rank."""
    return (SharedCheckpoints if ranks.is_first else FollowerCheckpoints)(folder, ranks, **options)
