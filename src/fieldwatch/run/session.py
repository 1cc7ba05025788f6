"""`Session`: an entered run, with everything that records, guards, saves and resumes it."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, Self, TypeVar

from fieldwatch.base import InputError
from fieldwatch.checkpoint import CheckpointError, CheckpointSelector, FolderLock, Restored, Stateful
from fieldwatch.guard import Diverged, Rollback, describe_non_finite, forget_steps
from fieldwatch.health import training_exit_code
from fieldwatch.measure import Clock, DetailSchedule, Heading, Owner
from fieldwatch.monitor import reports_failure
from fieldwatch.record import Manifest
from fieldwatch.run.checkpoint_coverage import CheckpointCoverage
from fieldwatch.run.crash import leave_crash
from fieldwatch.run.decision import Continue, Decision, GoBack, Save, Stop
from fieldwatch.run.earlier_runs import compare_with_earlier_runs, keep_source_code
from fieldwatch.run.ending import Interrupted, ReplayEnded, end_state, print_warnings, record_end
from fieldwatch.run.evaluation import EvaluationBlock
from fieldwatch.run.full_disk import retry_while_disk_full
from fieldwatch.run.log import RunLog
from fieldwatch.run.loop_checks import LoopChecks
from fieldwatch.run.loop_facts import (
    describe_without_steps,
    record_at_end,
    record_early_end,
    record_evaluation,
    record_loop_source,
)
from fieldwatch.run.machine import device_name, machine_facts
from fieldwatch.run.memory import RunMemory
from fieldwatch.run.micro_batches import MicroBatches
from fieldwatch.run.plan import RunPlan
from fieldwatch.run.ranks import RankVote
from fieldwatch.run.retry import Retry
from fieldwatch.run.rollback import EVENT, RollbackState, decide_rollback, no_way_back
from fieldwatch.run.run_record import RunRecord
from fieldwatch.run.shared_saving import checkpoints_of_rank
from fieldwatch.run.sink_group import close_sinks
from fieldwatch.run.start import give_up_training, refuse_links
from fieldwatch.run.step import Step
from fieldwatch.run.step_context import StepContext
from fieldwatch.run.stopping import InterruptibleSource, StopPoint
from fieldwatch.run.stored_random_state import StoredRandomState
from fieldwatch.run.tracked_objects import TrackedObjects, refuse_lazy_parameters, refuse_non_mapping
from fieldwatch.run.watchdog import AFTER_LOOP, Watchdog

Item = TypeVar("Item")
Result = TypeVar("Result")

LOOP_CHECKS = "loop_checks"
"""Name of the checkpoint item with what the checks of the loop measured so far."""


class Session:
    """The components of an entered run. If the constructor returns, the folder is locked and the record is open.

    Args:
        plan: resolved arguments of the run.
        resources: stack for resources that stay open until :meth:`close`: the folder lock, the signal handlers.
        undo: stack for cleanup that only a failed constructor needs; :meth:`close` does the same in its own order.
    """

    def __init__(self, plan: RunPlan, resources: ExitStack, undo: ExitStack) -> None:
        saving = plan.saving
        self._plan = plan
        self.ranks = plan.ranks
        self.watchdog = Watchdog(plan.folder, plan.guard.hang_timeout)
        self.checkpoints = checkpoints_of_rank(
            self.ranks, plan.root, every=saving.every, keep=saving.keep, autosave=saving.autosave, mirror=plan.mirror
        )
        self._resources = resources
        # Lock the folder first: nothing may be written to a folder that another process uses.
        self._take_folder(undo)
        self.record = self._open_record(undo)
        self.log = RunLog(self.record)
        self.tracked = TrackedObjects()
        self.clock = Clock()
        self.memory = RunMemory(plan.folder, self.tracked.watched, self.clock, plan.profile, self.tracked.data)
        self.coverage = CheckpointCoverage(self.tracked.watched, self._warn_not_kept)
        self._retry = Retry(self.log, self.memory)
        self.stop_point = StopPoint(self.log.event, self.checkpoints, self.watchdog.alive)
        # Last: until the record is open, a signal can end the process as usual without leaving anything half written.
        resources.enter_context(self.stop_point)
        self._random = StoredRandomState()
        self._manifest: Manifest | None = None
        self._rollback = RollbackState.of({}, plan.guard.rollback)
        self._agreed = RankVote()
        self._resumed = False
        self._began = False
        self._start = 0
        self._total: int | None = None
        self._mark: Mapping[str, Any] | None = None
        self._step: Step | None = None
        self._step_began = 0.0
        self._save_due = False
        self._context = StepContext(
            tracked=self.tracked,
            ranks=self.ranks,
            clock=self.clock,
            watchdog=self.watchdog,
            memory=self.memory,
            record=self.record,
            log=self.log,
            coverage=self.coverage,
            loop_checks=LoopChecks(self.tracked, self.log.event),
            retry=self._retry,
            detail_every=plan.outputs.detail_every,
            details=DetailSchedule(plan.outputs.detail_every, self.tracked.watched),
            skips=self._skips,
            observer=plan.observer,
        )
        plan.observer.opened(self.tracked, self.save)

    @classmethod
    @reports_failure
    def open(cls, plan: RunPlan) -> Self:
        """Lock the folder for this process, start the record, and install signal handlers.

        If any of these fails, everything acquired so far is released and the reason is written to the black box.
        """
        with ExitStack() as resources, ExitStack() as undo:
            session = cls(plan, resources, undo)
            # From here on, `close` does the cleanup of `undo`, in the order of a normal end.
            undo.pop_all()
            session._resources = resources.pop_all()
        return session

    def close(self, error: BaseException | None) -> None:
        """Save and finish, or write a crash folder.

        Args:
            error: exception that ended the training; None if it finished normally.
        """
        # First: if memory ran out, everything below needs some.
        if error is not None:
            self.memory.make_room(error)
        self._context.loop_checks.close()
        # Before anything slow is saved: the other ranks must not wait for this one.
        self.ranks.leave(error)
        self._plan.observer.closed(error)
        with self._resources, ExitStack() as closing:
            # Called in reverse order: the record has to receive the outcome of the last save, and the files of the
            # memory profile have to stay open until their delayed writes are done.
            closing.callback(self.memory.close)
            closing.callback(self.record.close)
            closing.callback(self.checkpoints.close, self.record)
            with self.watchdog.ending(error):
                self._close_step()
                if error is None:
                    if self._began and not self.ended:
                        record_early_end(self.log, self._start)
                    if self.ranks.is_first and self._began:
                        record_at_end(self._plan, self._context)
                        compare_with_earlier_runs(self._plan, self.record, self.log)
                    elif self.ranks.is_first and self._resumed:
                        self._manifest = describe_without_steps(self._plan, self.record, self.log, self.tracked)
                    self.record.finish()
                    self.finish_saving()
                    self._retry_while_disk_full(self.record.waiting.flush)
                # A replay reports the error itself, and its folder will be deleted.
                elif not isinstance(error, Interrupted) and not self._plan.observer.active:
                    how = self.checkpoints.how_to_resume()
                    leave_crash(error, self.log.step_index, self.record, self.memory, how)
                self._record_end(error)
                self.record.show_verdict(end_state(error))

    def resume(self, renamed: Mapping[str, str], step: CheckpointSelector | None = None) -> int | None:
        """Restore a checkpoint into the tracked objects; by default the one of ``Saving.resume_from``.

        Returns:
            The step of the checkpoint; None if there is no checkpoint.

        Raises:
            InputError: :meth:`resume` was already called, the loop has begun, or there is no such checkpoint.
        """
        if self._resumed or self._began:
            raise InputError("run.resume() was called twice or inside the loop: call it once, before the loop")
        # Seal the items first: an object tracked after this point would not be restored.
        self._settle_items("run.resume()", renamed)
        self._resumed = True
        plan = self._plan
        may_resume = plan.saving.resume not in ("never", "start-over")
        which = plan.saving.resume_from if step is None else step
        restored = self.checkpoints.resume(
            self.record, plan.config, resuming=plan.resuming, may_resume=may_resume, step=which
        )
        if restored is None:
            return None
        self._start = restored.step
        self._mark = restored.note
        self._rollback = RollbackState.of(restored.note.get("carried", {}), plan.guard.rollback)
        return restored.step

    def begin(self, total: int | None, *, first: int = 0) -> None:
        """Begin the loop. No objects can be tracked from now on.

        Args:
            total: planned number of steps; None if unknown.
            first: first step, unless the run was resumed at a later one.

        Raises:
            NoWayBackError: checkpoints exist, but :meth:`resume` was not called.
        """
        self._total = total
        refuse_lazy_parameters(self.tracked.items)
        if not self._resumed:
            self._settle_items("the first step", {})
            self.checkpoints.refuse_overlooked()
        self.checkpoints.incidents.refuse_step_0()
        self._start = max(self._start, first)
        self._rewind()
        # After the rewind, so that the events recorded here belong to the new segment.
        self.checkpoints.begin(self._start, self.record)
        self.watchdog.begin(self._start, self.record)
        if self.ranks.is_first:
            keep_source_code(self._plan, self._start)
            record_loop_source(self._plan, self.record, self.log, tuple(self.tracked.items))
        self.coverage.set_items(self.tracked.items or None)
        self.coverage.check_at_start()
        self._context.loop_checks.open()
        self._began = True
        if self.stop_point.signal:
            # The signal arrived during the setup: no step has begun that could be finished first.
            self._stop(self.stop_point.signal)
        if self._plan.observer.active and self._start == 0:
            self._obey_observer()  # step 0 has no step before it

    @property
    def began(self) -> bool:
        """Whether the loop has begun."""
        return self._began

    @property
    def ended(self) -> bool:
        """Whether all planned steps are done."""
        return self._total is not None and self.log.step_index + 1 >= self._total

    @property
    def open_step(self) -> Step | None:
        """Step that has begun and not ended yet; None between steps."""
        return self._step

    def begin_step(self) -> Step:
        """Begin and return the next step."""
        index = self.log.step_index + 1
        self.log.step_index = index
        self._step = step = Step(self._context, index)
        self._step_began = time.perf_counter()
        self.memory.begin(index)
        self._context.loop_checks.begin(index, detailed=(index + 1) % self._context.detail_every == 0)
        if not self.ranks.alone:
            self.ranks.at_step(index)
        self.watchdog.alive("step", index)
        if self._plan.observer.active:
            self._plan.observer.begin_step(index)
        return step

    def end_step(self) -> None:
        """End the open step: record it, then continue, save, stop or roll back.

        Raises:
            Diverged: the run has diverged, and a rollback is disabled or impossible.
            Interrupted: a signal arrived; the step was finished and saved.
        """
        self._close_step()
        if self._plan.observer.active:
            self._obey_observer()
            return
        if self._may_go_on():
            return
        match self._decision():
            case Continue():
                pass
            case Save():
                self._save_in_background()
            case Stop(signal):
                self._stop(signal)
            case GoBack() as back:
                self._go_back(back)

    def end_loop(self) -> None:
        """Save the final state now, so that interrupted products and reports can be made again from it."""
        if self._plan.observer.active:
            raise ReplayEnded
        self.watchdog.alive(AFTER_LOOP)
        self.finish_saving()

    def save(self) -> None:
        """Save a checkpoint now; wait for free space if the disk is full."""
        self._retry_while_disk_full(self.checkpoints.save, self.log.step_index + 1, self.record, self.log.seconds)

    def finish_saving(self) -> None:
        """Save the current step unless it is saved already; wait for free space if the disk is full."""
        self._retry_while_disk_full(self.checkpoints.finish, self.log.step_index + 1, self.record, self.log.seconds)

    def retry(self, work: Callable[[], Result], micro_batches: MicroBatches, undo: Sequence[Stateful]) -> Result:
        """Call ``work`` and return its result, retrying with more micro-batches if memory runs out."""
        return self._retry(work, micro_batches, step=self._step, undo=undo)

    def note_evaluation(self) -> None:
        """Record what the checks of the loop saw of an evaluation between two steps."""
        if self._began and self._step is None:
            record_evaluation(self._context.loop_checks, self.record, self.log)

    def span(self, name: str) -> AbstractContextManager[None]:
        """Record the time of a block in ms as ``Time/<name>``."""
        return self._context.span(name)

    def track(
        self, items: Mapping[str, Any], groups: Mapping[str, Owner] | None, data: Mapping[str, Any] | None
    ) -> None:
        """Track further items, parameter groups and other data, see :meth:`Run.track`."""
        self.tracked.add(items, refuse_non_mapping("groups", groups), refuse_non_mapping("data", data))

    def batches(self, source: Iterable[Item]) -> Iterator[Item]:
        """Iterate over ``source`` repeatedly, recording the wait for each batch as ``Time/data``."""
        # Coverage needs both: the source to compare it with tracked objects, and the wrapper that counts batches.
        interruptible = InterruptibleSource(source, self.stop_point, lambda: self._total is None)
        self.coverage.add_source(source, interruptible)
        return self.clock.timed(interruptible)

    def evaluation(self, name: str, failures: tuple[type[Exception], ...], undo: Sequence[Stateful]) -> EvaluationBlock:
        """Return the context manager of an evaluation, see :meth:`Run.evaluation`."""
        around = (self._plan.observer.evaluating(), self._context.loop_checks.evaluation())
        return EvaluationBlock(name, self.tracked, self.record, self.log, failures=failures, undo=undo, around=around)

    @property
    def exit_code(self) -> int:
        """Process exit code: 1 if a rule reported an error, otherwise 0."""
        return training_exit_code(self.record.findings)

    @property
    def growth_cap(self) -> float | None:
        """Upper limit for the size of the model, set by a memory rule; None while no rule has set one."""
        return self.record.growth_cap if self.ranks.alone else self._agreed.growth_cap

    def _take_folder(self, undo: ExitStack) -> None:
        plan = self._plan
        plan.folder.mkdir(parents=True, exist_ok=True)
        # Before the folder is locked: the lock file itself may be one of the links.
        refuse_links(plan.folder)
        self._resources.enter_context(FolderLock(plan.folder))
        self.watchdog.open()
        # Joining the ranks may take minutes, so the watchdog is opened before it, to show how far this process got.
        undo.push(self._close_watchdog)
        # Before the ranks join: after that, every rank looks for checkpoints to restore.
        if plan.saving.resume == "start-over" and self.ranks.is_first:
            give_up_training(plan.folder)
            self.checkpoints.incidents.allow_step_0()
        self.ranks.join(plan.folder)
        undo.push(self._leave_ranks)

    def _close_watchdog(self, _kind: object, error: BaseException | None, _at: object) -> None:
        self.watchdog.close(end_state(error), error)

    def _leave_ranks(self, _kind: object, error: BaseException | None, _at: object) -> None:
        self.ranks.leave(error)

    def _open_record(self, undo: ExitStack) -> RunRecord:
        """Open the record. Ranks other than the first get only a text log and no rules."""
        plan = self._plan
        outputs = plan.outputs
        sinks = outputs.open_sinks(plan.folder, first=self.ranks.is_first)
        # If the record's constructor fails, only this callback closes the sinks.
        undo.callback(close_sinks, sinks)
        record = RunRecord(
            plan.folder,
            sinks=sinks,
            rules=outputs.rules if self.ranks.is_first else (),
            metrics=plan.description.metrics,
            max_refusals=plan.guard.max_refusals,
        )
        undo.callback(record.close)
        return record

    def _settle_items(self, call: str, renamed: Mapping[str, str]) -> None:
        items = self.tracked.seal(call)
        if items:
            # A run without tracked objects writes no checkpoints at all, rather than some with only random states.
            items = {**items, "random_state": self._random, LOOP_CHECKS: self._context.loop_checks}
        # Checkpoints of earlier versions have no state of the loop checks.
        self.checkpoints.set_items(items, renamed=renamed, optional=(*self.tracked.optional, LOOP_CHECKS))

    def _rewind(self) -> None:
        """Set the record, memory profile, manifest and random states to the first step of this segment."""
        plan = self._plan
        start = self._start
        self.log.step_index = start - 1
        self.record.carried = self._state_to_carry()
        self.log.count_from(self.record.begin(start, self._mark, self._rollback_options))
        machine = machine_facts(device_name(self.tracked.parameters()))
        self._manifest = plan.description.begin(plan.folder, self.record, start, self._total, machine)
        self.checkpoints.set_manifest(self._manifest)
        print_warnings([*self.checkpoints.incidents.record_all(self.record), *self.record.damage])
        self.record.damage.clear()
        self.memory.start(start, self.record.take_request, self.record.waiting)
        # In place of the verdict at the end of an earlier segment.
        self.record.show_verdict("running")
        # Last: everything above may draw random numbers, and must not advance the restored states.
        self._random.apply()

    def _close_step(self) -> None:
        step = self._step
        if step is None:
            return
        # Mark the step as closed before recording it: if that fails, `close` must not record it a second time.
        self._step = None
        if self._plan.observer.active:
            self._plan.observer.end_step(step.observed())
        closing = time.perf_counter()
        values = step.host_values
        values |= self.clock.take()
        if (step.index + 1) % self._context.detail_every == 0:
            values |= self.clock.processor(step.index)
        self.memory.end(step.index, values)
        values["Time/step"] = (time.perf_counter() - self._step_began) * 1e3
        heading = Heading("step", step.index, step.index, self.log.seconds, step.samples)
        self.record.write(heading, step.device_values, values)
        self.clock.add("recording", (time.perf_counter() - closing) * 1e3)  # part of the next step's row

    def _obey_observer(self) -> None:
        """Continue, roll back or end the run, as the observer requests."""
        if self.stop_point.signal:
            self.stop_point.end(self.stop_point.signal)
        done = self.log.step_index + 1
        next_step = self._plan.observer.next_step(done, ended=self.ended)
        if next_step is None:
            raise ReplayEnded
        if next_step != done:
            self._return_to(next_step)

    def _return_to(self, step: int) -> None:
        """Restore the checkpoint of a step, and restart the loop there."""
        restored = self.checkpoints.restore(self.record, step=step)
        if restored is None:
            raise RuntimeError(f"there is no checkpoint of step {step} to return to")
        # As in a new process: no gradients, and optimizers that may lack state.
        self.tracked.clear_gradients()
        forget_steps()
        self._start = restored.step
        self._mark = restored.note
        self._rewind()

    def _may_go_on(self) -> bool:
        """Return whether nothing has to be decided at the end of a step, as usual in a single process."""
        self._save_due = self.checkpoints.due(self.log.step_index + 1, self.record)
        if self._save_due or self.stop_point.signal or self.record.divergence is not None:
            return False
        return self.ranks.alone and not self.ended

    def _decision(self) -> Decision:
        """Decide what to do at the end of a step; all ranks make the same decision.

        Raises:
            Diverged: the run has diverged, and a rollback is disabled or impossible.
        """
        due = self._save_due
        vote = RankVote(self.stop_point.signal, due, self.record.divergence is not None, self.record.growth_cap)
        # The only collective operation at the end of a step; everything after it is the same on all ranks.
        self._agreed = self.ranks.agree(vote)
        if self._agreed.diverged:
            # All ranks raise the same error only if all have processed the same rows.
            self.checkpoints.synchronize(self.record)
            return self._choose_rollback()
        # Before the final save, wait for all rows and check them, while a rollback is still possible.
        last = self.ended and self._rollback_options is not None
        if last or (self._agreed.signal and self.ranks.alone):
            self.record.flush()
            if self.record.divergence is not None:
                return self._choose_rollback()
        if self._agreed.signal:
            return Stop(self._agreed.signal)
        return Save() if self._agreed.save else Continue()

    def _save_in_background(self) -> None:
        self.watchdog.alive("checkpoint")
        try:
            self.checkpoints.save_in_background(self.log.step_index + 1, self.record, self.log.seconds)
        # With too little memory for a copy, a save waits for all rows, and may be the first to notice a divergence.
        except Diverged:
            self._go_back(self._choose_rollback())

    def _stop(self, signal: int) -> None:
        self.finish_saving()
        self.stop_point.end(signal)

    @property
    def _rollback_options(self) -> Rollback | None:
        """Rollback policy; None with several ranks, and in a replay, which never roll back."""
        return self._plan.guard.rollback if self.ranks.alone and not self._plan.observer.active else None

    def _skips(self, step: int) -> bool:
        return self._plan.guard.rollback is not None and self._rollback.skipped(step)

    def _state_to_carry(self) -> Mapping[str, Any]:
        fresh = self._plan.guard.rollback is None and self._rollback == RollbackState()
        return {} if fresh else self._rollback.plain()

    def _choose_rollback(self) -> GoBack:
        """Choose the checkpoints to roll back to.

        Raises:
            Diverged: no rollback is possible; the message lists earlier attempts.
        """
        # Waits for the save in progress, which may be the best checkpoint to return to.
        checkpoint_steps = self.checkpoints.checkpoints.steps()
        self.checkpoints.record_outcomes(self.record)
        self.record.flush()
        # All rows are processed now: if there are several causes, the record returns the earliest one.
        diverged = self._divergence_error(self._non_finite())
        divergence = self.record.divergence
        options = self._rollback_options
        if options is None or divergence is None:
            raise diverged
        self._rollback = self._rollback.merge(divergence, options)
        decision = decide_rollback(divergence, self._rollback, options, checkpoint_steps, total=self._total)
        if isinstance(decision, Diverged):
            message = f"{diverged}. {decision}"
            raise Diverged(message, diverged.step)
        return decision

    def _divergence_error(self, non_finite: Sequence[str]) -> Diverged:
        """Return the error of this divergence, extended by the state that is not finite."""
        error = self.record.divergence_error(self.checkpoints.how_to_resume)
        return Diverged(f"{error}" + (f". Not finite: {'; '.join(non_finite)}" if non_finite else ""), error.step)

    def _non_finite(self) -> list[str]:
        watched = self.tracked.watched
        return describe_non_finite(watched.owners(), watched.optimizers())

    def _go_back(self, back: GoBack) -> None:
        """Restore the first candidate checkpoint that is readable, and restart the loop there."""
        divergence = self.record.divergence
        if divergence is None:
            raise RuntimeError("rollback without a divergence in the record")
        # Examine the state before it is overwritten by the checkpoint.
        non_finite = self._non_finite()
        restored = self._restored(back, self._divergence_error(non_finite))
        # The restored optimizers may lack state that existed before.
        forget_steps()
        self._rollback = self._rollback.after_rollback(divergence, back, restored.step, non_finite)
        self._start = restored.step
        self._mark = restored.note
        self._retry_while_disk_full(self._rewind)
        self._record_rollbacks()
        # Save now, so that a process killed before the next planned save does not forget which updates to skip.
        self.save()

    def _restored(self, back: GoBack, diverged: Diverged) -> Restored:
        """Restore a checkpoint, and schedule saving it again with the same metrics and the new rollback state."""
        reasons: list[str] = []
        for step in back.to:
            try:
                metrics = self.checkpoints.checkpoints.find(step).metrics
                restored = self.checkpoints.restore(self.record, step=step)
            except CheckpointError as error:
                reasons.append(str(error))
                continue
            if restored is not None:
                self.checkpoints.after_step(metrics)
                return restored
        checkpoint_steps = self.checkpoints.checkpoints.steps()
        message = f"{diverged}. {no_way_back(checkpoint_steps, self._rollback, reasons)}"
        raise Diverged(message, diverged.step)

    def _record_rollbacks(self) -> None:
        """Record this rollback, and every earlier one whose event was lost because this one goes back further."""
        # The rewind drops all events after the restored step, including those of earlier rollbacks.
        known = {event.get("number") for event in self.record.history.events(EVENT)}
        for event in self._rollback.events:
            if event["number"] not in known:
                self.record.event(EVENT, max(event["to"] - 1, 0), seconds=self.log.seconds, **event)

    def _warn_not_kept(self, subject: str, reason: str) -> None:
        """Record and print a warning about state that no checkpoint contains, while there is time to fix it."""
        if self.ranks.is_first:
            step = max(self.log.step_index, self._start)
            self.record.event("not_kept", step, seconds=self.log.seconds, subject=subject, reason=reason)
            sys.stderr.write(f"fieldwatch: {reason}\n")
            sys.stderr.flush()

    def _retry_while_disk_full(self, work: Callable[..., None], *arguments: Any) -> None:
        what = f"the run in {self._plan.folder}"
        retry_while_disk_full(partial(work, *arguments), what=what, stop=self.stop_point, alive=self.watchdog.alive)

    def _record_end(self, error: BaseException | None) -> None:
        note = partial(record_end, self._plan.folder, self._manifest, end_state(error))
        write = partial(self.record.waiting.run_required, note)
        if error is None:
            self._retry_while_disk_full(write)
            return
        try:
            write()
        except OSError as late:  # the original error is more important
            error.add_note(f"run.json could not be written, and still has the state 'running': {late}")
