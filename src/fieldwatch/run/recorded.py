"""What a run writes of itself, and what it can be asked: rows, events, seconds, findings."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fieldwatch.health import Finding, worst
from fieldwatch.measure import Clock, Heading
from fieldwatch.record import Axis
from fieldwatch.run.recording import Recording

if TYPE_CHECKING:
    from fieldwatch.run.memory import RunMemory
    from fieldwatch.run.step import Step


class Recorded:
    """A run's own words. :class:`Run` puts them in order.

    Attributes:
        clock: measures spans.
        memory: measures memory.
        recording: the record; there once the run is entered.
        step_index: the last step that was given out; -1 before the first.
    """

    clock: Clock
    memory: "RunMemory"
    recording: Recording

    def __init__(self) -> None:
        self.step_index = -1
        self._open: tuple[Step, float] | None = None
        self._began, self._seconds_before = time.monotonic(), 0.0

    def record(self, values: Mapping[str, float], *, axis: Axis = "step", position: int | None = None) -> None:
        """Record values outside a step, e.g. of an evaluation after the loop.

        Args:
            values: metric name to number.
            axis: what ``position`` counts.
            position: where they stand on that axis; the last step if left out.
        """
        step = max(self.step_index, 0)
        self.recording.write(Heading(axis, step, step if position is None else position, self.seconds()), {}, values)

    def event(self, kind: str, **facts: Any) -> None:
        """Record that something happened at the current step."""
        self.recording.event(kind, max(self.step_index, 0), seconds=self.seconds(), **facts)

    def seconds(self) -> float:
        """Training time so far, over all segments."""
        return self._seconds_before + time.monotonic() - self._began

    @property
    def findings(self) -> Sequence[Finding]:
        """What the rules found so far."""
        return self.recording.findings

    @property
    def exit_code(self) -> int:
        """0 when nothing worse than a note was found, else 1."""
        return 0 if worst(self.recording.findings) in (None, "note") else 1

    def open_step(self) -> "Step | None":
        """The step that was given out and has not ended yet."""
        return self._open[0] if self._open else None

    def _count_from(self, seconds: float) -> None:
        """Begin to count seconds, from those of earlier segments on."""
        self._began, self._seconds_before = time.monotonic(), seconds

    def _open_step(self, step: "Step") -> None:
        self._open = (step, time.perf_counter())
        self.memory.begin(step.index)

    def _close_step(self) -> None:
        if self._open is None:
            return
        (step, began), self._open, closing = self._open, None, time.perf_counter()
        values = step.host_values | self.clock.take() | self.memory.end(step.index)
        values["Time/step"] = (time.perf_counter() - began) * 1e3
        heading = Heading("step", step.index, step.index, self.seconds(), step.samples)
        self.recording.write(heading, step.device_values, values)
        self.clock.add("recording", (time.perf_counter() - closing) * 1e3)  # it stands in the next step's row
