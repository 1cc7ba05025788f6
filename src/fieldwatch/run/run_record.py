"""The record of a run while it is made: everything that reads its rows, in order, on the writer thread."""

import threading
from collections.abc import Callable, Mapping, Sequence
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
    Sink,
    WriterThread,
    derive_block,
    read_events,
    read_history,
    refuse_reserved_keys,
    same_damage,
)
from fieldwatch.record.disk import Reserve, WriteBacklog
from fieldwatch.record.sinks import HistogramSink, ImageSink
from fieldwatch.run.full_disk import FullDiskReporter
from fieldwatch.run.pictures import encode_png
from fieldwatch.run.record_status import PendingStatus, RecordStatus
from fieldwatch.run.sink_group import SinkGroup

Mark = Mapping[str, Any]
HISTORY = 4096
"""Values per metric that the rules of a live run may look back on."""


MEMORY_RULES = (OutOfMemoryAhead.__name__, MemoryLeak.__name__)
"""Rules whose findings deserve a snapshot of the allocator, where its history is recorded."""


class RunRecord:
    """Journal, events, sinks, history and rules of one run, fed by one thread.

    Args:
        folder: the run folder.
        sinks: where rows go besides the journal.
        rules: what looks at the history at every 64th step.
        metrics: the declared metrics; None lets any name through.
        max_refusals: this many refused updates in a row mean divergence.

    Attributes:
        damage: a sentence about each damaged file that was met at the start of a segment, and not told before.
        carried: what else a checkpoint's mark takes along, as plain values; replaced, never changed.
        waiting: where writes wait that a full disk refuses.

    Raises:
        DiskFullError: there is no room for what a run reserves.
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
        self._writer = WriterThread([self._process], self._poll_disk)
        self._recorder = StepRecorder(self._writer)

    def begin(self, step: int, mark: Mark | None, rollback: Rollback | None = None) -> float:
        """Start a segment at ``step``: forget what was recorded from there on, in the journal and in every sink.

        Args:
            step: the first step of this segment.
            mark: what :meth:`mark` returned when the checkpoint of that step was made; None at a fresh start.
            rollback: what means divergence besides refusals; None for nothing.

        Returns:
            The training seconds recorded so far.

        Raises:
            DiskFullError: the disk is full; it may be called again when there is room.
        """
        self.waiting.flush()
        self._sinks.rewind(mark)
        # A new journal needs no mark of a segment: there is nothing before it to void.
        if step > 0 or (self.folder / JOURNAL).stat().st_size > 0:
            self._journal.segment(step)
            self._events.segment(step)
        self.waiting.flush()  # what is read now has to be there
        damage = DamageTally()
        self.history = read_history(self.folder, HISTORY, damage)
        self._note_lost_end(step, mark, damage)
        self._tell_damage(damage, step)
        self.findings = list(findings_in(self.history.events("finding")))
        self._requests.clear()
        self.growth_cap = None
        self._examiner = Examiner(self._rules)
        # What was found before the resume is not reported a second time.
        self._examiner.mark_reported(self.findings)
        for finding in self.findings:
            self._limit_growth(finding)
        self.refusals.restart(len(self.history.events("refusal")))
        self._spikes = None if rollback is None else Spikes(rollback, (mark or {}).get("spikes"))
        return float((mark or {}).get("seconds", 0.0))

    def _note_lost_end(self, step: int, mark: Mark | None, damage: DamageTally) -> None:
        """Note rows that were on the disk when the checkpoint was made, and are missing at the journal's end.

        They cannot be expected where the checkpoint is another folder's.
        """
        # Every step has a row, so that the last row of a whole journal is that of the step before.
        lost = step - 1 - self.history.step
        if mark is not None and lost > 0 and not mark.get("elsewhere"):
            damage.add_file(
                self.folder / JOURNAL, f"ends before step {self.history.step + 1}, the run goes on at {step}"
            )
            damage.lost(self.folder / JOURNAL, lost)

    def _tell_damage(self, damage: DamageTally, step: int) -> None:
        """Record what is damaged, unless the record says so already."""
        known = [*read_events(self.folder)]
        for event in damage.events(max(step - 1, 0)):
            if not any(same_damage(event, old) for old in known if old["kind"] == DAMAGED):
                self._append_event(event)
                self.damage.append(str(event["message"]))

    def event(self, kind: str, step: int, **facts: Any) -> None:
        """Record that something happened, in order with the rows.

        Raises:
            ValueError: it has a key that the file of events uses itself.
        """
        refuse_reserved_keys(kind, facts)
        self._recorder.hand_over()
        # Submitted behind the rows so far: every reader gets rows and events in one order.
        self._writer.submit(lambda: self._append_event({"kind": kind, "step": step, **facts}))

    def write(self, heading: Heading, device_values: Mapping[str, Tensor], host_values: Mapping[str, float]) -> None:
        """Record one row; tensors stay on their device until their block is due."""
        self._recorder.write(heading, device_values, host_values)

    def show(self, capability: type, method: str, *arguments: Any) -> None:
        """Give an image, histogram, text, config or layout to every sink that can show it."""
        self._recorder.hand_over()
        if self._sinks.any_supports(capability):
            self._writer.submit(lambda: self._sinks.show(capability, method, *arguments))

    def image(self, name: str, pixels: NDArray[np.uint8], position: int) -> None:
        """Show an image (``[height, width, 3]`` uint8) in every sink that can."""
        height, width = pixels.shape[:2]
        self.show(ImageSink, "image", name, position, encode_png(pixels), width, height)

    def histogram(self, name: str, values: Float[Tensor, "..."] | NDArray[Any], position: int) -> None:
        """Show the distribution of some values in every sink that can."""
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        self.show(HistogramSink, "histogram", name, position, array)

    @property
    def failure(self) -> BaseException | None:
        """What stopped the writer, if anything did."""
        return self._writer.failure

    @property
    def unsafe_to_save(self) -> bool:
        """Whether the last row that was read shows a refused update or a high loss: a state that is not to be saved."""
        return self.refusals.ongoing or (self._spikes is not None and self._spikes.ongoing)

    @property
    def divergence(self) -> TrainingDivergence | None:
        """Why the run has diverged, of two reasons the one that was seen first; None while it has not."""
        divergences = [] if self._spikes is None or self._spikes.divergence is None else [self._spikes.divergence]
        streak = self.refusals.diverged
        if streak is not None:
            # A streak is noticed at its last row, and the batches of all its steps are suspected.
            last = streak.first + streak.length - 1
            cause = f"{streak.length} updates in a row were refused from step {streak.first} on, because of "
            divergences.append(TrainingDivergence(streak.first, last, last, cause + streak.culprit))
        return min(divergences, key=lambda divergence: divergence.noticed_at, default=None)

    def raise_if_diverged(self, how_to_resume: Callable[[], str]) -> None:
        """Stop a run that has diverged.

        Raises:
            Diverged: names the first bad step, the culprit, and how to resume.
        """
        if self.divergence is not None:
            raise self.divergence_error(how_to_resume)

    def divergence_error(self, how_to_resume: Callable[[], str]) -> Diverged:
        """Return the error of a run that has diverged; on a rank that saw nothing of it, one that says so."""
        divergence = self.divergence
        if divergence is None:
            return Diverged("another rank has seen that the run diverged", max(self.history.step, 0))
        return Diverged(
            f"{divergence.cause}; the state from before step {divergence.first} is the last that nothing speaks "
            f"against. {how_to_resume()}",
            divergence.first,
        )

    def take_request(self, action: str) -> bool:
        """Return whether a rule has requested an action since the last call, and clear the request."""
        requested = action in self._requests
        self._requests.discard(action)
        return requested

    def mark(self, seconds: float) -> Mark:
        """Everything so far on disk, and where each sink stands: kept in the checkpoint, used to rewind to it."""
        self.flush(fsync=True)
        return self._mark(seconds)

    def request_status(self, seconds: float) -> PendingStatus:
        """Return what :meth:`mark` would return now, once it is known; nothing is synced, see :meth:`sync`."""
        self._recorder.hand_over()
        # The request stands in the queue behind the rows up to this step, and before all later ones.
        pending = PendingStatus(lambda: self._status(seconds), lambda: self._writer.failure is not None)
        self._writer.submit(pending.resolve)
        return pending

    def sync(self) -> None:
        """Return when all rows and events that were read are on the disk; on any thread.

        Raises:
            OSError: they are not; a :class:`DiskFullError` where something waits for room.
        """
        self.waiting.flush()
        self._journal.flush(fsync=True)
        self._events.flush(fsync=True)

    def flush(self, *, fsync: bool = False) -> None:
        """Wait until every row so far is read, and pass it on to the system (with ``fsync``, to the disk)."""
        self._recorder.drain()
        if fsync:
            self.sync()
        self._sinks.flush()

    def _status(self, seconds: float) -> RecordStatus:
        self._sinks.flush()
        return RecordStatus(mark=self._mark(seconds), safe_to_save=not self.unsafe_to_save and self.divergence is None)

    def _mark(self, seconds: float) -> Mark:
        marks = self._sinks.mark()
        watched = {} if self._spikes is None else {"spikes": self._spikes.state()}
        return {"seconds": seconds, "sinks": marks, "carried": self.carried, **watched}

    def finish(self) -> None:
        """Examine the history once more, for what ended since the last examination."""
        self._recorder.drain()
        with self._lock:
            self._examine()

    def close(self) -> None:
        """End the thread and close every file; what waits for room until now is lost, and that is said."""
        # The thread ends first: it feeds everything that is closed below.
        self._writer.close()
        self._disk_reporter.close(max(self.history.step, 0))
        self._sinks.close()
        self._journal.close()
        self._events.close()

    def _poll_disk(self) -> float | None:
        """Look after what waits for room; on the writer's thread, between two blocks."""
        if self._disk_reporter.idle:
            return None
        with self._lock:
            return self._disk_reporter.poll(max(self.history.step, 0))

    def _process(self, block: Block) -> None:
        with self._lock:
            self._process_locked(block)

    def _process_locked(self, block: Block) -> None:
        self._refuse_undeclared(block)
        # Derived values go into the journal too, so that every later reader has them without computing.
        block = derive_block(block)
        # The journal is first: a sink or rule that fails must not cost a row.
        self._journal.append(block)
        self._sinks(block)
        self.refusals(block)
        if self._spikes is not None:
            self._spikes(block)
        # Rules run at fixed steps, not at the ends of blocks: a resumed run finds the same.
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
            # Several rules may ask for a cap; the smallest one counts.
            self.growth_cap = min(finding.limit, self.growth_cap or finding.limit)

    def _append_event(self, event: Mapping[str, Any]) -> None:
        with self._lock:
            self._events.append(event)
            self.history.add_event(event)
            if self._spikes is not None:
                self._spikes.event(event)
            self._sinks.event(event)

    def _report_event(self, kind: str, *, message: str, **facts: Any) -> None:
        self._disk_reporter.report(kind, max(self.history.step, 0), message=message, **facts)

    def _refuse_undeclared(self, block: Block) -> None:
        # Blocks repeat a few layouts: each set of names is checked once.
        if self._metrics is not None and block.columns not in self._checked_columns:
            for name in block.columns:
                self._metrics.require(name)
            self._checked_columns.add(block.columns)
