"""State of a run as shown in the live view, as plain values without rendering."""

import dataclasses
import math
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fieldwatch.health import Finding
from fieldwatch.monitor.readings import Gpu
from fieldwatch.monitor.run_state import RunState


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricCurve:
    """Last value and summarized history of one metric.

    Attributes:
        name: tag of the metric.
        label: label in the view: the term, group or span, or the tag.
        unit: unit; empty for pure numbers or if unknown.
        last: last value, which may be NaN or infinite.
        step: step of the last value.
        trend: ``[3, n]``: minimum, maximum, and 1 if a value was not finite, per bucket of steps.
    """

    name: str
    label: str
    unit: str = ""
    last: float
    step: int
    trend: NDArray[np.float64] = dataclasses.field(default_factory=lambda: np.empty((3, 0)), compare=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TermShare:
    """One loss term.

    Attributes:
        curve: unweighted value.
        weight: weight; None if not recorded.
        share: fraction of the weighted total over the last 64 steps of the phase; None if unknown.
        active: whether the term was recorded in these steps.
    """

    curve: MetricCurve
    weight: float | None
    share: float | None
    active: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunProgress:
    """Progress of a run.

    Attributes:
        done: number of finished steps.
        planned: number of planned steps; None if unknown.
        eta: seconds to the end at the current speed; None if unknown or ended.
        seconds: training time so far, in seconds.
        now: steps per second over the last steps; None before the second step.
        mean: steps per second over this process' part of the run; None before the second step.
        phase: name of the current phase; empty without one.
        phase_first: first step of the phase.
        phase_last: last step of the phase; None if open.
    """

    done: int = 0
    planned: int | None = None
    eta: float | None = None
    seconds: float = 0.0
    now: float | None = None
    mean: float | None = None
    phase: str = ""
    phase_first: int = 0
    phase_last: int | None = None

    @property
    def share(self) -> float | None:
        """Finished fraction of the planned steps, 0 to 1; None if unknown."""
        return None if not self.planned else min(1.0, self.done / self.planned)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Memory of a run in MiB; None for values that were not recorded.

    Attributes:
        device: whether this is memory of a GPU; otherwise main memory of the process.
        allocated: allocated memory at the end of the last step.
        peak: peak of allocated memory in the last recorded step.
        reserved: memory reserved from the device.
        capacity: memory that the process could have.
        trend: history of the peak.
        forecast: sentence about when memory runs out; empty if it is not predicted to.
    """

    device: bool = False
    allocated: float | None = None
    peak: float | None = None
    reserved: float | None = None
    capacity: float | None = None
    trend: MetricCurve | None = None
    forecast: str = ""

    @property
    def share(self) -> float | None:
        """Largest of peak, allocated and reserved memory, as a fraction of the capacity."""
        known = [value for value in (self.peak, self.allocated, self.reserved) if value is not None]
        return max(known) / self.capacity if known and self.capacity else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LastCheckpoint:
    """The last checkpoint of a run.

    Attributes:
        step: number of finished steps when it was saved.
        ago: age in seconds; None if unknown.
        path: path within the run folder; empty if unknown.
        metrics: metrics saved with it.
        count: number of checkpoints in the folder.
        failures: number of failed saves so far.
    """

    step: int
    ago: float | None
    path: str
    metrics: dict[str, Any]
    count: int
    failures: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessUse:
    """The training process.

    Attributes:
        cpu_percent: CPU time over wall time since the last refresh, 100 per core; None in the first one.
        resident: resident memory (RSS) in MiB.
    """

    cpu_percent: float | None
    resident: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunView:
    """State of a run at one moment.

    Attributes:
        time: time of the reading.
        folder: run folder.
        pipeline: name of the pipeline; "own loop" for a user's own training loop.
        state: state of the run.
        progress: progress of the run.
        rows: number of recorded rows.
        age: seconds since the last row; None before the first.
        total: total loss.
        terms: loss terms, the largest fraction first.
        gradient: total gradient norm.
        groups: gradient norm per parameter group.
        refused: number of refused updates so far.
        qualities: other recorded metrics (quality, samples, sizes), the most important first.
        memory: memory of the run.
        spans: time per span of a step in ms, the longest first, after ``Time/step``.
        machine: recorded metrics of the machine.
        gpus: current state of the GPUs, if the run is on this machine.
        process: training process, if it is on this machine.
        saved: last checkpoint; None before the first.
        findings: findings of the rules, in order.
        counts: number of findings per severity in the whole run.
        events: other notable events ``(step, kind, text)``, in order.
        trouble: reason why the record cannot be read completely; empty if it can.
        reading: whether the record has not been read completely yet.
    """

    time: datetime
    folder: Path
    pipeline: str
    state: RunState
    progress: RunProgress = RunProgress()
    rows: int = 0
    age: float | None = None
    total: MetricCurve | None = None
    terms: tuple[TermShare, ...] = ()
    gradient: MetricCurve | None = None
    groups: tuple[MetricCurve, ...] = ()
    refused: int = 0
    qualities: tuple[MetricCurve, ...] = ()
    memory: MemoryUse = MemoryUse()
    spans: tuple[MetricCurve, ...] = ()
    machine: tuple[MetricCurve, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    process: ProcessUse | None = None
    saved: LastCheckpoint | None = None
    findings: tuple[Finding, ...] = ()
    counts: dict[str, int] = dataclasses.field(default_factory=dict[str, int])
    events: tuple[tuple[int, str, str], ...] = ()
    trouble: str = ""
    reading: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values, without the history of curves; non-finite numbers become strings."""
        answer = cast("dict[str, Any]", _plain(self))
        answer["progress"]["share"] = self.progress.share
        answer["memory"]["share"] = self.memory.share
        answer["state"] |= {"ended": self.state.ended, "broken": self.state.broken}
        return answer


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        fields = (field.name for field in dataclasses.fields(value))
        return {
            # The history of a curve is only for the sparkline, and would dominate the size of the JSON.
            name: _plain(getattr(value, name))
            for name in fields
            if not (isinstance(value, MetricCurve) and name == "trend")
        }
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {str(key): _plain(item) for key, item in items}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value.isoformat() if isinstance(value, datetime) else str(value) if isinstance(value, Path) else value
