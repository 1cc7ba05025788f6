"""The part of a run's record that a watcher keeps: a summary of all rows, the latest rows in full, and the events."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from fieldwatch.health import Finding
from fieldwatch.monitor.watch.envelopes import Envelopes
from fieldwatch.record import Block, History, RecordUpdate
from fieldwatch.record.event_words import FOR_RULES, SHOWN_ELSEWHERE, event_text, event_title

RECENT: Final = 1024
"""Number of values kept in full per metric, for speed, time per span and the forecast."""
SPEED_STEPS: Final = 64
"""Number of steps over which the current speed is measured."""
# Maximum numbers of findings, events and characters of an event's text that are kept.
_FINDINGS = 64
_EVENTS = 32
_TEXT = 300
QUIET_KINDS: Final = (
    SHOWN_ELSEWHERE | FOR_RULES | {"finding", "checkpoint", "preflight", "mirrored", "growth", "evaluation", "segment"}
)
"""Kinds of events that have a separate section in the view, or that are too frequent to be listed."""


@final
class WatchedRecord:
    """Processes updates of a record; its size does not depend on the length of the run.

    Attributes:
        envelopes: summary of all rows.
        history: latest rows, and the events that forecasts need.
        findings: latest findings.
        counts: number of findings per severity in the whole run.
        events: latest other notable events.
        checkpoint: last ``checkpoint`` event.
        failures: number of failed saves.
        planned: number of planned steps; None if unknown.
    """

    def __init__(self) -> None:
        self.envelopes = Envelopes()
        self.history = History(RECENT)
        self._forget_events()
        # One more than the number of intervals.
        self._recent_times: deque[tuple[int, float]] = deque(maxlen=SPEED_STEPS + 1)
        self._began: tuple[int, float] | None = None

    def _forget_events(self) -> None:
        self.findings: deque[Finding] = deque(maxlen=_FINDINGS)
        self.counts: Counter[str] = Counter()
        self.events: deque[tuple[int, str, str]] = deque(maxlen=_EVENTS)
        self.checkpoint: Mapping[str, Any] | None = None
        self.failures = 0
        self.planned: int | None = None

    def update(self, update: RecordUpdate) -> None:
        """Process an update of the record."""
        # The record was replaced: everything so far belongs to a run that is gone.
        if update.replaced:
            self.__init__()
        update.apply_to(self.history)
        if update.rows_from is not None:
            names = self.history.names()
            last = {name: (int(self.history[name].steps[-1]), float(self.history[name].values[-1])) for name in names}
            self.envelopes.discard(update.rows_from, last)
            self._recent_times.clear()
            # Speeds across the discarded steps would be wrong.
            self._began = None
        if update.events_from is not None:
            self._go_back(update.events_from, update.events)
        for block in update.blocks:
            self.envelopes.extend(block)
            self._update_speed(block)
        for event in update.events:
            self._event(event)

    @property
    def seconds(self) -> float:
        """Training time at the last row, in seconds."""
        return self._recent_times[-1][1] if self._recent_times else 0.0

    @property
    def speed(self) -> float | None:
        """Steps per second over the last steps; None before the second step."""
        return _speed(self._recent_times[0], self._recent_times[-1]) if self._recent_times else None

    @property
    def mean_speed(self) -> float | None:
        """Steps per second since the run, or this part of it, began; None before the second step."""
        return _speed(self._began, self._recent_times[-1]) if self._recent_times and self._began else None

    def _update_speed(self, block: Block) -> None:
        # Rows of epochs and evaluations are not recorded at every step.
        if block.axis != "step":
            return
        if self._began is None:
            self._began = int(block.steps[0]), float(block.seconds[0])
        tail = slice(max(0, len(block) - SPEED_STEPS - 1), None)
        self._recent_times.extend(zip(block.steps[tail].tolist(), block.seconds[tail].tolist(), strict=True))

    def _event(self, event: Mapping[str, Any]) -> None:
        kind = str(event["kind"])
        step = int(event["step"])
        if kind == "finding":
            self._finding(event)
        elif kind == "checkpoint":
            self.checkpoint = event
        elif kind == "plan":
            self.planned = event["steps"] if isinstance(event.get("steps"), int) else None
        elif kind == "checkpoint_failed":
            self.failures += 1
        if kind not in QUIET_KINDS:
            self.events.append((step, event_title(kind), event_text(event, _TEXT)))

    def _finding(self, event: Mapping[str, Any]) -> None:
        try:
            finding = Finding.from_json(event)
        # The event was written by another program; damage of the record is checked elsewhere.
        except (ValueError, TypeError):
            return
        self.findings.append(finding)
        self.counts[finding.severity] += 1

    def _go_back(self, step: int, new: Sequence[Mapping[str, Any]]) -> None:
        """Discard the events from a step on; the new events, which the history already contains, follow separately."""
        earlier = [event for event in self.events if event[0] < step]
        # Compared by identity, because two equal events may both be valid.
        fresh = set(map(id, new))
        known = (*self.history.events("finding"), *self.history.events("checkpoint"))
        events = [event for event in known if id(event) not in fresh]
        planned = self.planned
        self._forget_events()
        self.planned = planned
        for event in sorted(events, key=lambda event: event["step"]):
            self._event(event)
        self.events.extend(earlier)


def _speed(first: tuple[int, float], last: tuple[int, float]) -> float | None:
    steps = last[0] - first[0]
    seconds = last[1] - first[1]
    return steps / seconds if steps > 0 and seconds > 0 else None
