"""Speed and peak memory of a run, from its record."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fieldwatch.record import Series
from fieldwatch.report.compare.side import Side

_PEAKS = ("Memory/peak_MB", "Memory/reserved_MB", "Memory/allocated_MB")
"""Metrics from which the peak is taken, in order of preference: the true peak, then an upper and a lower bound."""
_GIGA = re.compile(r"(?:^|[^a-z])(?:vram|gpu|memory)[^a-z]?.*g(?:i)?b$", re.IGNORECASE)
_MEGA = re.compile(r"(?:^|[^a-z])(?:vram|gpu|memory)[^a-z]?.*m(?:i)?b$", re.IGNORECASE)
"""Tags of other programs, such as ``gpu_memory_MB``; their megabytes are taken as MiB, as most programs mean them."""


@dataclass(frozen=True, kw_only=True)
class RunPace:
    """Speed and memory of a run; NaN for values that were not recorded.

    Attributes:
        seconds: training time up to the last value, in seconds.
        step_ms: median duration of a step, in ms.
        steps_per_second: mean speed, including evaluation and saving.
        peak_MB: peak memory, in MiB.
        peak_from: metric from which the peak memory is taken.
    """

    seconds: float
    step_ms: float
    steps_per_second: float
    peak_MB: float  # noqa: N815  as the metric is called
    peak_from: str


def pace_of(side: Side) -> RunPace:
    """Return speed and memory of a run."""
    # The longest series was recorded at every step, so its ends are those of the training.
    longest = max(side.series.values(), key=len, default=None)
    steps = side.series.get("Time/step")
    peak, source = _peak(side)
    return RunPace(
        seconds=side.seconds if side.series else float("nan"),
        step_ms=float(np.nanmedian(steps.values)) if steps is not None and _any(steps.values) else float("nan"),
        steps_per_second=_rate(longest),
        peak_MB=peak,
        peak_from=source,
    )


def _rate(series: Series | None) -> float:
    if series is None or len(series) < 2 or series.seconds[-1] <= series.seconds[0]:
        return float("nan")
    return float((series.steps[-1] - series.steps[0]) / (series.seconds[-1] - series.seconds[0]))


def _peak(side: Side) -> tuple[float, str]:
    for name in (*_PEAKS, *_named(side, _MEGA), *_named(side, _GIGA)):
        series = side.series.get(name)
        # Totals and capacities match the patterns as well, but are properties of the machine.
        if series is not None and _any(series.values) and "total" not in name and "capacity" not in name:
            factor = 1024 if name not in _PEAKS and _GIGA.search(name) else 1
            return factor * float(np.nanmax(series.values)), name
    return float("nan"), ""


def _named(side: Side, pattern: re.Pattern[str]) -> Sequence[str]:
    return [name for name in side.series if pattern.search(name)]


def _any(values: np.ndarray) -> bool:
    return bool(np.isfinite(values).any())
