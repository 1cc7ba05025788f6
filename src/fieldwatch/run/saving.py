"""When a run is saved, what is saved, and how it is put back."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fieldwatch.checkpoint import Checkpoints, Restored, Retention
from fieldwatch.run.recording import Recording


class Saving:
    """The checkpoints of one run: what they hold and when they are due.

    Args:
        folder: the run folder.
        every: steps between checkpoints; None saves only at the end and on signals.
        keep: which of them stay.
    """

    def __init__(self, folder: Path, *, every: int | None, keep: Retention | None) -> None:
        self.checkpoints = Checkpoints(folder / "checkpoints", keep=keep or Retention())
        self._folder, self._every = folder, every
        self._items: dict[str, Any] = {}
        self._saved_at = 0
        self._with: Mapping[str, float] | None = None

    def keep(self, items: Mapping[str, Any]) -> None:
        """Say what a checkpoint holds.

        Raises:
            ValueError: it was said before.
        """
        if self._items:
            raise ValueError("run.keep(...) was already called: give it everything a checkpoint holds in one call")
        self._items = dict(items)

    def restore(self, recording: Recording) -> Restored | None:
        """Put the last good checkpoint back, and record which damaged ones were passed over; None without any.

        Raises:
            CheckpointError: none of them could be restored.
        """
        if not self.checkpoints.steps():
            return None
        restored = self.checkpoints.restore(self._items)
        self._saved_at = restored.step
        for incident in restored.fell_back:
            recording.event("incident", restored.step, what=incident.what, reason=incident.reason)
        return restored

    def after_step(self, metrics: Mapping[str, float] | None) -> None:
        """Save at the end of this step, ranked by ``metrics``."""
        self._with = metrics or {}

    def due(self, done: int, recording: Recording) -> bool:
        """Whether to save now that so many steps are done."""
        planned = bool(self._every) and done % (self._every or 1) == 0
        return recording.asked("checkpoint") or self._with is not None or planned

    def save(self, done: int, recording: Recording, seconds: float, *, only_healthy: bool = False) -> None:
        """Save now.

        Args:
            done: how many steps are finished.
            recording: where it is recorded.
            seconds: training time so far.
            only_healthy: not while updates are being refused.

        Raises:
            Diverged: the rows up to here say so: a run is never saved past it.
        """
        metrics, self._with = self._with, None
        if not self._items:
            return
        mark = recording.mark(seconds)
        recording.raise_divergence(self.how_to_resume)  # all rows are read now
        if only_healthy and recording.refusals.ongoing:
            return
        path = self.checkpoints.save(done, self._items, metrics=metrics, note=mark)
        self._saved_at = done
        where = str(path.relative_to(self._folder))
        recording.event("checkpoint", max(done - 1, 0), seconds=seconds, path=where, metrics=metrics or {})

    def finish(self, done: int, recording: Recording, seconds: float) -> None:
        """Save what is not saved yet."""
        if self._saved_at < done:
            self.save(done, recording, seconds)

    def how_to_resume(self) -> str:
        """One sentence for who reads an error."""
        last = max(self.checkpoints.steps(), default=0)
        return f"Resume from step {last} with `fieldwatch resume {self._folder}`, after mending the cause"
