"""`RunLog`: values and events that a run records between its steps, and the training time."""

import time
from collections.abc import Mapping
from typing import Any

from fieldwatch.measure import Heading
from fieldwatch.record import Axis
from fieldwatch.run.run_record import RunRecord


class RunLog:
    """Writes values and events at the current step and training time.

    Args:
        record: record of the run.

    Attributes:
        step_index: index of the latest step; -1 before the first.
    """

    def __init__(self, record: RunRecord) -> None:
        self.step_index = -1
        self._record = record
        self._began = time.monotonic()
        self._seconds_before = 0.0

    @property
    def seconds(self) -> float:
        """Training time so far in seconds, over all segments."""
        return self._seconds_before + time.monotonic() - self._began

    def count_from(self, seconds: float) -> None:
        """Restart the clock at the training time of earlier segments."""
        self._began = time.monotonic()
        self._seconds_before = seconds

    def record(self, values: Mapping[str, float], *, axis: Axis = "step", position: int | None = None) -> None:
        """Record values outside of a step's row."""
        # Values recorded before the first step belong to step 0.
        step = max(self.step_index, 0)
        heading = Heading(axis, step, step if position is None else position, self.seconds)
        self._record.write(heading, {}, values)

    def event(self, kind: str, **facts: Any) -> None:
        """Record an event at the current step."""
        self._record.event(kind, max(self.step_index, 0), seconds=self.seconds, **facts)
