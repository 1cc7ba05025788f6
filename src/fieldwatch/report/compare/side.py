"""One of the runs that are compared: what is known of it, wherever it comes from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fieldwatch.record import Better, Series

Kind = Literal["fieldwatch", "tensorboard"]


def _nothing() -> dict[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class RunPhase:
    """A named part of a run.

    Attributes:
        name: as declared.
        first: its first step.
        last: its last step; None for a phase that has no declared end.
    """

    name: str
    first: int
    last: int | None


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the runs that are compared.

    Attributes:
        name: short, and unique among the runs of a comparison.
        folder: where it is.
        kind: whose record it is; a `"tensorboard"` one knows neither state nor phases nor findings.
        series: per metric what was recorded.
        pipeline: which of ours trained it; empty for a loop of somebody's own.
        state: how it stands or ended; empty where nobody says so.
        config: flat, by dotted key; None where nobody says what it was.
        environment: versions, git, host, device, command; empty where unknown.
        phases: in order.
        verdict: one line of how it went, as its own report begins; empty where nobody says so.
        findings: as its own report lists them, the worst first, repeated ones joined.
        declared: which way is good, per metric that it declared.
        notes: what a reader should know about its record.
        group: the folder that the caller named for it, where several runs lie in one.
    """

    name: str
    folder: Path
    kind: Kind
    series: Mapping[str, Series]
    pipeline: str = ""
    state: str = ""
    config: Mapping[str, Any] | None = None
    environment: Mapping[str, Any] = field(default_factory=_nothing)
    phases: tuple[RunPhase, ...] = ()
    verdict: str = ""
    findings: tuple[Mapping[str, Any], ...] = ()
    declared: Mapping[str, Better] = field(default_factory=_nothing)
    notes: tuple[str, ...] = ()
    group: str = ""

    @property
    def seconds(self) -> float:
        """Seconds of training up to the last value; 0 for a run without one."""
        return max((float(series.seconds[-1]) for series in self.series.values()), default=0.0)

    @property
    def first(self) -> int | None:
        """The first step with a value."""
        return min((int(series.steps[0]) for series in self.series.values()), default=None)

    @property
    def last(self) -> int | None:
        """The last step with a value."""
        return max((int(series.steps[-1]) for series in self.series.values()), default=None)

    @property
    def rows(self) -> int:
        """Steps with a value: of the metric that has most."""
        return max((len(series) for series in self.series.values()), default=0)
