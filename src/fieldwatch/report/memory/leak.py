"""Leak test: detects memory growth that the model's size does not explain, and avoids false alarms."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fieldwatch.base import number
from fieldwatch.report.memory.trace import Floats, MemoryHistory, Steps
from fieldwatch.report.memory.trend import Trend, blocks_of, trend_of, widening

LEAST_SNAPSHOTS = 12
"""Minimum number of snapshots: each half of the run needs a slope, which six have."""
SHARE = 0.005
"""Minimum growth over the run as a fraction of the memory."""
LEAST_MIB = 8.0
"""Minimum growth over the run in MiB; caches and fragments of small models grow by less."""
_LEAST_FREEDOM = 6
"""Minimum degrees of freedom of the fit; Student's interval is very wide with fewer."""
# Student's t, 97.5 %, by degrees of freedom from 6 on; from 30 on it is the normal's within 4 %.
_STUDENT = (
    2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LeakJudgment:
    """Result of the leak test.

    Attributes:
        verdict: suspected if memory grows in both halves of the run, by a relevant amount, and the growth of the model
            does not explain it.
        step: first tested iteration.
        growth: unexplained growth in MiB per 1000 iterations; None if it cannot be determined.
        explained: MiB of allocated memory per MiB of parameters; None if the model's size did not change.
        why: reasoning in one sentence.
    """

    verdict: Literal["suspected", "none", "not known"]
    step: int
    growth: Trend | None = None
    explained: float | None = None
    why: str

    @property
    def suspected(self) -> bool:
        """Whether a leak is suspected."""
        return self.verdict == "suspected"


def judge_leak(trace: MemoryHistory, first: int) -> LeakJudgment:
    """Judge the growth after the start-up.

    There are three cases:

    * The model's size changed, and the categories of the log are reliable: the growth with time is ``c`` in a fit of
      ``allocated = a + b * parameters + c * iteration``.
    * The same, but the model grew too evenly with time for this fit: memory without an owner is judged.
    * The size did not change, or the categories are not reliable (the original profiler assigned tensors wrongly): the
      allocated memory is judged, and in the latter case also the number of tensors. Densification makes tensors larger,
      a leak makes their number grow.

    Args:
        trace: memory history of the run.
        first: index of the first snapshot after the start-up.
    """
    steps = trace.steps[first:]
    allocated = trace.allocated[first:]
    step = int(trace.steps[first])
    if len(steps) < LEAST_SNAPSHOTS:
        why = f"only {len(steps)} snapshots after the start-up; growth is judged from {LEAST_SNAPSHOTS} on"
        return LeakJudgment(verdict="not known", step=step, why=why)
    if not np.isfinite(allocated).all():
        return LeakJudgment(verdict="not known", step=step, why="the log contains allocated sizes that are not finite")
    parameters = trace.categories.get("parameters")
    # Changes below 1 % of the memory are too small to fit the memory that each parameter needs.
    grew = parameters is not None and bool(np.ptp(parameters[first:]) > 0.01 * np.median(allocated))
    if parameters is None or not grew or not trace.knows_owners:
        return _over_time(trace, first)
    fit = _fit(steps, allocated, parameters[first:])
    other = trace.categories.get("other")
    if fit is not None:
        return _against_model(steps, allocated, parameters[first:], fit)
    return _ownerless(steps, allocated, np.zeros(len(steps)) if other is None else other[first:])


def _over_time(trace: MemoryHistory, first: int) -> LeakJudgment:
    """Judge the growth of the allocated memory, if the model's size did not change or is not reliable."""
    steps = trace.steps[first:]
    allocated = trace.allocated[first:]
    step = int(steps[0])
    growth, both = _growth(steps, allocated)
    if growth is None or growth.sign < 1 or not _matters(growth, steps, allocated):
        return LeakJudgment(verdict="none", step=step, growth=growth, why="the allocated memory does not grow steadily")
    if not both:
        why = "the allocated memory grew, but not in both halves of the run: something filled up and stopped"
        return LeakJudgment(verdict="none", step=step, growth=growth, why=why)
    if "parameters" not in trace.categories:
        why = "the allocated memory grows in both halves of the run; the model's size is not recorded"
        return LeakJudgment(verdict="not known", step=step, growth=growth, why=why)
    # The recorded size of the parameters is reliable.
    if trace.knows_owners or trace.kind == "journal":
        why = "the allocated memory grows in both halves of the run, and the model's size does not"
        return LeakJudgment(verdict="suspected", step=step, growth=growth, why=why)
    count = trend_of(steps, trace.tensors[first:])
    if count is not None and count.sign > 0:
        why = "the allocated memory and the number of tensors grow together in both halves of the run"
        return LeakJudgment(verdict="suspected", step=step, growth=growth, why=why)
    why = "the allocated memory grows, the number of tensors does not: tensors became larger, as in densification"
    return LeakJudgment(verdict="none", step=step, growth=growth, why=why)


def _against_model(steps: Steps, allocated: Floats, parameters: Floats, fit: tuple[Trend, float]) -> LeakJudgment:
    """Judge the growth that remains after a fit with the model's size."""
    growth, explained = fit
    step = int(steps[0])
    if growth.sign < 1 or not _matters(growth, steps, allocated):
        why = f"{number(explained, 2)} MiB for every MiB of parameters explain the growth"
        return LeakJudgment(verdict="none", step=step, growth=growth, explained=explained, why=why)
    # The fit covers the whole run; whether the rest persists is seen in its halves.
    _, both = _growth(steps, allocated - explained * parameters)
    if not both:
        why = "the growth that the model's size does not explain is not present in both halves of the run"
        return LeakJudgment(verdict="none", step=step, growth=growth, explained=explained, why=why)
    why = (
        f"after {number(explained, 2)} MiB for every MiB of parameters, growth with time remains in both halves of the "
        "run"
    )
    return LeakJudgment(verdict="suspected", step=step, growth=growth, explained=explained, why=why)


def _ownerless(steps: Steps, allocated: Floats, other: Floats) -> LeakJudgment:
    """Judge memory without an owner, for models that grew evenly with time."""
    growth, both = _growth(steps, other)
    if growth is not None and both and _matters(growth, steps, allocated):
        why = "memory without an owner grows in both halves of the run"
        return LeakJudgment(verdict="suspected", step=int(steps[0]), growth=growth, why=why)
    # Not "none": a leak of owned memory would look like the growth of the model.
    why = "the model grew too evenly with time to separate other growth from it; memory without an owner did not grow"
    return LeakJudgment(verdict="not known", step=int(steps[0]), growth=growth, why=why)


def _growth(steps: Steps, values: Floats) -> tuple[Trend | None, bool]:
    """Return the slope, and whether memory rises in both halves of the run."""
    # A leak persists: growth in only one half is a cache that fills, or a single densification.
    half = len(steps) // 2
    halves = [trend_of(steps[part], values[part]) for part in (slice(half), slice(half, None))]
    return trend_of(steps, values), all(trend is not None and trend.sign > 0 for trend in halves)


def _matters(growth: Trend, steps: Steps, allocated: Floats) -> bool:
    """Return whether the growth over the whole run is relevant."""
    total = growth.per_1000 * float(steps[-1] - steps[0]) / 1000
    return total > max(SHARE * float(np.median(allocated)), LEAST_MIB)


def _fit(steps: Steps, allocated: Floats, parameters: Floats) -> tuple[Trend, float] | None:
    """Fit growth with time and growth with the parameters; None if the two cannot be separated.

    Least squares on medians of at most 40 blocks; Student's interval is widened for correlation between blocks.
    """
    time, y, p = blocks_of(steps, allocated, parameters)
    # Centered, which separates the slopes from the constant and keeps the matrix well conditioned.
    time = (time - time.mean()) / 1000
    freedom = len(y) - 3
    design = np.stack((np.ones(len(y)), p - p.mean(), time), axis=1)
    # Nearly parallel columns (the model grew evenly with time) make the split between them arbitrary.
    scaled = design / np.maximum(np.linalg.norm(design, axis=0), 1e-12)
    if freedom < _LEAST_FREEDOM or np.linalg.cond(scaled) > 1e3:
        return None
    coefficients, *_ = np.linalg.lstsq(design, y, rcond=None)
    residuals = y - design @ coefficients
    variance = float(residuals @ residuals) / freedom
    error = math.sqrt(variance * float(np.linalg.inv(design.T @ design)[2, 2])) * widening(residuals)
    error *= _STUDENT[min(freedom - _LEAST_FREEDOM, len(_STUDENT) - 1)]
    slope = float(coefficients[2])
    return Trend(per_1000=slope, low=slope - error, high=slope + error, blocks=len(y)), float(coefficients[1])
