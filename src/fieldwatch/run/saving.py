"""When a run is saved, what is saved, and how it is put back."""

import time
from collections import deque
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from fieldwatch.base import ExistingPathError, output_path
from fieldwatch.checkpoint import (
    Autosave,
    BackgroundWorker,
    CheckpointError,
    Checkpoints,
    CheckpointSelector,
    Draft,
    Every,
    HostBuffers,
    Interval,
    Mirror,
    NoWayBackError,
    Restored,
    Retention,
    ShortOfMemoryError,
    optimizer_growth,
    share_memory,
    write_test_checkpoint,
)
from fieldwatch.measure import process_capacity
from fieldwatch.record import Manifest
from fieldwatch.record.config import refuse_mismatch
from fieldwatch.run.incidents import Incidents
from fieldwatch.run.record_status import PendingStatus
from fieldwatch.run.run_record import Mark, RunRecord
from fieldwatch.run.saves import FailedSave, PendingSave, RefusedSave, WrittenSave, free_bytes

SMALL_STATE_BYTES = 16 * 2**20
"""Bytes of a state that is written so fast that a planned step waits for the save before it, and is kept exactly."""
RETRY_PAUSE = 5.0
"""Seconds until a run whose updates were being refused looks again whether it may be saved."""
LAST_SAVE_WAIT = 60.0
"""Seconds that an ending run waits for the save in flight."""
MIRROR_WAIT = 300.0
"""Seconds that an ending run waits for the copy to the mirror in flight."""


class RunCheckpoints:
    """The checkpoints of one run: what they hold, when they are due, and how they get to the disk.

    A periodic save takes a snapshot and returns; a thread writes it. One is in flight at most: a periodic one that
    comes meanwhile is put off until that is done, a wanted one waits for it.

    Args:
        folder: the run folder.
        every: steps between checkpoints, "auto" for what ``autosave`` allows, or None for only at the end.
        keep: which of them stay.
        autosave: how much training may wait for them, and how much work may be lost.
        mirror: a URL to which every checkpoint is copied; empty for none.

    Attributes:
        incidents: what happened to the checkpoints before the run began.
    """

    def __init__(
        self,
        folder: Path,
        *,
        every: Every,
        keep: Retention | None,
        autosave: Autosave | None = None,
        mirror: str = "",
    ) -> None:
        retention = keep or Retention()
        self._checkpoints = Checkpoints(output_path(folder, "checkpoints"), keep=retention)
        self._mirror = Mirror(mirror, retention) if mirror else None
        self._interval = Interval(every, autosave or Autosave())
        self._folder = folder
        self._buffers = HostBuffers(free_memory)
        self._saver = BackgroundWorker()
        self._outcomes: deque[WrittenSave | FailedSave | RefusedSave] = deque()
        self._items: dict[str, Any] = {}
        self._renamed: Mapping[str, str] = {}
        self._optional: frozenset[str] = frozenset()
        self._manifest_text = ""
        self.incidents = Incidents(folder)
        self._saved_at = 0
        self._failures = 0
        self._nbytes = 0
        self._requested_metrics: Mapping[str, float] | None = None
        self._due = False

    @property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints on disk, once the save in flight is among them."""
        self._saver.wait()
        return self._checkpoints

    def set_items(
        self, items: Mapping[str, Any], *, renamed: Mapping[str, str] | None = None, optional: Collection[str] = ()
    ) -> None:
        """Say what a checkpoint holds; once, before anything is restored or saved.

        Args:
            items: by name.
            renamed: names of items in earlier checkpoints, and their names now.
            optional: names that earlier checkpoints may lack.
        """
        self._items = dict(items)
        self._renamed = renamed or {}
        self._optional = frozenset(optional)

    def refuse_overlooked(self) -> None:
        """Refuse to begin without ``resume`` where there is a run to resume: it would be overwritten.

        Raises:
            NoWayBackError: the folder, or its mirror, holds checkpoints.
        """
        self.incidents.refuse_step_0()
        if self._mirror is not None and self.incidents.start_undecided and self._mirror.names():
            raise NoWayBackError(
                f"{self._mirror.url} holds checkpoints, and none was restored: call run.resume() before the loop, or "
                "choose another mirror"
            )

    def set_manifest(self, run: Manifest) -> None:
        """Say what run.json says: every checkpoint from now on holds it, so that it can be made anew from there."""
        self._manifest_text = run.text()

    def resume(
        self, record: RunRecord, config: Mapping[str, Any], *, resuming: bool, may_resume: bool = True
    ) -> Restored | None:
        """Put back what the run's folder, or else its mirror, has.

        Args:
            record: where it is recorded.
            config: the run's, which has to be that of the mirror.
            resuming: whether the folder holds a run.
            may_resume: whether a run may be continued at all.

        Raises:
            CheckpointError: there are checkpoints, and none could be restored.
            NoWayBackError: there were checkpoints, and none is left.
            ConfigMismatch, FileExistsError: the mirror holds another run, or one that may not be continued.
        """
        restored = self._restore_or_fetch(record, config, resuming=resuming, may_resume=may_resume)
        if restored is None and resuming:
            self.incidents.refuse_step_0()
        return restored

    def _restore_or_fetch(
        self, record: RunRecord, config: Mapping[str, Any], *, resuming: bool, may_resume: bool
    ) -> Restored | None:
        if self._mirror is None:
            return self.restore(record) if resuming else None
        # The folder's own checkpoints win: the mirror may lag behind them.
        if resuming and self._checkpoints.steps():
            try:
                return self.restore(record)
            except NoWayBackError as error:
                if not self._mirror.names():
                    raise
                # All are damaged: their names must be free for the copies from the mirror.
                self._checkpoints.set_aside_all(str(error))
                self.incidents.add_lost(str(error))
        restored = self._fetch(self._mirror, record, config, may_resume=may_resume)
        if restored is None or resuming:
            return restored
        # The marks are those of another folder's sinks: here there is nothing to cut back to them.
        note: dict[str, Any] = {**restored.note, "sinks": {}, "elsewhere": True}
        return Restored(step=restored.step, note=note, fell_back=restored.fell_back)

    def restore(self, record: RunRecord, step: CheckpointSelector = "last") -> Restored | None:  # noqa: ARG002  a rank's own does
        """Put the last good checkpoint back, and note which damaged ones were passed over; None without any.

        Raises:
            CheckpointError: none of them could be restored.
        """
        if not self.checkpoints.steps():
            return None
        restored = self._checkpoints.restore(self._items, step=step, renamed=self._renamed, optional=self._optional)
        self.incidents.allow_step_0()
        self._saved_at = restored.step
        self._interval.begin()
        for incident in restored.fell_back:
            self.incidents.add_damaged(incident, restored.step)
        return restored

    def begin(self, step: int, record: RunRecord) -> None:
        """Write a checkpoint of the real size to the disk and read it back, before any training.

        Raises:
            CheckpointError: the run could not be saved.
        """
        if self._items:
            began = time.monotonic()
            draft = self._rehearsed(step)
            ahead = optimizer_growth(self._items)
            write_test_checkpoint(self._checkpoints.folder, draft, growth=ahead)
            self._nbytes = draft.nbytes
            record.event("preflight", step, nbytes=draft.nbytes + ahead, took=_milliseconds(began))
        self._interval.begin()

    def after_step(self, metrics: Mapping[str, float] | None) -> None:
        """Save at the end of this step, ranked by ``metrics``."""
        self._requested_metrics = metrics or {}

    def due(self, done: int, record: RunRecord) -> bool:
        """Whether to save now that so many steps are done; what became of the saves before is recorded as well.

        A save that only its time asks for is put off while another is in flight.

        Raises:
            CheckpointError: the thread that writes met a surprise.
        """
        self.record_outcomes(record)
        # Stays set while the save is put off: a request is not made a second time.
        self._due = self._interval.due(done) or record.take_request("checkpoint") or self._due
        put_off = self._requested_metrics is None and self._saver.busy and self._nbytes > SMALL_STATE_BYTES
        return bool(self._items) and (self._due or self._requested_metrics is not None) and not put_off

    def save_in_background(self, done: int, record: RunRecord, seconds: float) -> None:
        """Take a snapshot and go on; a thread writes it. Not while updates are being refused.

        Args:
            done: how many steps are finished.
            record: where it is recorded.
            seconds: training time so far.

        Raises:
            CheckpointError: the items hold what cannot be stored, or the thread that writes met a surprise.
        """
        self._wait_for_writer(record)
        metrics = self._take_requested_metrics()
        if record.unsafe_to_save:
            self._interval.put_off(RETRY_PAUSE)
            return
        self._snapshot(done, record, seconds, metrics)

    def save(self, done: int, record: RunRecord, seconds: float) -> None:
        """Save now, and return when that is on the disk.

        Args:
            done: how many steps are finished.
            record: where it is recorded.
            seconds: training time so far.

        Raises:
            Diverged: the rows up to here say so: a run is never saved past it.
            CheckpointError: it could not be saved.
        """
        self._wait_for_writer(record)
        metrics = self._take_requested_metrics()
        if not self._items:
            return
        began = time.monotonic()
        mark = self._mark_or_fail(done, record, seconds)
        record.raise_if_diverged(self.how_to_resume)  # all rows are read now
        draft = self._checkpoints.take(done, self._items, share_memory, metrics=metrics)
        draft.put_note(mark)
        draft.put_run(self._manifest_text)
        path = self._checkpoints.write(draft)
        took = _milliseconds(began)
        self._record_written(
            PendingSave(done=done, seconds=seconds, metrics=metrics or {}, stall=took), path, took, record
        )
        self._interval.saved()

    def finish(self, done: int, record: RunRecord, seconds: float) -> None:
        """Save what is not saved yet, and return when it is on the disk.

        Raises:
            CheckpointError: it could not be saved.
        """
        self._wait_for_writer(record)
        if self._saved_at < done:
            self.save(done, record, seconds)

    def close(self, record: RunRecord) -> None:
        """Let what is under way end, for some time at most, and record what came of it; no matter how the run ends."""
        ended = self._saver.close(LAST_SAVE_WAIT)
        if self._mirror is not None:
            # A save that did not end in time has used up the wait of the copy.
            self._mirror.close(MIRROR_WAIT if ended else 0.0)
        if record.failure is None:
            self._drain_outcomes(record)

    def how_to_resume(self) -> str:
        """One sentence for who reads an error."""
        last = max(self.checkpoints.steps(), default=0)
        return f"Resume from step {last} with `fieldwatch resume {self._folder}`, after mending the cause"

    def record_outcomes(self, record: RunRecord) -> None:
        """Record what became of the saves that have ended.

        Raises:
            CheckpointError: the thread that writes met a surprise.
        """
        if self._outcomes or (self._mirror is not None and self._mirror.copied):
            self._drain_outcomes(record)
        self._saver.raise_failure()

    def _take_requested_metrics(self) -> Mapping[str, float] | None:
        """Return what the save is ranked by, and count the request as served."""
        metrics = self._requested_metrics
        self._requested_metrics = None
        self._due = False
        return metrics

    def _wait_for_writer(self, record: RunRecord) -> None:
        self._saver.wait()
        self.record_outcomes(record)

    def _mark_or_fail(self, done: int, record: RunRecord, seconds: float) -> Mark:
        try:
            return record.mark(seconds)
        except OSError as error:
            raise CheckpointError(
                f"step {done} was not saved: the record up to it cannot be written: {error}; {self.how_to_resume()}"
            ) from error

    def _rehearsed(self, step: int) -> Draft:
        try:
            draft = self._checkpoints.take(step, self._items, self._buffers.copy_arrays)
            self._buffers.wait()
        except ShortOfMemoryError:  # each save will say so
            draft = self._checkpoints.take(step, self._items, share_memory)
        return draft

    def _snapshot(self, done: int, record: RunRecord, seconds: float, metrics: Mapping[str, float] | None) -> None:
        began = time.monotonic()
        # Requested before the copy is made: later rows must not count as part of this state.
        pending = record.request_status(seconds)
        try:
            draft = self._checkpoints.take(done, self._items, self._buffers.copy_arrays, metrics=metrics)
        except ShortOfMemoryError as error:
            record.event("saved_while_training_waits", max(done - 1, 0), reason=str(error))
            # No room for a copy: training waits while the state itself is written, ranked as it was asked for.
            self._requested_metrics = metrics
            self._save_or_fail(done, record, seconds)
            return
        self._nbytes = draft.nbytes
        self._interval.snapshot_taken(time.monotonic() - began)
        conflict = self._interval.conflict()
        if conflict is not None:
            record.event("saving_over_budget", max(done - 1, 0), **conflict)
        save = PendingSave(done=done, seconds=seconds, metrics=metrics or {}, stall=_milliseconds(began))
        self._saver.begin(partial(self._write, draft, pending, save, record))

    def _save_or_fail(self, done: int, record: RunRecord, seconds: float) -> None:
        save = PendingSave(done=done, seconds=seconds, metrics={}, stall=0.0)
        try:
            self.save(done, record, seconds)
        except CheckpointError as error:
            self._outcomes.append(FailedSave(save=save, reason=str(error), free=free_bytes(self._folder)))
            self._drain_outcomes(record)

    def _write(self, draft: Draft, pending: PendingStatus, save: PendingSave, record: RunRecord) -> None:
        """Write a snapshot; on the saver's thread."""
        began = time.monotonic()
        status = pending.wait()
        if status is None or not status.safe_to_save:  # a record that stopped is met by the training's thread itself
            self._outcomes.append(RefusedSave(save=save))
            return
        try:
            # The journal first: after a power cut it must reach at least as far as the checkpoint.
            record.sync()
            self._buffers.wait()
            draft.put_note(status.mark)
            draft.put_run(self._manifest_text)
            # One thread: the other cores belong to the training.
            path = self._checkpoints.write(draft, threads=1)
        except (CheckpointError, OSError) as error:
            self._outcomes.append(FailedSave(save=save, reason=str(error), free=free_bytes(self._folder)))
            return
        self._outcomes.append(WrittenSave(save=save, path=path, took=_milliseconds(began)))
        draft.release()
        # Here the training does not wait for it; in the next snapshot it would.
        self._buffers.make_room_ahead()

    def _drain_outcomes(self, record: RunRecord) -> None:
        while self._outcomes:
            match self._outcomes.popleft():
                case WrittenSave(save=save, path=path, took=took):
                    self._interval.written(took / 1e3)
                    self._record_written(save, path, took, record)
                case FailedSave() as failed:
                    self._failures += 1
                    again = self._interval.failed()
                    facts = {"reason": failed.reason, "free_bytes": failed.free, "failures": self._failures}
                    record.event("checkpoint_failed", failed.save.step, **facts, tried_again_in=again)
                case RefusedSave():
                    self._interval.put_off(RETRY_PAUSE)
        while self._mirror is not None and self._mirror.copied:
            copied = self._mirror.copied.popleft()
            url = self._mirror.url
            if copied.error is None:
                record.event("mirrored", max(copied.step - 1, 0), url=url, name=copied.name)
            else:
                reason = f"{url}: {type(copied.error).__name__}: {copied.error}"
                record.event("mirror_failed", max(copied.step - 1, 0), reason=reason)

    def _record_written(self, save: PendingSave, path: Path, took: float, record: RunRecord) -> None:
        self._saved_at = save.done
        record.event(
            "checkpoint",
            save.step,
            seconds=save.seconds,
            path=str(path.relative_to(self._folder)),
            metrics=dict(save.metrics),
            stall_ms=save.stall,
            took_ms=took,
        )
        if self._failures:
            record.event("checkpoints_recovered", save.step, failures=self._failures)
            self._failures = 0
        if self._mirror is not None:
            self._mirror.offer(path)

    def _fetch(
        self, mirror: Mirror, record: RunRecord, config: Mapping[str, Any], *, may_resume: bool
    ) -> Restored | None:
        stored = mirror.config() if mirror.names() else None
        if stored is None:
            return None
        if not may_resume:
            raise ExistingPathError(f"{mirror.url} holds a run: choose another mirror, or continue it (resume='auto')")
        # A mirror may be shared by mistake: its run has to have this config before anything is fetched.
        refuse_mismatch(Path(mirror.url), stored, config)
        passed_over = mirror.fetch(self._checkpoints.folder)
        restored = self.restore(record)
        before = max(restored.step - 1, 0) if restored is not None else 0
        for incident in passed_over:
            self.incidents.add_damaged(incident, restored.step if restored is not None else 0)
        record.event("restored_from_mirror", before, url=mirror.url)
        return restored


def free_memory() -> int:
    """Bytes that this process may still take, within the limits of its groups."""
    resident = psutil.Process().memory_info().rss
    return process_capacity(resident) - resident


def _milliseconds(began: float) -> float:
    return round((time.monotonic() - began) * 1e3, 3)
