"""One of the compared runs, either from fieldwatch or from TensorBoard."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fieldwatch.record import Better, Series

Kind = Literal["fieldwatch", "tensorboard"]


def _empty() -> dict[str, Any]:
    # Typed: `dict` as a default factory would have unknown types.
    return {}


@dataclass(frozen=True, kw_only=True)
class RunPhase:
    """A named part of a run.

    Attributes:
        name: declared name.
        first: first step.
        last: last step; None if the phase has no declared end.
    """

    name: str
    first: int
    last: int | None


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the compared runs.

    Attributes:
        name: short name, unique within the comparison.
        folder: run folder, or folder or file of TensorBoard events.
        kind: format of the record; `"tensorboard"` has neither state nor phases nor findings.
        series: recorded series by metric.
        pipeline: fieldwatch pipeline; empty for a custom loop.
        state: state of the run; empty if unknown.
        config: flat config by dotted key; None if unknown.
        environment: versions, git state, host, device and command; empty if unknown.
        phases: phases in order.
        verdict: title of the verdict in the run's report; empty if unknown.
        findings: merged findings as in the run's report, most severe first.
        declared: better direction of each metric that the run declared.
        notes: remarks on the record for the reader.
        group: given folder in which the run was found.
    """

    name: str
    folder: Path
    kind: Kind
    series: Mapping[str, Series]
    pipeline: str = ""
    state: str = ""
    config: Mapping[str, Any] | None = None
    environment: Mapping[str, Any] = field(default_factory=_empty)
    phases: tuple[RunPhase, ...] = ()
    verdict: str = ""
    findings: tuple[Mapping[str, Any], ...] = ()
    declared: Mapping[str, Better] = field(default_factory=_empty)
    notes: tuple[str, ...] = ()
    group: str = ""

    @property
    def seconds(self) -> float:
        """Seconds of training up to the last value; 0 for a run without one."""
        return max((float(series.seconds[-1]) for series in self.series.values()), default=0.0)

    @property
    def first(self) -> int | None:
        """First step with a value."""
        return min((int(series.steps[0]) for series in self.series.values()), default=None)

    @property
    def last(self) -> int | None:
        """Last step with a value."""
        return max((int(series.steps[-1]) for series in self.series.values()), default=None)

    @property
    def rows(self) -> int:
        """Number of values of the longest series."""
        return max((len(series) for series in self.series.values()), default=0)
