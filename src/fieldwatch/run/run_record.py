"""`RunRecord`: journal, events, sinks and rules of a run, fed in order by one writer thread."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from fieldwatch.guard import Diverged, Refusals, Rollback, Spikes, TrainingDivergence
from fieldwatch.health import Examiner, Finding, MemoryLeak, OutOfMemoryAhead, Rule, findings_in
from fieldwatch.measure import Heading, StepRecorder
from fieldwatch.record import (
    DAMAGED,
    JOURNAL,
    Block,
    Catalogue,
    DamageTally,
    EventLog,
    History,
    Journal,
    RunState,
    Sink,
    WriterFailed,
    WriterThread,
    derive_block,
    read_events,
    read_history,
    refuse_reserved_keys,
    same_damage,
)
from fieldwatch.record.disk import Reserve, WriteBacklog
from fieldwatch.record.sinks import HistogramSink, ImageSink, VerdictSink, verdict_facts
from fieldwatch.run.full_disk import FullDiskReporter
from fieldwatch.run.pending import PendingBlocks
from fieldwatch.run.pictures import encode_png
from fieldwatch.run.record_status import PendingStatus, RecordStatus
from fieldwatch.run.sink_group import SinkGroup

Mark = Mapping[str, Any]
HISTORY = 4096
"""Number of values per metric that the rules of a live run can access."""


MEMORY_RULES = (OutOfMemoryAhead.__name__, MemoryLeak.__name__)
"""Rules whose findings trigger an allocator snapshot, if the allocator history is recorded."""


class RunRecord:
    """Journal, events, sinks, history and rules of one run, fed by one thread.

    Args:
        folder: run folder.
        sinks: destinations of the rows besides the journal.
        rules: health rules, evaluated on the history every 64 steps; see :class:`~fieldwatch.health.Examiner`.
        metrics: catalogue of declared metrics; None allows any name.
        max_refusals: number of consecutive refused updates that count as divergence.

    Attributes:
        damage: messages about damaged files found at the start of a segment and not reported before.
        carried: further plain values to store in a checkpoint's mark; replaced as a whole, never mutated.
        findings: findings of the rules so far.
        growth_cap: upper limit for the size of the model, set by a memory rule; None while no rule has set one.
        refusals: detector of refused updates.
        history: recorded values and events that the rules read.
        waiting: backlog of writes that a full disk rejected.

    Raises:
        DiskFullError: there is too little space for the run's reserve.
    """

    def __init__(
        self,
        folder: Path,
        *,
        sinks: Sequence[Sink],
        rules: Sequence[Rule],
        metrics: Catalogue | None,
        max_refusals: int,
    ) -> None:
        self.folder = folder
        self.damage: list[str] = []
        self.carried: Mapping[str, Any] = {}
        self._rules = tuple(rules)
        self.findings: list[Finding] = []
        self.growth_cap: float | None = None
        self._requests: set[str] = set()
        self._metrics = metrics
        self._checked_columns: set[tuple[str, ...]] = set()
        self._examiner = Examiner(rules)
        self.refusals = Refusals(max_refusals, self._append_event)
        self._spikes: Spikes | None = None
        self.history = History(HISTORY)
        self.waiting = WriteBacklog(folder, Reserve(folder))
        # Reentrant: a finding made while a block is processed records its event under the same lock.
        self._lock = threading.RLock()
        self._disk_reporter = FullDiskReporter(folder, self.waiting, self._append_event)
        self._journal = Journal(folder)
        self._events = EventLog(folder)
        self._journal.defer_to(self.waiting, from_reserve=True)
        self._events.defer_to(self.waiting, from_reserve=True)
        self._sinks = SinkGroup(sinks, self.waiting, self._report_event)
        self._pending = PendingBlocks()
        self._writer = WriterThread([self._process], self._tend)
        self._recorder = StepRecorder(self._writer)

    def begin(self, step: int, mark: Mark | None, rollback: Rollback | None = None) -> float:
        """Start a segment at ``step``: drop all rows from there on, in the journal and in every sink.

        Args:
            step: first step of the segment.
            mark: return value of :meth:`mark` for the checkpoint of that step; None in a new run.
            rollback: thresholds for divergence; None detects divergence only by refusals.

        Returns:
            The training seconds recorded so far.

        Raises:
            DiskFullError: the disk is full; call it again once there is space.
        """
        # Rows and delayed writes of the previous segment have to be in the files before these are rewound.
        self._deliver()
        self.waiting.flush()
        self._sinks.rewind(mark)
        # An empty journal needs no segment marker, since there are no rows to drop.
        if step > 0 or (self.folder / JOURNAL).stat().st_size > 0:
            self._journal.segment(step)
            self._events.segment(step)
        # The history is read from the files, so they have to be complete.
        self.waiting.flush()
        damage = DamageTally()
        self.history = read_history(self.folder, HISTORY, damage)
        self._note_lost_end(step, mark, damage)
        self._report_damage(damage, step)
        self.findings = list(findings_in(self.history.events("finding")))
        self._requests.clear()
        self.growth_cap = None
        self._examiner = Examiner(self._rules)
        # Do not report findings from before the resume a second time.
        self._examiner.mark_reported(self.findings)
        for finding in self.findings:
            self._limit_growth(finding)
        self.refusals.restart(len(self.history.events("refusal")))
        self._spikes = None if rollback is None else Spikes(rollback, (mark or {}).get("spikes"))
        return float((mark or {}).get("seconds", 0.0))

    def _note_lost_end(self, step: int, mark: Mark | None, damage: DamageTally) -> None:
        """Report rows that were on disk when the checkpoint was made, but are missing at the end of the journal.

        A checkpoint that was fetched from another folder's mirror comes without rows.
        """
        # Every step has a row, so the last row of a complete journal is that of the previous step.
        lost = step - 1 - self.history.step
        if mark is not None and lost > 0 and not mark.get("elsewhere"):
            damage.add_file(
                self.folder / JOURNAL, f"ends before step {self.history.step + 1}, the run continues at step {step}"
            )
            damage.lost(self.folder / JOURNAL, lost)

    def _report_damage(self, damage: DamageTally, step: int) -> None:
        """Record damaged files, unless the same damage is already recorded."""
        # Damaged lines stay in their file, so every resume finds them again: report them only once.
        known = [*read_events(self.folder)]
        for event in damage.events(max(step - 1, 0)):
            if not any(same_damage(event, old) for old in known if old["kind"] == DAMAGED):
                self._append_event(event)
                self.damage.append(str(event["message"]))

    def event(self, kind: str, step: int, **facts: Any) -> None:
        """Record an event, in order with the rows.

        Raises:
            ValueError: a fact has a key that is reserved in the event file.
        """
        refuse_reserved_keys(kind, facts)
        self._recorder.hand_over()
        # Queued behind the rows so far, so that every reader gets rows and events in the same order.
        self._writer.submit(lambda: self._append_event_after_rows({"kind": kind, "step": step, **facts}))

    def write(self, heading: Heading, device_values: Mapping[str, Tensor], host_values: Mapping[str, float]) -> None:
        """Record one row; tensors stay on the device until their block is full."""
        self._recorder.write(heading, device_values, host_values)

    def show(self, capability: type, method: str, *arguments: Any) -> None:
        """Send an image, histogram, text, config or layout to every sink that supports it."""
        self._recorder.hand_over()
        if self._sinks.any_supports(capability):
            self._writer.submit(lambda: self._show_after_rows(capability, method, *arguments))

    def show_verdict(self, state: RunState) -> None:
        """Send the verdict on the run so far to every sink that supports it."""
        # A record that has stopped has no sinks to send it to, and the error that stopped it is reported already.
        if self.failure is None:
            self.show(VerdictSink, "verdict", verdict_facts(state, (finding.severity for finding in self.findings)))

    def image(self, name: str, pixels: NDArray[np.uint8], position: int) -> None:
        """Send an image (``[height, width, 3]`` uint8) to every sink that supports images."""
        height, width = pixels.shape[:2]
        self.show(ImageSink, "image", name, position, encode_png(pixels), width, height)

    def histogram(self, name: str, values: Float[Tensor, "..."] | NDArray[Any], position: int) -> None:
        """Send a histogram of values to every sink that supports it."""
        # Copy on the calling thread: the tensor may change before the writer thread reads it.
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        self.show(HistogramSink, "histogram", name, position, array)

    @property
    def failure(self) -> BaseException | None:
        """Exception that stopped the writer thread; None if it runs."""
        return self._writer.failure

    @property
    def unsafe_to_save(self) -> bool:
        """Whether the latest row has a refused update or a high loss, so that the state should not be saved."""
        return self.refusals.ongoing or (self._spikes is not None and self._spikes.ongoing)

    @property
    def divergence(self) -> TrainingDivergence | None:
        """Earliest divergence; None if the run has not diverged."""
        if self.refusals.diverged is None and (self._spikes is None or self._spikes.divergence is None):
            return None
        divergences = [] if self._spikes is None or self._spikes.divergence is None else [self._spikes.divergence]
        streak = self.refusals.diverged
        if streak is not None:
            # A streak is noticed at its last row, but the batches of all its steps are suspected.
            last = streak.first + streak.length - 1
            cause = f"{streak.length} updates in a row were refused from step {streak.first} on, not finite: "
            divergences.append(TrainingDivergence(streak.first, last, last, cause + streak.culprit))
        return min(divergences, key=lambda divergence: divergence.noticed_at, default=None)

    def raise_if_diverged(self, how_to_resume: Callable[[], str]) -> None:
        """Raise an error if the run has diverged.

        Raises:
            Diverged: the run has diverged; the message contains the first bad step, the cause, and how to resume.
        """
        if self.divergence is not None:
            raise self.divergence_error(how_to_resume)

    def divergence_error(self, how_to_resume: Callable[[], str]) -> Diverged:
        """Return the error of a diverged run; it refers to another rank if this one has not seen the divergence."""
        divergence = self.divergence
        if divergence is None:
            return Diverged("the run diverged on another rank", self._last_step)
        return Diverged(
            f"{divergence.cause}; the last state believed to be good is the one before step {divergence.first}. "
            f"{how_to_resume()}",
            divergence.first,
        )

    def take_request(self, action: str) -> bool:
        """Return whether a rule has requested an action since the last call, and clear the request."""
        requested = action in self._requests
        self._requests.discard(action)
        return requested

    def mark(self, seconds: float) -> Mark:
        """Sync everything to disk, and return the position of each sink, which a checkpoint stores for rewinding."""
        self.flush(fsync=True)
        return self._mark(seconds)

    def request_status(self, seconds: float) -> PendingStatus:
        """Return a future for the mark and safety of the current state; nothing is synced, see :meth:`sync`."""
        self._recorder.hand_over()
        # The request is queued behind the rows up to this step, and before all later ones.
        pending = PendingStatus(lambda: self._status(seconds), lambda: self._writer.failure is not None)
        self._writer.submit(pending.resolve)
        return pending

    def sync(self) -> None:
        """Sync all processed rows and events to disk. May be called on any thread.

        Raises:
            OSError: the data could not be written; a :class:`DiskFullError` if the disk is full.
        """
        self.waiting.flush()
        self._journal.flush(fsync=True)
        self._events.flush(fsync=True)

    def flush(self, *, fsync: bool = False) -> None:
        """Wait until every row so far is processed and passed to the operating system (with ``fsync``, to the disk)."""
        self._drain()
        if fsync:
            self.sync()
        self._sinks.flush()

    def _status(self, seconds: float) -> RecordStatus:
        self._deliver()
        self._sinks.flush()
        return RecordStatus(mark=self._mark(seconds), safe_to_save=not self.unsafe_to_save and self.divergence is None)

    def _mark(self, seconds: float) -> Mark:
        marks = self._sinks.mark()
        watched = {} if self._spikes is None else {"spikes": self._spikes.state()}
        return {"seconds": seconds, "sinks": marks, "carried": self.carried, **watched}

    def finish(self) -> None:
        """Evaluate the rules a last time, on the rows since the last evaluation."""
        self._drain()
        # After the drain the writer thread is idle, so the rules can run on this one.
        with self._lock:
            self._examine()

    def close(self) -> None:
        """Stop the writer thread and close every file; writes that still wait for space are lost, and reported."""
        # A record that has stopped because of its rows must not be given them again.
        with suppress(WriterFailed):
            self._writer.submit(self._deliver)
        # Stop the thread first, since it writes to everything that is closed below.
        self._writer.close()
        self._disk_reporter.close(self._last_step)
        self._sinks.close()
        self._journal.close()
        self._events.close()

    @property
    def _last_step(self) -> int:
        """Last step with a row; 0 before the first."""
        return max(self.history.step, self._pending.last_step, 0)

    def _tend(self) -> float | None:
        """Deliver rows that have waited, and retry delayed writes; runs on the writer thread, between two transfers.

        Returns:
            Seconds until the next call; None if nothing waits.
        """
        with self._lock:
            if self._pending.wait() == 0:
                self._deliver()
            waits = [self._pending.wait()]
            if not self._disk_reporter.idle:
                waits.append(self._disk_reporter.poll(self._last_step))
        return min((wait for wait in waits if wait is not None), default=None)

    def _process(self, blocks: Sequence[Block]) -> None:
        with self._lock:
            self._process_locked(blocks)

    def _process_locked(self, blocks: Sequence[Block]) -> None:
        declared = list(takewhile(self._is_declared, blocks))
        # The journal comes first: a failing sink or rule must not lose a row, nor a killed process.
        self._journal.extend(declared)
        self._pending.add(declared)
        # Divergence is noticed at once, and its end, for which saves wait. All else may wait, and takes less time for
        # many rows than for a few.
        if self._spikes is not None or self.refusals.ongoing or any(map(self.refusals.are_in, declared)):
            self._deliver()
        # Rows before an undeclared metric are recorded.
        if len(declared) < len(blocks):
            self._refuse_undeclared(blocks[len(declared)])

    def _deliver(self) -> None:
        """Pass all rows that wait to the sinks, the detectors of divergence, the history and the rules."""
        with self._lock:
            # After the journal, since its readers derive the same values again.
            blocks = [derive_block(block) for block in self._pending.take()]
            if blocks:
                self._sinks.extend(blocks)
            for block in blocks:
                self._watch(block)

    def _drain(self) -> None:
        """Wait until every row so far is in the history, has been examined, and has been passed to the sinks."""
        self._recorder.hand_over()
        self._writer.submit(self._deliver)
        self._recorder.drain()

    def _watch(self, block: Block) -> None:
        """Look for refusals, divergence and findings in a block."""
        self.refusals(block)
        if self._spikes is not None:
            self._spikes(block)
        # Not at the ends of blocks, whose length depends on the machine, so that a resumed run has the same findings.
        for part, boundary in self._examiner.split(block):
            self.history.extend(part)
            if boundary:
                self._examine()

    def _examine(self) -> None:
        for finding in self._examiner.examine(self.history):
            self.findings.append(finding)
            self._append_event(finding.as_event())
            self._requests.update(finding.actions)
            self._requests.update({"capture"} if finding.severity != "note" else set())
            self._requests.update({"snapshot"} if finding.rule in MEMORY_RULES else set())
            self._limit_growth(finding)

    def _limit_growth(self, finding: Finding) -> None:
        if "cap" in finding.actions and finding.limit is not None:
            # If several rules set a cap, the smallest one applies.
            self.growth_cap = min(finding.limit, self.growth_cap or finding.limit)

    def _show_after_rows(self, capability: type, method: str, *arguments: Any) -> None:
        self._deliver()
        self._sinks.show(capability, method, *arguments)

    def _append_event_after_rows(self, event: Mapping[str, Any]) -> None:
        self._deliver()
        self._append_event(event)

    def _append_event(self, event: Mapping[str, Any]) -> None:
        with self._lock:
            self._events.append(event)
            self.history.add_event(event)
            if self._spikes is not None:
                self._spikes.event(event)
            self._sinks.event(event)

    def _report_event(self, kind: str, *, message: str, **facts: Any) -> None:
        self._disk_reporter.report(kind, self._last_step, message=message, **facts)

    def _is_declared(self, block: Block) -> bool:
        """Return whether all metrics of a block are declared."""
        # Blocks repeat a few sets of columns: check each set only once.
        if self._metrics is None or block.columns in self._checked_columns:
            return True
        if not all(name in self._metrics for name in block.columns):
            return False
        self._checked_columns.add(block.columns)
        return True

    def _refuse_undeclared(self, block: Block) -> None:
        """Raise an error that names the undeclared metric of a block."""
        assert self._metrics is not None  # noqa: S101  nothing is undeclared without a catalogue
        for name in block.columns:
            self._metrics.require(name)
