"""Checkpoints of a run: when they are saved, what they contain, and how they are restored."""

import os
import time
from collections import deque
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

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

MOST_HASH_THREADS = 4
"""Number of threads up to which hashing a checkpoint gets faster."""
SMALL_STATE_BYTES = 16 * 2**20
"""Size in bytes up to which a save waits for the previous one, so that it happens exactly at its planned step."""
RETRY_PAUSE = 5.0
"""Seconds between two attempts to save a run whose updates are being refused."""
LAST_SAVE_WAIT = 60.0
"""Seconds that an ending run waits for the save in progress."""
MIRROR_WAIT = 300.0
"""Seconds that an ending run waits for the copy to the mirror in progress."""


class RunCheckpoints:
    """Checkpoints of one run: their content, their schedule, and their writing in the background.

    A periodic save takes a snapshot and returns; a thread writes it. At most one save is in progress: a periodic one
    that becomes due meanwhile is postponed until it is done, an explicitly requested one waits for it.

    Args:
        folder: run folder.
        every: number of steps between checkpoints, "auto" for as often as ``autosave`` allows, None for only at the
            end.
        keep: retention policy; None for the default.
        autosave: limits for the time that training waits for checkpoints and for the work that a crash may lose.
        mirror: URL to which every checkpoint is copied; empty for none.

    Attributes:
        incidents: damaged or lost checkpoints found before the loop began.
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
        # Metrics of a save that failed, for the save that is tried next.
        self._unsaved_metrics: Mapping[str, float] | None = None
        self._due = False

    @property
    def checkpoints(self) -> Checkpoints:
        """Checkpoints on disk; waits for the save in progress."""
        # Otherwise a caller could miss the newest checkpoint.
        self._saver.wait()
        return self._checkpoints

    def set_items(
        self, items: Mapping[str, Any], *, renamed: Mapping[str, str] | None = None, optional: Collection[str] = ()
    ) -> None:
        """Set the content of the checkpoints; call it once, before anything is restored or saved.

        Args:
            items: items by name.
            renamed: old item name to new item name, for earlier checkpoints.
            optional: names of items that earlier checkpoints may lack.
        """
        self._items = dict(items)
        self._renamed = renamed or {}
        self._optional = frozenset(optional)

    def refuse_overlooked(self) -> None:
        """Refuse to begin at step 0 if there is a run to resume, which would be overwritten.

        Raises:
            NoWayBackError: the folder or its mirror holds checkpoints.
        """
        self.incidents.refuse_step_0()
        # Listing the mirror needs the network, so this is the last condition.
        if self._mirror is not None and self.incidents.start_undecided and self._mirror.names():
            raise NoWayBackError(
                f"{self._mirror.url} holds checkpoints, but none was restored: call run.resume() before the loop, or "
                "choose another mirror"
            )

    def set_manifest(self, run: Manifest) -> None:
        """Set the content of run.json, which every checkpoint stores so that the file can be recreated from it."""
        self._manifest_text = run.text()

    def resume(
        self,
        record: RunRecord,
        config: Mapping[str, Any],
        *,
        resuming: bool,
        may_resume: bool = True,
        step: CheckpointSelector = "last",
    ) -> Restored | None:
        """Restore a checkpoint: by default the last good one of the folder, or else of the mirror.

        Later checkpoints than a chosen one are renamed as those of an abandoned branch.

        Args:
            record: record of the run.
            config: config of the run; the run in the mirror must have the same.
            resuming: whether the folder holds a run.
            may_resume: whether ``Saving.resume`` allows a run to be continued.
            step: checkpoint to restore; any other than "last" has to be in the folder.

        Raises:
            CheckpointError: checkpoints exist, but none could be restored; or there is none of ``step``.
            NoWayBackError: the run had checkpoints, but none is left.
            ConfigMismatch, FileExistsError: the mirror holds a run with another config, or one that must not be
                continued.
        """
        if step != "last":
            return self._go_back_to(step, record)
        restored = self._restore_or_fetch(record, config, resuming=resuming, may_resume=may_resume)
        # The folder holds a run but no checkpoint: starting at step 0 would overwrite its record.
        if restored is None and resuming:
            self.incidents.refuse_step_0()
        return restored

    def _go_back_to(self, step: CheckpointSelector, record: RunRecord) -> Restored | None:
        """Restore a chosen checkpoint, then set the later ones aside.

        Raises:
            CheckpointError: there is no such checkpoint, or it could not be restored; nothing was renamed then.
        """
        # Names the steps that there are; `restore` returns None for an empty folder.
        self._checkpoints.find(step)
        restored = self.restore(record, step)
        if restored is not None:
            # Before the record is rewound: if this process is killed in between, the run continues from this step.
            abandoned = self._checkpoints.abandon_later(
                restored.step, f"the run was continued from step {restored.step}"
            )
            self.incidents.add_abandoned(restored.step, abandoned)
        return restored

    def _restore_or_fetch(
        self, record: RunRecord, config: Mapping[str, Any], *, resuming: bool, may_resume: bool
    ) -> Restored | None:
        if self._mirror is None:
            return self.restore(record) if resuming else None
        # Prefer the checkpoints of the folder, since the mirror may lag behind.
        if resuming and self._checkpoints.steps():
            try:
                return self.restore(record)
            except NoWayBackError as error:
                if not self._mirror.names():
                    raise
                # All are damaged: move them aside, to free their names for the copies from the mirror.
                self._checkpoints.set_aside_all(str(error))
                self.incidents.add_lost(str(error))
        restored = self._fetch(self._mirror, record, config, may_resume=may_resume)
        if restored is None or resuming:
            return restored
        # The sink positions belong to another folder: the sinks of this one have nothing to rewind.
        note: dict[str, Any] = {**restored.note, "sinks": {}, "elsewhere": True}
        return Restored(step=restored.step, note=note, fell_back=restored.fell_back)

    def restore(self, record: RunRecord, step: CheckpointSelector = "last") -> Restored | None:  # noqa: ARG002  ranks
        """Restore a checkpoint, and remember the damaged ones that were skipped.

        Args:
            record: record of the run.
            step: step to restore; "last" for the last good checkpoint.

        Returns:
            The restored checkpoint; None if there is none.

        Raises:
            CheckpointError: no checkpoint could be restored.
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
        """Write a test checkpoint of the real size to disk and read it back, before any training.

        Raises:
            CheckpointError: the run could not be saved.
        """
        if self._items:
            began = time.monotonic()
            draft = self._rehearsed(step)
            # Optimizers allocate their moments at the first step, so later checkpoints are larger than this one.
            ahead = optimizer_growth(self._items)
            write_test_checkpoint(self._checkpoints.folder, draft, growth=ahead)
            self._nbytes = draft.nbytes
            record.event("preflight", step, nbytes=draft.nbytes + ahead, took=_milliseconds(began))
        self._interval.begin()

    def after_step(self, metrics: Mapping[str, float] | None) -> None:
        """Request a save at the end of this step, ranked by ``metrics``."""
        self._requested_metrics = metrics or {}

    def due(self, done: int, record: RunRecord) -> bool:
        """Record the outcomes of earlier saves, and return whether to save now.

        A periodic save is postponed while another one is in progress.

        Args:
            done: number of finished steps.
            record: record of the run.

        Raises:
            CheckpointError: the writer thread failed unexpectedly.
        """
        self.record_outcomes(record)
        if not self._items:
            return False
        # `_due` stays set while the save is postponed, since neither the interval nor a rule requests it again.
        self._due = self._interval.due(done) or record.take_request("checkpoint") or self._due
        if self._requested_metrics is not None:
            return True
        return self._due and not (self._saver.busy and self._nbytes > SMALL_STATE_BYTES)

    def save_in_background(self, done: int, record: RunRecord, seconds: float) -> None:
        """Take a snapshot and return; a thread writes it. Postponed while updates are being refused.

        A requested save that is postponed is retried at every step, and keeps its metrics.

        Args:
            done: number of finished steps.
            record: record of the run.
            seconds: training time so far.

        Raises:
            CheckpointError: an item cannot be stored, or the writer thread failed unexpectedly.
        """
        self._wait_for_writer(record)
        # This reflects only the rows processed so far; `_write` checks again after all rows up to this step.
        if record.unsafe_to_save:
            self._due = False
            self._interval.put_off(RETRY_PAUSE)
            return
        self._snapshot(done, record, seconds, self._take_requested_metrics())

    def save(self, done: int, record: RunRecord, seconds: float) -> None:
        """Save now, and return once the checkpoint is on disk.

        Args:
            done: number of finished steps.
            record: record of the run.
            seconds: training time so far.

        Raises:
            Diverged: the run has diverged by this step, so its state is not saved.
            CheckpointError: the checkpoint could not be written.
        """
        self._wait_for_writer(record)
        metrics = self._take_requested_metrics()
        if not self._items:
            return
        began = time.monotonic()
        # Sync the record first: it must not end before the checkpoint.
        mark = self._mark_or_fail(done, record, seconds)
        # `mark` has waited for all rows, so a divergence up to this step is known.
        record.raise_if_diverged(self.how_to_resume)
        draft = self._checkpoints.take(done, self._items, share_memory, metrics=metrics)
        draft.put_note(mark)
        draft.put_run(self._manifest_text)
        # Kept until the checkpoint is on the disk: a save that fails may be tried again.
        self._unsaved_metrics = metrics
        path = self._checkpoints.write(draft)
        self._unsaved_metrics = None
        took = _milliseconds(began)
        self._record_written(PendingSave(done=done, seconds=seconds, metrics=metrics, stall=took), path, took, record)
        self._interval.saved()

    def finish(self, done: int, record: RunRecord, seconds: float) -> None:
        """Save the current step unless it is saved already, and return once it is on disk.

        Raises:
            CheckpointError: the checkpoint could not be written.
        """
        self._wait_for_writer(record)
        if self._saved_at < done:
            self.save(done, record, seconds)

    def close(self, record: RunRecord) -> None:
        """Wait for the save and the copy in progress, up to a time limit, and record their outcomes."""
        ended = self._saver.close(LAST_SAVE_WAIT)
        if self._mirror is not None:
            # If the save did not finish in time, do not wait for the copy as well.
            self._mirror.close(MIRROR_WAIT if ended else 0.0)
        if record.failure is None:
            self._drain_outcomes(record)

    def how_to_resume(self) -> str:
        """Return a sentence for error messages."""
        last = max(self.checkpoints.steps(), default=0)
        return f"Resume from step {last} with `fieldwatch resume {self._folder}`, after fixing the cause"

    def record_outcomes(self, record: RunRecord) -> None:
        """Record the outcomes of completed saves and copies.

        Raises:
            CheckpointError: the writer thread failed unexpectedly.
        """
        if self._outcomes or (self._mirror is not None and self._mirror.copied):
            self._drain_outcomes(record)
        self._saver.raise_failure()

    def _take_requested_metrics(self) -> Mapping[str, float] | None:
        """Return the metrics of the requested save, or else of the last one that failed, and clear the request."""
        metrics = self._requested_metrics
        if not metrics and self._unsaved_metrics:
            metrics = self._unsaved_metrics
        self._requested_metrics = None
        self._unsaved_metrics = None
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
                f"step {done} was not saved, since the record could not be written: {error}; {self.how_to_resume()}"
            ) from error

    def _rehearsed(self, step: int) -> Draft:
        try:
            draft = self._checkpoints.take(step, self._items, self._buffers.copy_arrays)
            self._buffers.wait()
        except ShortOfMemoryError:  # reported at each save
            draft = self._checkpoints.take(step, self._items, share_memory)
        return draft

    def _snapshot(self, done: int, record: RunRecord, seconds: float, metrics: Mapping[str, float] | None) -> None:
        began = time.monotonic()
        # Request the status before the copy is made: rows of later steps must not influence it.
        pending = record.request_status(seconds)
        try:
            draft = self._checkpoints.take(done, self._items, self._buffers.copy_arrays, metrics=metrics)
        except ShortOfMemoryError as error:
            record.event("saved_while_training_waits", max(done - 1, 0), reason=str(error))
            # Too little memory for a copy: training waits while its live state is written, with the same metrics.
            self._requested_metrics = metrics
            self._save_or_fail(done, record, seconds)
            return
        self._nbytes = draft.nbytes
        self._interval.snapshot_taken(time.monotonic() - began)
        conflict = self._interval.conflict()
        if conflict is not None:
            record.event("saving_over_budget", max(done - 1, 0), **conflict)
        save = PendingSave(done=done, seconds=seconds, metrics=metrics, stall=_milliseconds(began))
        self._saver.begin(partial(self._write, draft, pending, save, record))

    def _save_or_fail(self, done: int, record: RunRecord, seconds: float) -> None:
        save = PendingSave(done=done, seconds=seconds, metrics=self._requested_metrics, stall=0.0)
        try:
            self.save(done, record, seconds)
        except CheckpointError as error:
            self._outcomes.append(FailedSave(save=save, reason=str(error), free=free_bytes(self._folder)))
            self._drain_outcomes(record)

    def _write(self, draft: Draft, pending: PendingStatus, save: PendingSave, record: RunRecord) -> None:
        """Write a snapshot; runs on the writer thread."""
        began = time.monotonic()
        status = pending.wait()
        # The status is None if the record failed, which raises on the training thread.
        if status is None or not status.safe_to_save:
            self._outcomes.append(RefusedSave(save=save))
            return
        try:
            # Sync the journal first: after a power cut it must not end before the checkpoint.
            record.sync()
            self._buffers.wait()
            draft.put_note(status.mark)
            draft.put_run(self._manifest_text)
            path = self._checkpoints.write(draft, threads=spare_threads())
        except (CheckpointError, OSError) as error:
            self._outcomes.append(FailedSave(save=save, reason=str(error), free=free_bytes(self._folder)))
            return
        self._outcomes.append(WrittenSave(save=save, path=path, took=_milliseconds(began)))
        draft.release()
        # Allocate here, where training does not wait for it; the next snapshot would.
        self._buffers.make_room_ahead()

    def _drain_outcomes(self, record: RunRecord) -> None:
        while self._outcomes:
            match self._outcomes.popleft():
                case WrittenSave(save=save, path=path, took=took):
                    self._interval.written(took / 1e3)
                    self._record_written(save, path, took, record)
                case FailedSave() as failed:
                    self._failures += 1
                    # Not requested again, unlike those of a refused save: the next attempt waits for the interval.
                    self._unsaved_metrics = failed.save.metrics or self._unsaved_metrics
                    again = self._interval.failed()
                    facts = {"reason": failed.reason, "free_bytes": failed.free, "failures": self._failures}
                    metrics = dict(failed.save.metrics or {})
                    record.event("checkpoint_failed", failed.save.step, **facts, metrics=metrics, tried_again_in=again)
                case RefusedSave(save=save):
                    self._interval.put_off(RETRY_PAUSE)
                    # Request the save again, unless a newer request has replaced it.
                    if self._requested_metrics is None:
                        self._requested_metrics = save.metrics
        # Copies finish on the mirror's thread, but events are recorded by the training thread, in order with the rows.
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
            metrics=dict(save.metrics or {}),
            stall_ms=save.stall,
            took_ms=took,
        )
        # Ends the warning about failed saves.
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
            raise ExistingPathError(
                f"{mirror.url} already holds a run: choose another mirror, or continue it (resume='auto')"
            )
        # A mirror may be shared by mistake: compare the config of its run before anything is fetched.
        refuse_mismatch(Path(mirror.url), stored, config)
        passed_over = mirror.fetch(self._checkpoints.folder)
        restored = self.restore(record)
        # Events of the restored step itself are dropped if the run resumes there again.
        before = max(restored.step - 1, 0) if restored is not None else 0
        for incident in passed_over:
            self.incidents.add_damaged(incident, restored.step if restored is not None else 0)
        record.event("restored_from_mirror", before, url=mirror.url)
        return restored


def spare_threads() -> int:
    """Return the number of threads that may hash a checkpoint while training goes on: at most four, at least one."""
    cores = os.cpu_count() or 1
    # A training on a GPU needs few cores; on a CPU, all that torch computes with.
    taken = cores // 2 if torch.cuda.is_initialized() else torch.get_num_threads()
    return max(1, min(MOST_HASH_THREADS, cores - taken))


def free_memory() -> int:
    """Return the bytes that this process may still allocate, within its cgroup limits."""
    # In a container, the cgroup limit is lower than the free memory of the machine.
    resident = psutil.Process().memory_info().rss
    return process_capacity(resident) - resident


def _milliseconds(began: float) -> float:
    return round((time.monotonic() - began) * 1e3, 3)
