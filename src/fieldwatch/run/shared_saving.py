"""Checkpoints with several ranks: the first rank writes them, and chooses the one that all ranks restore."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fieldwatch.checkpoint import CheckpointSelector, Restored
from fieldwatch.run.ranks import Ranks
from fieldwatch.run.run_record import RunRecord
from fieldwatch.run.saving import RunCheckpoints


class SharedCheckpoints(RunCheckpoints):
    """Checkpoints of the first or only rank. The other ranks wait while it saves or restores.

    Args:
        folder: run folder.
        ranks: group of processes that train together.
        **options: options of `RunCheckpoints`.
    """

    def __init__(self, folder: Path, ranks: Ranks, **options: Any) -> None:
        super().__init__(folder, **options)
        self._ranks = ranks

    def synchronize(self, record: RunRecord) -> None:
        """Wait until every rank has processed its rows so far, and the save in progress is on disk."""
        if not self._ranks.alone:
            record.flush()
            self._saver.wait()
            # The collective comes last: by then each rank has processed its rows, and the save is on disk.
            self._ranks.broadcast(None)

    def resume(
        self,
        record: RunRecord,
        config: Mapping[str, Any],
        *,
        resuming: bool,
        may_resume: bool = True,
        step: CheckpointSelector = "last",
    ) -> Restored | None:
        """Restore from the run folder, or else from its mirror, and broadcast the step to the other ranks."""
        with self._ranks.announced("a checkpoint"):
            restored = super().resume(record, config, resuming=resuming, may_resume=may_resume, step=step)
        # The others wait for this broadcast before they read anything.
        self._ranks.broadcast(None if restored is None else restored.step)
        return restored

    def save_in_background(self, done: int, record: RunRecord, seconds: float) -> None:
        """Take a snapshot and return; a thread writes it."""
        with self._ranks.announced("a checkpoint"):
            if not self._ranks.alone:
                # Until every rank has written its rows: one that is killed later resumes from this checkpoint.
                self._ranks.broadcast(None)
            super().save_in_background(done, record, seconds)

    def begin(self, step: int, record: RunRecord) -> None:
        """Write a test checkpoint of the real size to disk and read it back, before any training."""
        with self._ranks.announced("a checkpoint"):
            super().begin(step, record)

    def save(self, done: int, record: RunRecord, seconds: float) -> None:
        """Save now, and return once the checkpoint is on disk."""
        with self._ranks.announced("a checkpoint"):
            super().save(done, record, seconds)


class FollowerCheckpoints(SharedCheckpoints):
    """Checkpoints of all ranks but the first: they write nothing, and restore those of the first rank.

    Only the step that the first rank restored is used: a rank that cannot read it ends the training.
    """

    def __init__(self, folder: Path, ranks: Ranks, **options: Any) -> None:
        # Only the first rank accesses the mirror.
        super().__init__(folder, ranks, **options | {"mirror": ""})
        # The first rank makes this check for all.
        self.incidents.allow_step_0()
        self._to_restore: dict[str, Any] = {}
        self._chosen: int | None = None

    def set_items(
        self, items: Mapping[str, Any], *, renamed: Mapping[str, str] | None = None, optional: Collection[str] = ()
    ) -> None:
        """Set the items to restore; this rank never saves them."""
        super().set_items({}, renamed=renamed, optional=optional)
        self._to_restore = dict(items)

    def resume(
        self,
        record: RunRecord,
        config: Mapping[str, Any],
        *,
        resuming: bool,
        may_resume: bool = True,
        step: CheckpointSelector = "last",  # noqa: ARG002  the first rank chooses for all
    ) -> Restored | None:
        """Restore the checkpoint that the first rank restored.

        Raises:
            CheckpointError: this rank cannot read the checkpoint.
        """
        self._chosen = self._ranks.broadcast(None)
        return RunCheckpoints.resume(
            self, record, config, resuming=resuming or self._chosen is not None, may_resume=may_resume
        )

    def restore(self, record: RunRecord, step: CheckpointSelector = "last") -> Restored | None:
        """Restore a step; "last" is the one that the first rank chose. The first rank's sink positions are dropped."""
        which = self._chosen if step == "last" else step
        if which is None:
            return None
        restored = self._checkpoints.restore(
            self._to_restore, step=which, renamed=self._renamed, optional=self._optional
        )
        record.event("restored", restored.step)
        # The note is that of the first rank: its sink positions do not apply to this rank's record.
        return Restored(step=restored.step, note={**restored.note, "sinks": {}, "elsewhere": True})

    def save_in_background(self, done: int, record: RunRecord, seconds: float) -> None:
        """Leave the save to the first rank, which waits for the rows of this rank, see :meth:`save`."""
        record.flush()
        self._ranks.broadcast(None)
        super().save(done, record, seconds)  # has no items to save

    def save(self, done: int, record: RunRecord, seconds: float) -> None:
        """Leave the save to the first rank, and write this rank's record up to that checkpoint."""
        # A rank that is killed later resumes from there, and must have all rows before it.
        record.flush()
        super().save(done, record, seconds)  # has no items to save


def checkpoints_of_rank(ranks: Ranks, folder: Path, **options: Any) -> SharedCheckpoints:
    """Return the checkpoints of a run for this rank, with the options of `RunCheckpoints`."""
    return (SharedCheckpoints if ranks.is_first else FollowerCheckpoints)(folder, ranks, **options)
