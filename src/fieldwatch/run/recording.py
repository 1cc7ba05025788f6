"""The record of a run while it is made: everything that reads its rows, in order, on the writer thread."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from fieldwatch.guard import Diverged, Refusals, Rollback, Spikes, Trouble
from fieldwatch.health import Examiner, Finding, MemoryLeak, OutOfMemoryAhead, Rule
from fieldwatch.measure import Heading, Recorder
from fieldwatch.record import (
    JOURNAL,
    Block,
    Catalogue,
    Closable,
    Events,
    Flushable,
    History,
    Journal,
    Rewindable,
    ShowsHistograms,
    ShowsImages,
    Sink,
    TakesEvents,
    Writer,
    derive_block,
    read_history,
)
from fieldwatch.run.pictures import encode_png
from fieldwatch.run.promised import Promised, Standing

Mark = Mapping[str, Any]
HISTORY = 4096
"""Values per metric that the rules of a live run may look back on."""


MEMORY_RULES = (OutOfMemoryAhead.__name__, MemoryLeak.__name__)
"""Rules whose findings deserve a snapshot of the allocator, where its history is recorded."""


class Recording:
    """Journal, events, sinks, history and rules of one run, fed by one thread.

    Args:
        folder: the run folder.
        sinks: where rows go besides the journal.
        rules: what looks at the history at every 64th step.
        metrics: the declared metrics; None lets any name through.
        max_refusals: this many refused updates in a row mean divergence.

    Attributes:
        carried: what else a checkpoint's mark takes along, as plain values.
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
        self.carried: dict[str, Any] = {}
        self._rules = tuple(rules)
        self.sinks = tuple(sinks)
        self.findings: list[Finding] = []
        self.growth_cap: float | None = None
        self._asked: set[str] = set()
        self._metrics = metrics
        self._declared: set[tuple[str, ...]] = set()
        self._examiner = Examiner(rules)
        self.refusals = Refusals(max_refusals, self._event)
        self._spikes: Spikes | None = None
        self.history = History(HISTORY)
        self._journal = Journal(folder)
        self._events = Events(folder)
        self._writer = Writer([self._read])
        self._recorder = Recorder(self._writer)

    def begin(self, step: int, mark: Mark | None, rollback: Rollback | None = None) -> float:
        """Start a segment at ``step``: forget what was recorded from there on, in the journal and in every sink.

        Args:
            step: the first step of this segment.
            mark: what :meth:`mark` returned when the checkpoint of that step was made; None at a fresh start.
            rollback: what means divergence besides refusals; None for nothing.

        Returns:
            The training seconds recorded so far.
        """
        marks = (mark or {}).get("sinks", {})
        for number, sink in enumerate(self.sinks):
            if isinstance(sink, Rewindable):
                sink.rewind(marks.get(_name(number, sink)))
        if step > 0 or (self.folder / JOURNAL).stat().st_size > 0:
            self._journal.segment(step)
            self._events.segment(step)
        self.history = read_history(self.folder, capacity=HISTORY)
        self.findings = [Finding.from_json(event) for event in self.history.events("finding")]
        self._asked.clear()
        self.growth_cap, self._examiner = None, Examiner(self._rules)
        self._examiner.recall(self.findings)
        for finding in self.findings:
            self._limit_growth(finding)
        self.refusals.restart(len(self.history.events("refusal")))
        self._spikes = None if rollback is None else Spikes(rollback, (mark or {}).get("spikes"))
        self.carried = self.carried or dict((mark or {}).get("carried", {}))
        return float((mark or {}).get("seconds", 0.0))

    def event(self, kind: str, step: int, **facts: Any) -> None:
        """Record that something happened, in order with the rows."""
        self._recorder.hand_over()
        self._writer.submit(lambda: self._event({"kind": kind, "step": step, **facts}))

    def write(self, heading: Heading, device_values: Mapping[str, Tensor], host_values: Mapping[str, float]) -> None:
        """Record one row; tensors stay on their device until their block is due."""
        self._recorder.write(heading, device_values, host_values)

    def show(self, capability: type, method: str, *arguments: Any) -> None:
        """Give an image, histogram, text, config or layout to every sink that can show it."""
        self._recorder.hand_over()
        able = [sink for sink in self.sinks if isinstance(sink, capability)]
        for sink in able:
            self._writer.submit(lambda sink=sink: getattr(sink, method)(*arguments))

    def image(self, name: str, pixels: NDArray[np.uint8], position: int) -> None:
        """Show an image (``[height, width, 3]`` uint8) in every sink that can."""
        height, width = pixels.shape[:2]
        self.show(ShowsImages, "image", name, position, encode_png(pixels), width, height)

    def histogram(self, name: str, values: Float[Tensor, "..."] | NDArray[Any], position: int) -> None:
        """Show the distribution of some values in every sink that can."""
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        self.show(ShowsHistograms, "histogram", name, position, array)

    @property
    def failure(self) -> BaseException | None:
        """What stopped the writer, if anything did."""
        return self._writer.failure

    @property
    def troubled(self) -> bool:
        """Whether the last row that was read tells of trouble: a state that is not to be saved."""
        return self.refusals.ongoing or (self._spikes is not None and self._spikes.ongoing)

    @property
    def trouble(self) -> Trouble | None:
        """Why the run has diverged, of two reasons the one that was seen first; None while it has not."""
        found = [] if self._spikes is None or self._spikes.trouble is None else [self._spikes.trouble]
        streak = self.refusals.diverged
        if streak is not None:
            last = streak.first + streak.length - 1
            cause = f"{streak.length} updates in a row were refused from step {streak.first} on, because of "
            found.append(Trouble(streak.first, last, last, cause + streak.culprit))
        return min(found, key=lambda one: one.seen, default=None)

    def raise_divergence(self, how_to_resume: Callable[[], str]) -> None:
        """Stop a run that has diverged.

        Raises:
            Diverged: names the first bad step, the culprit, and how to resume.
        """
        trouble = self.trouble
        if trouble is not None:
            raise Diverged(
                f"{trouble.cause}; the state from before step {trouble.first} is the last that nothing speaks against. "
                f"{how_to_resume()}",
                trouble.first,
            )

    def asked(self, action: str) -> bool:
        """Whether a rule has asked for this since the last time; asking takes the wish back."""
        wished = action in self._asked
        self._asked.discard(action)
        return wished

    def mark(self, seconds: float) -> Mark:
        """Everything so far on disk, and where each sink stands: kept in the checkpoint, used to rewind to it."""
        self.flush(fsync=True)
        return self._mark(seconds)

    def promise(self, seconds: float) -> Promised:
        """What :meth:`mark` would say now, without waiting for it; nothing is synced, see :meth:`sync`."""
        self._recorder.hand_over()
        promised = Promised(lambda: self._stand(seconds), lambda: self._writer.failure is not None)
        self._writer.submit(promised.keep)
        return promised

    def sync(self) -> None:
        """Return when all rows and events that were read are on the disk; on any thread."""
        self._journal.flush(fsync=True)
        self._events.flush(fsync=True)

    def flush(self, *, fsync: bool = False) -> None:
        """Wait until every row so far is read, and pass it on to the system (with ``fsync``, to the disk)."""
        self._recorder.drain()
        self._journal.flush(fsync=fsync)
        self._events.flush(fsync=fsync)
        for sink in self.sinks:
            if isinstance(sink, Flushable):
                sink.flush()

    def _stand(self, seconds: float) -> Standing:
        for sink in self.sinks:
            if isinstance(sink, Flushable):
                sink.flush()
        return Standing(mark=self._mark(seconds), sound=not self.troubled and self.trouble is None)

    def _mark(self, seconds: float) -> Mark:
        marks = {_name(n, sink): sink.mark() for n, sink in enumerate(self.sinks) if isinstance(sink, Rewindable)}
        watched = {} if self._spikes is None else {"spikes": self._spikes.state()}
        return {"seconds": seconds, "sinks": marks, "carried": deepcopy(self.carried), **watched}

    def finish(self) -> None:
        """Look at the history once more, for what ended between two looks."""
        self._recorder.drain()
        self._look()

    def close(self) -> None:
        """End the thread and close every file; safe while an exception is on its way."""
        self._writer.close()
        for sink in self.sinks:
            if isinstance(sink, Closable):
                sink.close()
        self._journal.close()
        self._events.close()

    def _read(self, block: Block) -> None:
        self._refuse_undeclared(block)
        block = derive_block(block)
        self._journal.append(block)
        for sink in self.sinks:
            sink(block)
        self.refusals(block)
        if self._spikes is not None:
            self._spikes(block)
        for part, boundary in self._examiner.parts(block):
            self.history.extend(part)
            if boundary:
                self._look()

    def _look(self) -> None:
        for finding in self._examiner.look(self.history):
            self.findings.append(finding)
            self._event(finding.as_event())
            self._asked.update(finding.actions)
            self._asked.update({"capture"} if finding.severity != "note" else set())
            self._asked.update({"snapshot"} if finding.rule in MEMORY_RULES else set())
            self._limit_growth(finding)

    def _limit_growth(self, finding: Finding) -> None:
        if "cap" in finding.actions and finding.limit is not None:
            self.growth_cap = min(finding.limit, self.growth_cap or finding.limit)

    def _event(self, event: Mapping[str, Any]) -> None:
        self._events.append(event)
        self.history.add_event(event)
        if self._spikes is not None:
            self._spikes.event(event)
        for sink in self.sinks:
            if isinstance(sink, TakesEvents):
                sink.event(event)

    def _refuse_undeclared(self, block: Block) -> None:
        if self._metrics is not None and block.columns not in self._declared:
            for name in block.columns:
                self._metrics.require(name)
            self._declared.add(block.columns)


def _name(number: int, sink: object) -> str:
    return f"{number}-{sink.__class__.__name__}"
