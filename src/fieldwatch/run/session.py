"""A run that has been entered: everything that records, guards, saves and resumes it."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from fieldwatch.base import InputError
from fieldwatch.checkpoint import CheckpointError, FolderLock, Restored, Stateful
from fieldwatch.guard import Diverged, Rollback, forget_steps, name_poisoned
from fieldwatch.measure import Clock, Heading
from fieldwatch.record import Manifest
from fieldwatch.run.crash import leave_crash
from fieldwatch.run.decision import Continue, Decision, GoBack, Save, Stop
from fieldwatch.run.declared import Declarations
from fieldwatch.run.forgotten import Forgotten
from fieldwatch.run.full_disk import through_full_disk
from fieldwatch.run.log import RunLog
from fieldwatch.run.memory import RunMemory
from fieldwatch.run.micro_batches import MicroBatches
from fieldwatch.run.options import Guard, Outputs, Saving
from fieldwatch.run.outlets import close_sinks
from fieldwatch.run.profile import Profile
from fieldwatch.run.ranks import Ranks, Will
from fieldwatch.run.recording import Recording
from fieldwatch.run.retry import Retry
from fieldwatch.run.rollback import EVENT, RollbackState, answer_to, no_way_back
from fieldwatch.run.shared_saving import saving_of
from fieldwatch.run.sinks import own_log
from fieldwatch.run.start import Interrupted, end_state, give_up_checkpoints, note_end, refuse_links, warn_of
from fieldwatch.run.step import Step, StepContext
from fieldwatch.run.stopping import StopPoint
from fieldwatch.run.stored_random_state import StoredRandomState
from fieldwatch.run.tracked import Tracked
from fieldwatch.run.watchdog import AFTER, Watchdog

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Everything that is known about a run before its folder is taken.

    Attributes:
        folder: where this rank writes.
        root: the run folder, which all ranks share.
        config: the resolved configuration, as plain values.
        found: whether the folder holds a run that is to be continued.
        ranks: the processes that train together.
        saving: when it is saved.
        mirror: where checkpoints are copied; empty for nowhere.
        guard: when it stops or goes back.
        declarations: what it says about itself.
        outputs: who reads its rows.
        profile: when every byte of tensor memory is accounted for; None for never.
    """

    folder: Path
    root: Path
    config: Mapping[str, Any]
    found: bool
    ranks: Ranks
    saving: Saving
    mirror: str
    guard: Guard
    declarations: Declarations
    outputs: Outputs
    profile: Profile | None


class Session:
    """The collaborators of a run. It exists whole, with the folder taken and the record open, or not at all.

    Args:
        plan: what is known before.
        undo: receives what is to be given back if a later part fails.
    """

    def __init__(self, plan: RunPlan, undo: ExitStack) -> None:
        saving = plan.saving
        self._plan = plan
        self.ranks = plan.ranks
        self.watchdog = Watchdog(plan.folder, plan.guard.hang_timeout)
        self.checkpoints = saving_of(
            self.ranks, plan.root, every=saving.every, keep=saving.keep, autosave=saving.autosave, mirror=plan.mirror
        )
        self._take_folder(undo)
        self.recording = self._open_recording(undo)
        self.log = RunLog(self.recording)
        self.tracked = Tracked()
        self.clock = Clock()
        self.memory = RunMemory(plan.folder, self.tracked.watched, self.clock, plan.profile, self.tracked.data)
        self.forgotten = Forgotten(self.tracked.watched, self._say_not_kept)
        self._retry = Retry(self.log, self.memory)
        self.stop_point = StopPoint(self.log.event, self.checkpoints, self.watchdog.alive)
        undo.enter_context(self.stop_point)
        self._random = StoredRandomState()
        self._manifest: Manifest | None = None
        self._rollback = RollbackState.of({}, plan.guard.rollback)
        self._agreed = Will()
        self._resumed = False
        self._began = False
        self._start = 0
        self._total: int | None = None
        self._mark: Mapping[str, Any] | None = None
        self._step: Step | None = None
        self._step_began = 0.0
        self._context = StepContext(
            tracked=self.tracked,
            ranks=self.ranks,
            clock=self.clock,
            watchdog=self.watchdog,
            memory=self.memory,
            recording=self.recording,
            log=self.log,
            forgotten=self.forgotten,
            retry=self._retry,
            detail_every=plan.outputs.detail_every,
            skips=self._skips,
        )

    @classmethod
    def open(cls, plan: RunPlan) -> Self:
        """Take the folder for this process, start the record, and listen for signals.

        What was taken is given back if one of these fails, and the black box says why.
        """
        with ExitStack() as undo:
            session = cls(plan, undo)
            undo.pop_all()
        return session

    def close(self, error: BaseException | None) -> None:
        """Save and finish, or leave a crash folder behind.

        Args:
            error: what ended the training; None where it is finished.
        """
        self.ranks.leave(error)
        try:
            with self.watchdog.ending(error):
                self._close_step()
                if error is None:
                    self.recording.finish()
                    self.finish_saving()
                    self._with_room(self.recording.waiting.flush)
                elif not isinstance(error, Interrupted):
                    how = self.checkpoints.how_to_resume()
                    leave_crash(error, self.log.step_index, self.recording, self.memory, how)
                self._note_end(error)
        finally:
            self.checkpoints.close(self.recording)
            self.recording.close()
            self.memory.close()  # after what waited for its files is written
            self.stop_point.__exit__(None, None, None)
            self._lock.__exit__(None, None, None)

    def resume(self, renamed: Mapping[str, str]) -> int | None:
        """Restore the last good checkpoint into what is tracked; returns its step, or None where there is none.

        Raises:
            InputError: it was called before, or the loop has begun.
        """
        if self._resumed or self._began:
            raise InputError("run.resume() was called a second time, or in the loop: call it once, before the loop")
        self._settle_items("run.resume()", renamed)
        self._resumed = True
        plan = self._plan
        may = plan.saving.resume not in ("never", "start-over")
        restored = self.checkpoints.resume(self.recording, plan.config, found=plan.found, may=may)
        if restored is None:
            return None
        self._start = restored.step
        self._mark = restored.note
        self._rollback = RollbackState.of(restored.note.get("carried", {}), plan.guard.rollback)
        return restored.step

    def begin(self, total: int | None, *, first: int = 0) -> None:
        """Begin the loop. What is tracked is settled by now.

        Args:
            total: planned steps; None where that is not known.
            first: its first step, unless it was resumed at a later one.

        Raises:
            NoWayBackError: there are checkpoints, and ``resume`` was not called.
        """
        self._total = total
        if not self._resumed:
            self._settle_items("the first step", {})
            self.checkpoints.refuse_overlooked()
        self.checkpoints.incidents.refuse_step_0()
        self._start = max(self._start, first)
        self._rewind()
        self.checkpoints.begin(self._start, self.recording)
        self.watchdog.begin(self._start, self.recording)
        self.forgotten.keeps(self.tracked.items or None)
        self.forgotten.begin()
        self._began = True
        if self.stop_point.signal:
            self._stop(self.stop_point.signal)

    @property
    def began(self) -> bool:
        """Whether the loop has begun."""
        return self._began

    @property
    def ended(self) -> bool:
        """Whether the planned number of steps is done."""
        return self._total is not None and self.log.step_index + 1 >= self._total

    @property
    def open_step(self) -> Step | None:
        """The step that was given out and has not ended yet."""
        return self._step

    def begin_step(self) -> Step:
        """Give out the next step."""
        self.log.step_index += 1
        step = Step(self._context, self.log.step_index)
        self._step = step
        self._step_began = time.perf_counter()
        self.memory.begin(step.index)
        self.ranks.at_step(step.index)
        self.watchdog.alive("step", step.index)
        return step

    def end_step(self) -> None:
        """End the step that was given out, and do what is decided then.

        Raises:
            Diverged: the run has diverged, and may not or cannot go back.
            Interrupted: a signal came; the step was finished and saved.
        """
        self._close_step()
        match self._decision():
            case Continue():
                pass
            case Save():
                self._save_behind()
            case Stop(signal):
                self._stop(signal)
            case GoBack() as back:
                self._go_back(back)

    def end_loop(self) -> None:
        """Save the final state now: what is made of it later may be interrupted, and made again."""
        self.watchdog.alive(AFTER)
        self.finish_saving()

    def save(self) -> None:
        """Save a checkpoint now, waiting for room on a full disk."""
        self._with_room(self.checkpoints.save, self.log.step_index + 1, self.recording, self.log.seconds)

    def finish_saving(self) -> None:
        """Save what is not saved yet, waiting for room on a full disk."""
        self._with_room(self.checkpoints.finish, self.log.step_index + 1, self.recording, self.log.seconds)

    def retry(self, work: Callable[[], Result], micro_batches: MicroBatches, undo: Sequence[Stateful]) -> Result:
        """Return what ``work`` returns, repeated in more micro-batches while it runs out of memory."""
        return self._retry(work, micro_batches, step=self._step, undo=undo)

    def span(self, name: str) -> AbstractContextManager[None]:
        """Measure the time of a block."""
        return self._context.span(name)

    @property
    def growth_cap(self) -> float | None:
        """The size that the model must not outgrow, as a memory rule asked; None while none has asked."""
        return self.recording.growth_cap if self.ranks.alone else self._agreed.growth_cap

    def _take_folder(self, undo: ExitStack) -> None:
        plan = self._plan
        plan.folder.mkdir(parents=True, exist_ok=True)
        refuse_links(plan.folder)
        self._lock = FolderLock(plan.folder)
        undo.enter_context(self._lock)
        self.watchdog.open()
        undo.push(self._close_watchdog)
        if plan.saving.resume == "start-over" and self.ranks.is_first:
            give_up_checkpoints(plan.folder)
            self.checkpoints.incidents.allow_step_0()
        self.ranks.join(plan.folder)
        undo.push(self._leave_ranks)

    def _close_watchdog(self, _kind: object, error: BaseException | None, _at: object) -> None:
        self.watchdog.close(end_state(error), error)

    def _leave_ranks(self, _kind: object, error: BaseException | None, _at: object) -> None:
        self.ranks.leave(error)

    def _open_recording(self, undo: ExitStack) -> Recording:
        """Start the record; ranks after the first have a plain log, and no rules."""
        plan = self._plan
        outputs = plan.outputs
        wanted = outputs.sinks if self.ranks.is_first else own_log
        sinks = wanted(plan.folder) if callable(wanted) else wanted
        undo.callback(close_sinks, sinks)
        recording = Recording(
            plan.folder,
            sinks=sinks,
            rules=outputs.rules if self.ranks.is_first else (),
            metrics=plan.declarations.metrics,
            max_refusals=plan.guard.max_refusals,
        )
        undo.callback(recording.close)
        return recording

    def _settle_items(self, call: str, renamed: Mapping[str, str]) -> None:
        items = self.tracked.seal(call)
        if items:
            items = {**items, "random_state": self._random}
        self.checkpoints.keep(items, renamed=renamed, optional=self.tracked.optional)

    def _rewind(self) -> None:
        """Set record, memory profile, manifest and random states to the run's start."""
        plan = self._plan
        start = self._start
        self.log.step_index = start - 1
        self.recording.carried = self._carried()
        self.log.count_from(self.recording.begin(start, self._mark, self._rollback_options))
        self._manifest = plan.declarations.begin(plan.folder, self.recording, start, self._total)
        self.checkpoints.describe(self._manifest)
        warn_of([*self.checkpoints.incidents.tell(self.recording), *self.recording.damage])
        self.recording.damage.clear()
        self.memory.start(start, self.recording.asked, self.recording.waiting)
        self._random.apply()

    def _close_step(self) -> None:
        step = self._step
        if step is None:
            return
        self._step = None
        closing = time.perf_counter()
        values = step.host_values | self.clock.take() | self.memory.end(step.index)
        values["Time/step"] = (time.perf_counter() - self._step_began) * 1e3
        heading = Heading("step", step.index, step.index, self.log.seconds, step.samples)
        self.recording.write(heading, step.device_values, values)
        self.clock.add("recording", (time.perf_counter() - closing) * 1e3)  # it stands in the next step's row

    def _decision(self) -> Decision:
        """Decide what to do now that a step has ended; the same on all ranks.

        Raises:
            Diverged: the run has diverged, and may not go back.
        """
        due = self.checkpoints.due(self.log.step_index + 1, self.recording)
        own = Will(self.stop_point.signal, due, self.recording.trouble is not None, self.recording.growth_cap)
        self._agreed = self.ranks.agree(own)
        if self._agreed.diverged:
            self.checkpoints.meet(self.recording)
            return self._way_back()
        # A state that is saved for the last time is judged by all rows up to it, while there is a way back.
        last = self.ended and self._rollback_options is not None
        if last or (self._agreed.signal and self.ranks.alone):
            self.recording.flush()
            if self.recording.trouble is not None:
                return self._way_back()
        if self._agreed.signal:
            return Stop(self._agreed.signal)
        return Save() if self._agreed.save else Continue()

    def _save_behind(self) -> None:
        self.watchdog.alive("checkpoint")
        try:
            self.checkpoints.save_behind(self.log.step_index + 1, self.recording, self.log.seconds)
        except Diverged:  # where memory is short a save waits for all rows, and may be the first to see it
            self._go_back(self._way_back())

    def _stop(self, signal: int) -> None:
        self.finish_saving()
        self.stop_point.end(signal)

    @property
    def _rollback_options(self) -> Rollback | None:
        """When this run goes back; a run of several ranks never does."""
        return self._plan.guard.rollback if self.ranks.alone else None

    def _skips(self, step: int) -> bool:
        return self._plan.guard.rollback is not None and self._rollback.skipped(step)

    def _carried(self) -> Mapping[str, Any]:
        fresh = self._plan.guard.rollback is None and self._rollback == RollbackState()
        return {} if fresh else self._rollback.plain()

    def _way_back(self) -> GoBack:
        """Decide where to go back to.

        Raises:
            Diverged: nowhere; the message says what was tried.
        """
        there = self.checkpoints.checkpoints.steps()  # the save in flight is among them
        self.checkpoints.tell(self.recording)
        self.recording.flush()
        diverged = self._diverged(self._poisoned())
        trouble = self.recording.trouble
        options = self._rollback_options
        if options is None or trouble is None:
            raise diverged
        self._rollback = self._rollback.joined(trouble, options)
        answer = answer_to(trouble, self._rollback, options, there, total=self._total)
        if isinstance(answer, Diverged):
            message = f"{diverged}. {answer}"
            raise Diverged(message, diverged.step)
        return answer

    def _diverged(self, poisoned: Sequence[str]) -> Diverged:
        """Return the error of this divergence, with what is not finite now."""
        found = self.recording.divergence(self.checkpoints.how_to_resume)
        return Diverged(f"{found}" + (f". Not finite: {'; '.join(poisoned)}" if poisoned else ""), found.step)

    def _poisoned(self) -> list[str]:
        watched = self.tracked.watched
        return name_poisoned(watched.owners(), watched.optimizers())

    def _go_back(self, back: GoBack) -> None:
        """Restore the first of the named checkpoints that can be read, and begin anew from there."""
        trouble = self.recording.trouble
        if trouble is None:
            raise RuntimeError("a run goes back only after a divergence, and the record holds none")
        poisoned = self._poisoned()  # before they are restored
        restored = self._restored(back, self._diverged(poisoned))
        forget_steps()
        self._rollback = self._rollback.gone_back(trouble, back, restored.step, poisoned)
        self._start = restored.step
        self._mark = restored.note
        self._with_room(self._rewind)
        self._tell_rollbacks()
        self.save()

    def _restored(self, back: GoBack, diverged: Diverged) -> Restored:
        """Restore a checkpoint; it is saved anew afterwards, with what was decided and with the same metrics."""
        reasons: list[str] = []
        for step in back.to:
            try:
                metrics = self.checkpoints.checkpoints.find(step).metrics
                restored = self.checkpoints.restore(self.recording, step=step)
            except CheckpointError as error:
                reasons.append(str(error))
                continue
            if restored is not None:
                self.checkpoints.after_step(metrics)
                return restored
        there = self.checkpoints.checkpoints.steps()
        message = f"{diverged}. {no_way_back(there, self._rollback, reasons)}"
        raise Diverged(message, diverged.step)

    def _tell_rollbacks(self) -> None:
        """Record this return, and every earlier one whose event was lost by going back further."""
        known = {event.get("number") for event in self.recording.history.events(EVENT)}
        for event in self._rollback.told:
            if event["number"] not in known:
                self.recording.event(EVENT, max(event["to"] - 1, 0), seconds=self.log.seconds, **event)

    def _say_not_kept(self, subject: str, reason: str) -> None:
        """Record what no checkpoint holds, and say so in the terminal: hours later it is too late."""
        if self.ranks.is_first:
            step = max(self.log.step_index, self._start)
            self.recording.event("not_kept", step, seconds=self.log.seconds, subject=subject, reason=reason)
            sys.stderr.write(f"fieldwatch: {reason}\n")
            sys.stderr.flush()

    def _with_room(self, work: Callable[..., None], *arguments: Any) -> None:
        what = f"the run in {self._plan.folder}"
        through_full_disk(partial(work, *arguments), what=what, stop=self.stop_point, alive=self.watchdog.alive)

    def _note_end(self, error: BaseException | None) -> None:
        note = partial(note_end, self._plan.folder, self._manifest, end_state(error))
        write = partial(self.recording.waiting.run_required, note)
        if error is None:
            self._with_room(write)
            return
        try:
            write()
        except OSError as late:  # the error on its way tells more
            error.add_note(f"run.json could not be written and still says that the run is running: {late}")
