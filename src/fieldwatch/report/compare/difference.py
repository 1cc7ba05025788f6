"""First step at which two runs differ: compares every shared metric row by row, bitwise."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import number
from fieldwatch.report.compare.align import axis_of
from fieldwatch.report.compare.quality import meaning_of
from fieldwatch.report.compare.side import Side

Floats = NDArray[np.float64]
DIGITS = 9
"""Significant digits of differing values; nine identify every float32."""


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
        left, right = self.runs
        if not self.compared:
            return f"{left} and {right} share no metric that could be compared"
        if not self.overlap:
            return f"{left} and {right} have no step in common"
        how = "bitwise (as float32)" if self.as_float32 else "bitwise"
        if self.identical:
            rest = f"; {self.longer} continues from there" if self.longer else ""
            metrics = _count(len(self.compared), "metric")
            steps = _count(self.equal_rows, "step")
            return f"{left} and {right} are {how} equal: {metrics} at {steps} up to step {self.equal_to:,}{rest}"
        first = self.first[0]
        what = f"only {_other(self.runs, first.missing)} has a row" if first.missing else _size(first)
        others = len(self.first) - 1
        more = f", with {_count(others, 'more metric')}" if others else ""
        where = f"at step {first.step:,} in {first.metric} ({what}){more}"
        if not self.equal_rows:
            return f"{left} and {right} differ from their first step on: {where}"
        return f"{left} and {right} are {how} equal for {_count(self.equal_rows, 'step')}, and first differ {where}"


def first_difference(left: Side, right: Side, *, positions: bool) -> Divergence:
    """Compare two runs row by row, exactly; NaN equals NaN.

    Rows after the last step of the shorter run do not count as a difference; rows that one run lacks before that do.

    Args:
        left: first run.
        right: second run.
        positions: whether to match rows by their position on the metric's axis instead of by step.
    """
    shared = [name for name in left.series if name in right.series]
    # Times and memory differ between any two executions, and would hide the first real difference.
    compared = tuple(name for name in shared if not meaning_of(name).machine)
    as_float32 = left.kind != right.kind
    results = {name: _differing(left, right, name, positions=positions, as_float32=as_float32) for name in compared}
    differing = [difference for difference in results.values() if difference is not None]
    step = min((difference.step for difference in differing), default=None)
    common = _steps_of_both(left, right, compared, positions=positions)
    before = common if step is None else common[common < step]
    ends = [_last(side, compared, positions=positions) for side in (left, right)]
    return Divergence(
        runs=(left.name, right.name),
        compared=compared,
        left_out=tuple(name for name in shared if name not in results),
        as_float32=as_float32,
        equal_rows=len(before),
        equal_to=int(before[-1]) if len(before) else -1,
        first=tuple(difference for difference in differing if difference.step == step),
        also=sum(difference.step != step for difference in differing),
        same=len(compared) - len(differing),
        longer="" if ends[0] == ends[1] else (left, right)[ends[1] > ends[0]].name,
        overlap=bool(len(common)),
    )


def _last(side: Side, names: Sequence[str], *, positions: bool) -> float:
    """Return the last step at which a run has a row of any compared metric."""
    return max((float(axis_of(side.series[name], positions=positions)[-1]) for name in names), default=-1.0)


def _steps_of_both(left: Side, right: Side, names: Sequence[str], *, positions: bool) -> Floats:
    """Return the steps at which both runs have a row of any compared metric."""
    # concatenate() needs at least one array.
    steps = [
        np.unique(np.concatenate([axis_of(side.series[name], positions=positions) for name in names]))
        if names
        else np.empty(0)
        for side in (left, right)
    ]
    return np.intersect1d(*steps, assume_unique=True)


def _differing(left: Side, right: Side, name: str, *, positions: bool, as_float32: bool) -> MetricDifference | None:
    """Return the first difference in one metric; None if it is equal up to the end of the shorter run."""
    series = left.series[name], right.series[name]
    # The end of the run, not of the metric: a metric that stops early is a difference.
    end = min(_end(side, positions=positions) for side in (left, right))
    axes = [axis_of(each, positions=positions) for each in series]
    # Axes may step back where a run was resumed; the running maximum makes them searchable.
    counts = [int(np.searchsorted(np.maximum.accumulate(axis), end, side="right")) for axis in axes]
    values = [each.values[:count] for each, count in zip(series, counts, strict=True)]
    axes = [axis[:count] for axis, count in zip(axes, counts, strict=True)]
    rows = min(counts)
    left_bits, right_bits = (_bits(value[:rows], as_float32=as_float32) for value in values)
    unequal = (axes[0][:rows] != axes[1][:rows]) | (left_bits != right_bits)
    # Without an unequal row, one run may still have a row more than the other.
    place = int(np.argmax(unequal)) if unequal.any() else rows
    row_pair = [
        (axis[place], value[place]) if place < len(axis) else None for axis, value in zip(axes, values, strict=True)
    ]
    return _row_difference(name, row_pair, (left.name, right.name))


def _row_difference(
    name: str, row_pair: Sequence[tuple[float, float] | None], runs: tuple[str, str]
) -> MetricDifference | None:
    """Return the difference between two rows (step, value), of which either may be missing; None if both are."""
    first, second = row_pair
    if first is None and second is None:
        return None
    step = min(row[0] for row in row_pair if row is not None)
    # If the steps differ, only the run with the earlier row has a value at that step.
    values = [float(row[1]) if row is not None and row[0] == step else float("nan") for row in row_pair]
    lacking = [run for row, run in zip(row_pair, runs, strict=True) if row is None or row[0] != step]
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
    # A value beyond the range of float32 becomes infinite, as it does in TensorBoard's files.
    with np.errstate(over="ignore", invalid="ignore"):
        canonical = values.astype(np.float32) if as_float32 else values.copy()
    # -0.0 equals 0.0, and all NaN payloads are one.
    canonical[canonical == 0] = 0
    canonical[np.isnan(canonical)] = np.nan
    return canonical.view(np.int32 if as_float32 else np.int64)


def _relative(left: float, right: float) -> float:
    size = max(abs(left), abs(right))
    if not np.isfinite(size):
        return float("nan")
    return abs(left - right) / size if size else 0.0


def _count(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def _other(runs: tuple[str, str], name: str) -> str:
    return runs[0] if name == runs[1] else runs[1]


def _size(first: MetricDifference) -> str:
    """Return both values and their relative difference as text."""
    # NaN is a value here, for which number() would print the "-" of an unknown one.
    values = " against ".join("NaN" if np.isnan(value) else number(value, DIGITS) for value in first.values)
    return f"{values}, a relative difference of {number(first.relative, 2)}" if np.isfinite(first.relative) else values
