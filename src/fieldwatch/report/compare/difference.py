"""First step at which two runs differ: compares every shared metric row by row, bitwise."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwatch.report.compare.align import axis_of
from fieldwatch.report.compare.quality import meaning_of
from fieldwatch.report.compare.side import Side

Floats = NDArray[np.float64]
MOST_TOLD = 12


@dataclass(frozen=True, kw_only=True)
class MetricDifference:
    """One metric at the first step at which it differs.

    Attributes:
        metric: name of the metric.
        step: first step at which it differs.
        values: values of the first and the second run; NaN for a run without a row.
        missing: name of the run without a row; empty if both have one.
        relative: absolute difference divided by the larger magnitude; NaN if that is not finite.
    """

    metric: str
    step: int
    values: tuple[float, float]
    missing: str
    relative: float


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """Result of comparing two runs row by row.

    Attributes:
        runs: names of both runs.
        compared: names of the compared metrics.
        left_out: shared metrics of clocks and machines, which are not compared.
        as_float32: whether values were compared as float32, which TensorBoard stores.
        equal_rows: number of steps from the start at which all compared metrics are bitwise equal.
        equal_to: last of these steps; -1 if there is none.
        first: metrics that differ at the first differing step, in recording order; empty if there is none.
        also: number of metrics that differ only later.
        same: number of metrics that are equal up to the end of the shorter run.
        longer: run that continues after the last step of the other; empty if both end at the same step.
        overlap: whether the runs have any step in common.
    """

    runs: tuple[str, str]
    compared: tuple[str, ...]
    left_out: tuple[str, ...]
    as_float32: bool
    equal_rows: int
    equal_to: int
    first: tuple[MetricDifference, ...]
    also: int
    same: int
    longer: str
    overlap: bool

    @property
    def identical(self) -> bool:
        """Whether both runs are bitwise equal up to the end of the shorter one."""
        return bool(self.compared) and not self.first and self.overlap

    @property
    def sentence(self) -> str:
        """The result as a sentence."""
        one, other = self.runs
        if not self.compared:
            return f"{one} and {other} share no metric that could be compared"
        if not self.overlap:
            return f"{one} and {other} have no step in common"
        how = "bitwise (as float32)" if self.as_float32 else "bitwise"
        if self.identical:
            rest = f"; {self.longer} continues from there" if self.longer else ""
            return (
                f"{one} and {other} are {how} equal: {_many(len(self.compared), 'metric')} at {_steps(self.equal_rows)}"
                f" up to step {self.equal_to:,}{rest}"
            )
        first = self.first[0]
        what = f"only {_other(self.runs, first.missing)} has a row" if first.missing else _size(first)
        others = len(self.first) - 1
        more = f", with {_many(others, 'more metric')}" if others else ""
        where = f"at step {first.step:,} in {first.metric} ({what}){more}"
        if not self.equal_rows:
            return f"{one} and {other} differ from their first step on: {where}"
        return f"{one} and {other} are {how} equal for {_steps(self.equal_rows)}, and first differ {where}"


def first_difference(one: Side, other: Side, *, positions: bool) -> Divergence:
    """Compare two runs row by row, exactly; NaN equals NaN.

    Rows after the last step of the shorter run do not count as a difference; rows that one run lacks before that do.

    Args:
        one: first run.
        other: second run.
        positions: whether to match rows by their position on the metric's axis instead of by step.
    """
    shared = [name for name in one.series if name in other.series]
    compared = tuple(name for name in shared if not meaning_of(name).machine)
    as_float32 = one.kind != other.kind
    found = {name: _differing(one, other, name, positions=positions, as_float32=as_float32) for name in compared}
    differing = [value for value in found.values() if value is not None]
    step = min((value.step for value in differing), default=None)
    common = _steps_of_both(one, other, compared, positions=positions)
    before = common if step is None else common[common < step]
    ends = [_last(side, compared, positions=positions) for side in (one, other)]
    return Divergence(
        runs=(one.name, other.name),
        compared=compared,
        left_out=tuple(name for name in shared if name not in found),
        as_float32=as_float32,
        equal_rows=len(before),
        equal_to=int(before[-1]) if len(before) else -1,
        first=tuple(value for value in differing if value.step == step),
        also=sum(value.step != step for value in differing),
        same=len(compared) - len(differing),
        longer="" if ends[0] == ends[1] else (one, other)[ends[1] > ends[0]].name,
        overlap=bool(len(common)),
    )


def _last(side: Side, names: Sequence[str], *, positions: bool) -> float:
    return max((float(axis_of(side.series[name], positions=positions)[-1]) for name in names), default=-1.0)


def _steps_of_both(one: Side, other: Side, names: Sequence[str], *, positions: bool) -> Floats:
    """Return the steps at which both runs have a row of any compared metric."""
    steps = [
        np.unique(np.concatenate([axis_of(side.series[name], positions=positions) for name in names]))
        if names
        else np.empty(0)
        for side in (one, other)
    ]
    return np.intersect1d(*steps, assume_unique=True)


def _differing(one: Side, other: Side, name: str, *, positions: bool, as_float32: bool) -> MetricDifference | None:
    """Return the first difference in one metric; None if it is equal up to the end of the shorter run."""
    series = one.series[name], other.series[name]
    end = min(_end(side, positions=positions) for side in (one, other))
    axes = [axis_of(each, positions=positions) for each in series]
    # Axes may step back where a run was resumed; the running maximum makes them searchable.
    counts = [int(np.searchsorted(np.maximum.accumulate(axis), end, side="right")) for axis in axes]
    values = [each.values[:count] for each, count in zip(series, counts, strict=True)]
    axes = [axis[:count] for axis, count in zip(axes, counts, strict=True)]
    rows = min(counts)
    a, b = (_bits(value[:rows], as_float32=as_float32) for value in values)
    unequal = (axes[0][:rows] != axes[1][:rows]) | (a != b)
    place = int(np.argmax(unequal)) if unequal.any() else rows
    heads = [
        (axis[place], value[place]) if place < len(axis) else None for axis, value in zip(axes, values, strict=True)
    ]
    return _first_unequal_row(name, heads, (one.name, other.name))


def _first_unequal_row(
    name: str, heads: Sequence[tuple[float, float] | None], runs: tuple[str, str]
) -> MetricDifference | None:
    """Return the difference between the next rows of two runs; a run may have none."""
    first, second = heads
    if first is None and second is None:
        return None
    step = min(head[0] for head in heads if head is not None)
    values = [float(head[1]) if head is not None and head[0] == step else float("nan") for head in heads]
    lacking = [run for head, run in zip(heads, runs, strict=True) if head is None or head[0] != step]
    missing = lacking[0] if lacking else ""
    return MetricDifference(
        metric=name,
        step=int(step),
        values=(values[0], values[1]),
        missing=missing,
        relative=float("nan") if missing else _relative(values[0], values[1]),
    )


def _end(side: Side, *, positions: bool) -> float:
    """Return the last step of a run on the axis that its rows are matched by."""
    return max((float(axis_of(series, positions=positions)[-1]) for series in side.series.values()), default=-1.0)


def _bits(values: Floats, *, as_float32: bool) -> NDArray[Any]:
    """Return the bits of the values as integers, with one representation each for zero and for NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        plain = values.astype(np.float32) if as_float32 else values.copy()
    # -0.0 equals 0.0, and all NaN payloads are one.
    plain[plain == 0] = 0
    plain[np.isnan(plain)] = np.nan
    return plain.view(np.int32 if as_float32 else np.int64)


def _relative(one: float, other: float) -> float:
    size = max(abs(one), abs(other))
    if not np.isfinite(size):
        return float("nan")
    return abs(one - other) / size if size else 0.0


def _steps(count: int) -> str:
    return _many(count, "step")


def _many(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def _other(runs: tuple[str, str], name: str) -> str:
    return runs[0] if name == runs[1] else runs[1]


def _size(first: MetricDifference) -> str:
    values = " against ".join(f"{value:.9g}" for value in first.values)
    return f"{values}, {first.relative:.2g} of its size" if np.isfinite(first.relative) else values
