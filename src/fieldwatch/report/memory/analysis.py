"""Analysis of the memory of a run over all its snapshots."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fieldwatch.health import Finding
from fieldwatch.report.memory.findings import findings_of
from fieldwatch.report.memory.jumps import MOST, Jump, Link, find_jumps, link_all
from fieldwatch.report.memory.leak import LeakJudgment, judge_leak
from fieldwatch.report.memory.trace import Floats, MemoryHistory
from fieldwatch.report.memory.trend import Trend, Verdict, startup, trend_of, verdict_of

ROWS = 20
"""Number of rows of the timeline."""
_LEAST = {"MiB": 1.0, "%": 1.0, "": 1.0}
"""Change by unit over the whole run that is relevant, however small the quantity is."""
_LEAST_SHARE = 0.005
"""The same as a fraction of the quantity."""


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """One quantity from the first snapshot to the last.

    Attributes:
        name: name of the quantity.
        unit: ``"MiB"``, ``"%"`` or empty.
        start: value at the first snapshot.
        end: value at the last snapshot.
        lowest: minimum over all snapshots.
        mean: mean over all snapshots.
        highest: maximum over all snapshots.
        trend: slope after the start-up; None if there are too few snapshots.
        verdict: description of the trend in words.
    """

    name: str
    unit: str
    start: float
    end: float
    lowest: float
    mean: float
    highest: float
    trend: Trend | None
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """Analysis of one run's memory; sizes in MiB.

    Attributes:
        trace: analyzed memory history.
        startup: number of snapshots at the start that are excluded from slopes, jumps and the leak test.
        totals: allocated, reserved, fragmentation and tensors, as far as they are known.
        categories: memory by purpose, largest at the end first.
        components: memory by watched group or registered data, largest at the end first.
        dtypes: memory at the end by dtype in MiB, largest first.
        jumps: all sudden changes in order; at most :data:`MOST` of them are shown.
        links: association of the jumps with the run's events.
        leak: result of the leak test.
        timeline: row indices of about 20 evenly spaced snapshots, including the first and the last.
        findings: findings about the memory.
    """

    trace: MemoryHistory
    startup: int
    totals: tuple[Quantity, ...]
    categories: tuple[Quantity, ...]
    components: tuple[Quantity, ...]
    dtypes: Mapping[str, float]
    jumps: tuple[Jump, ...]
    links: tuple[Link, ...]
    leak: LeakJudgment
    timeline: tuple[int, ...]
    findings: tuple[Finding, ...]

    def total(self, name: str) -> Quantity | None:
        """Return one of the totals; None if it is not known."""
        return next((quantity for quantity in self.totals if quantity.name == name), None)

    def as_json(self) -> dict[str, Any]:
        """Return the analysis as plain JSON values, without the columns of the trace."""
        trace = self.trace
        return {
            "label": trace.label,
            "kind": trace.kind,
            "files": [str(path) for path in trace.files],
            "first": int(trace.steps[0]),
            "last": int(trace.steps[-1]),
            "began": trace.began,
            "ended": trace.ended,
            "snapshots": len(trace),
            "dropped": trace.dropped,
            "replaced": trace.replaced,
            "startup": self.startup,
            "totals": {quantity.name: _numbers(quantity) for quantity in self.totals},
            "categories": {quantity.name: _numbers(quantity) for quantity in self.categories},
            "components": {quantity.name: _numbers(quantity) for quantity in self.components},
            "dtypes": dict(self.dtypes),
            "account": {name: float(values[-1]) for name, values in trace.account.items()},
            "fragments": {name: float(values[-1]) for name, values in trace.fragments.items()},
            "large": {
                "count": _known(trace.large_counts[-1]),
                "threshold": trace.large_threshold,
                "largest": [asdict(tensor) for tensor in trace.largest],
            },
            "jumps": {"count": len(self.jumps), "largest": [asdict(jump) for jump in largest_jumps(self.jumps)]},
            "links": [asdict(link) for link in self.links],
            "leak": asdict(self.leak),
            "timeline": [self._row(row) for row in self.timeline],
            "findings": [finding.as_event() for finding in self.findings],
            "notes": list(trace.notes),
        }

    def _row(self, row: int) -> dict[str, Any]:
        trace = self.trace
        names = ("allocated", "reserved", "fragmentation", "tensors")
        return {"iteration": int(trace.steps[row])} | {name: _known(getattr(trace, name)[row]) for name in names}


def analyze(trace: MemoryHistory) -> Analysis:
    """Analyze the memory of a run; the trace must have at least one snapshot."""
    # The first steps allocate gradients, optimizer state and caches: growth that is neither a leak nor a trend.
    first = startup(trace.allocated, trace.categories.get("optimizer"))
    jumps = find_jumps(trace, first)
    leak = judge_leak(trace, first)
    totals = (
        ("allocated", "MiB", trace.allocated),
        ("reserved", "MiB", trace.reserved),
        ("fragmentation", "%", trace.fragmentation),
        ("tensors", "", trace.tensors),
    )
    return Analysis(
        trace=trace,
        startup=first,
        # A journal has no number of tensors, a CPU run no reserved memory.
        totals=tuple(_quantity(trace, *total, first) for total in totals if np.isfinite(total[2]).any()),
        categories=_quantities(trace, trace.categories, first),
        components=_quantities(trace, trace.components, first),
        dtypes={
            name: size
            for size, name in sorted(((float(sizes[-1]), name) for name, sizes in trace.dtypes.items()), reverse=True)
        },
        jumps=jumps,
        links=link_all(trace, jumps, first),
        leak=leak,
        timeline=tuple(np.unique(np.linspace(0, len(trace) - 1, min(ROWS, len(trace))).round().astype(int)).tolist()),
        findings=findings_of(trace, jumps, leak),
    )


def largest_jumps(jumps: tuple[Jump, ...]) -> tuple[Jump, ...]:
    """Return the largest jumps, in order of step."""
    chosen = sorted(jumps, key=lambda jump: -abs(jump.change))[:MOST]
    return tuple(sorted(chosen, key=lambda jump: jump.step))


def _quantities(trace: MemoryHistory, columns: Mapping[str, Floats], first: int) -> tuple[Quantity, ...]:
    quantities = [_quantity(trace, name, "MiB", values, first) for name, values in columns.items()]
    return tuple(sorted(quantities, key=lambda quantity: -quantity.end))


def _quantity(trace: MemoryHistory, name: str, unit: str, values: Floats, first: int) -> Quantity:
    known = np.flatnonzero(np.isfinite(values))
    if not len(known):  # a log whose numbers are all nan
        nan = float("nan")
        return Quantity(
            name=name, unit=unit, start=nan, end=nan, lowest=nan, mean=nan, highest=nan, trend=None, verdict="too short"
        )
    # Extremes and mean cover the whole run, the trend only what follows the start-up.
    later = known[known >= first]
    steps = trace.steps[later]
    settled = values[later]
    trend = trend_of(steps, settled)
    least = max(_LEAST[unit], _LEAST_SHARE * float(np.abs(np.median(values[known]))))
    return Quantity(
        name=name,
        unit=unit,
        start=float(values[0]),
        end=float(values[-1]),
        lowest=float(values[known].min()),
        mean=float(values[known].mean()),
        highest=float(values[known].max()),
        trend=trend,
        verdict=verdict_of(steps, settled, trend, least),
    )


def _numbers(quantity: Quantity) -> dict[str, Any]:
    numbers = asdict(quantity)
    del numbers["name"]
    return {key: _known(value) if isinstance(value, float) else value for key, value in numbers.items()}


def _known(value: float) -> float | None:
    # JSON has no NaN.
    return float(value) if np.isfinite(value) else None
