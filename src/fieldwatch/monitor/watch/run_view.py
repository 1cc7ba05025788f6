"""What is shown of a run at one moment; plain values, no drawing."""

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
    """One metric: where it stands, and its whole past condensed.

    Attributes:
        name: its tag.
        label: what it is called here: the term, the group, the span, or the tag.
        unit: its unit; empty for a pure number, or where it is not known.
        last: the last value; NaN and infinity mean just that.
        step: the step of that value.
        trend: ``[3, n]``: least, greatest, and 1 where a value was not finite, per stretch of steps.
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
        curve: its raw value.
        weight: its weight; None where it is not recorded.
        share: its part of the weighted total, over the last 64 steps of the phase; None where it is not known.
        active: whether it was recorded within these.
    """

    curve: MetricCurve
    weight: float | None
    share: float | None
    active: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunProgress:
    """How far a run is.

    Attributes:
        done: steps done.
        planned: steps planned; None where nobody said.
        eta: seconds to the end at the present speed; None where it is not known, or it ended.
        seconds: training time so far.
        now: steps a second, of the last ones; None before there are two.
        mean: steps a second, of this process's part of the run; None before there are two.
        phase: name of the phase; empty without one.
        phase_first: its first step.
        phase_last: its last step; None where it is open.
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
        """Part of the planned steps that is done, 0 to 1."""
        return None if not self.planned else min(1.0, self.done / self.planned)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Memory of a run, in MiB; None for what was not recorded.

    Attributes:
        device: whether it is a GPU's; else it is the process's main memory.
        allocated: held at the end of the last step.
        peak: the most within the last recorded step.
        reserved: taken from the device.
        capacity: what the process could have.
        trend: the peak's past.
        forecast: when it runs out, in a sentence; empty where nothing says it does.
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
        """The larger of peak and reserved, as part of the capacity."""
        known = [value for value in (self.peak, self.allocated, self.reserved) if value is not None]
        return max(known) / self.capacity if known and self.capacity else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LastCheckpoint:
    """The last checkpoint.

    Attributes:
        step: steps done when it was made.
        ago: seconds since.
        path: inside the run folder; empty where it is not known.
        metrics: what it was ranked by.
        count: how many lie in the folder.
        failures: how many saves failed so far.
    """

    step: int
    ago: float | None
    path: str
    metrics: dict[str, Any]
    count: int
    failures: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessUse:
    """The process that trains, as the system sees it from here.

    Attributes:
        cpu_percent: CPU time over wall time since the last look, 100 per core; None at the first.
        resident: main memory it holds, in MiB.
    """

    cpu_percent: float | None
    resident: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunView:
    """A run at one moment.

    Attributes:
        time: when.
        folder: the run folder.
        pipeline: what trains; "own loop" where no pipeline of ours does.
        state: how it stands.
        progress: how far it is.
        rows: rows recorded.
        age: seconds since the last row; None before the first.
        total: the loss.
        terms: its terms, the largest share first.
        gradient: norm of all gradients together.
        groups: norm per parameter group.
        refused: updates refused so far.
        qualities: what else the loop records: quality, samples, sizes; what matters first.
        memory: its memory.
        spans: time per span of a step, in ms, the longest first; ``Time/step`` before all others.
        machine: recorded readings of the machine.
        gpus: the GPUs as they are now, where there are any and the run is on this machine.
        process: its process, where it is on this machine.
        saved: the last checkpoint; None before the first.
        findings: what the rules found, in order.
        counts: findings per severity, of the whole run.
        events: other events worth telling, ``(step, kind, text)``, in order.
        trouble: why the record cannot be read to its end; empty if it can.
        reading: whether there is more of the record than was read so far.
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
        """Return everything as plain values; curves without their past, what is not finite by its name."""
        answer = cast("dict[str, Any]", _plain(self))
        answer["progress"]["share"] = self.progress.share
        answer["memory"]["share"] = self.memory.share
        answer["state"] |= {"ended": self.state.ended, "broken": self.state.broken}
        return answer


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        fields = (field.name for field in dataclasses.fields(value))
        return {
            # The past of a curve is for drawing; in JSON it would be most of the bytes.
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
