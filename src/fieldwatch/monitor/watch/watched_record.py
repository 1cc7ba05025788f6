"""What a watcher remembers of a run's record: the past condensed, the last part of it whole, and the events."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast, final

from fieldwatch.health import Finding
from fieldwatch.monitor.watch.envelopes import Envelopes
from fieldwatch.record import Block, History, RecordUpdate

RECENT: Final = 1024
"""Values kept whole per metric: speed, time per span and the forecast look at them."""
SPEED_STEPS: Final = 64
"""Steps over which the present speed is taken."""
_FINDINGS = 64
_EVENTS = 32
_TEXT = 300
QUIET_KINDS: Final = frozenset(
    ("plan", "windows", "phase", "finding", "checkpoint", "preflight", "mirrored", "growth", "evaluation", "segment")
)
"""Kinds of events that have a place of their own in the view, or come too often to be told."""


@final
class WatchedRecord:
    """Takes in what is new; what it holds stays the same size for as long as the run goes on.

    Attributes:
        envelopes: the whole past, condensed.
        history: the last part, and the events that forecasts need.
        findings: the last ones.
        counts: findings per severity, of all.
        events: the last other events worth telling.
        checkpoint: the last ``checkpoint`` event.
        failures: saves that failed.
        planned: steps planned; None where nobody said.
        axes: the axis of each set of columns is told by its rows alone; this is the last training time and step.
    """

    def __init__(self) -> None:
        self.envelopes = Envelopes()
        self.history = History(RECENT)
        self._forget_events()
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
        """Take in what is new."""
        if update.replaced:
            self.__init__()  # another record: everything told so far is of a run that is gone
        update.apply_to(self.history)
        if update.rows_from is not None:
            names = self.history.names()
            last = {name: (int(self.history[name].steps[-1]), float(self.history[name].values[-1])) for name in names}
            self.envelopes.discard(update.rows_from, last)
            self._recent_times.clear()
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
        """Training time at the last row."""
        return self._recent_times[-1][1] if self._recent_times else 0.0

    @property
    def speed(self) -> float | None:
        """Steps a second of the last ones; None before there are two."""
        return _speed(self._recent_times[0], self._recent_times[-1]) if self._recent_times else None

    @property
    def mean_speed(self) -> float | None:
        """Steps a second since the run, or this part of it, began; None before there are two."""
        return _speed(self._began, self._recent_times[-1]) if self._recent_times and self._began else None

    def _update_speed(self, block: Block) -> None:
        # Rows of epochs and evaluations come at other times than steps.
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
            self.events.append((step, kind, _event_text(event)))

    def _finding(self, event: Mapping[str, Any]) -> None:
        try:
            finding = Finding.from_json(event)
        except (ValueError, TypeError):  # written by something else: the record's own check is elsewhere
            return
        self.findings.append(finding)
        self.counts[finding.severity] += 1

    def _go_back(self, step: int, new: Sequence[Mapping[str, Any]]) -> None:
        """Forget what was void from a step on; the new events, which the history has already, are told afterwards."""
        earlier = [event for event in self.events if event[0] < step]
        # By identity: two equal events may both stand.
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


def _event_text(event: Mapping[str, Any]) -> str:
    """Return what an event says: its own message, else its facts."""
    for key in ("message", "reason", "why", "text"):
        if isinstance(event.get(key), str):
            return str(event[key])[:_TEXT]
    facts = {key: value for key, value in event.items() if key not in ("kind", "step", "seconds") and value != []}
    return ", ".join(f"{key} {_listed(value)}" for key, value in facts.items())[:_TEXT]


def _listed(value: object) -> str:
    return " + ".join(map(str, cast("list[object]", value))) if isinstance(value, list) else str(value)
