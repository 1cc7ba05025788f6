"""Rules for the time per step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import number
from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.places import loaders
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.thresholds import SMDEBUG, threshold
from fieldwatch.health.window import (
    Span,
    between,
    finished,
    first_sustained,
    on_steps,
    spans,
    trailing_count,
    trailing_mean,
)
from fieldwatch.record import History, Series

STEP_TIME = "Time/step"
PAUSES = ("evaluation", "checkpoint", "pause")
CLOCK = "Loss/total"


@dataclass(frozen=True, kw_only=True)
class DataStarved(HealthRule):
    """Steps spend more than half of their time waiting for data.

    The wait is that of ``run.batches(...)``. A loop that iterates over a data loader itself waits between the end of a
    step and the beginning of the next one.

    Attributes:
        data: metric of the time spent waiting for data, in ms.
        total: metric of the step time, in ms.
        recording: metric of the time that the run itself takes between two steps, in ms.
    """

    data: str = "Time/data"
    total: str = STEP_TIME
    recording: str = "Time/recording"
    share: float = threshold(
        0.5,
        unit="fraction of the step time",
        reason="half of the step is spent waiting (smdebug: IOBottleneck)",
        source=SMDEBUG,
    )
    least: float = threshold(5.0, unit="ms", reason="shorter waits do not matter")
    window: int = threshold(128, unit="steps", reason="length of the moving mean")
    warmup: int = threshold(32, unit="steps", reason="workers start, caches fill")
    patience: int = threshold(32, unit="steps", reason="a single slow file is not a trend")
    usual: float = threshold(
        0.1, unit="quantile of the waits", reason="nine of ten waits are longer; a busy machine does not delay all"
    )
    fewest: int = threshold(32, unit="steps", reason="a median of fewer is one of the start")
    head: int = threshold(160, unit="steps", reason="enough for a median, and early enough to be of use")
    remedy: ClassVar[str] = (
        "Prefetch with more workers, keep decoded data in memory, or do expensive preprocessing once before training."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where waiting had taken more than ``share`` of the step time for too long."""
        if self.total not in history:
            return ()
        if self.data not in history:
            return self._between_steps(history)
        return tuple(found for span in spans(history, self.data) if (found := self._judge(history[self.total], span)))

    def _judge(self, total: Series, span: Span) -> Finding | None:
        wait = trailing_mean(span.values, self.window, least=self.warmup)
        if not (wait > self.least).any():
            return None
        step = trailing_mean(on_steps(total, span.series.steps), self.window, least=self.warmup)
        starved = (wait > self.share * step) & (wait > self.least)
        at = first_sustained(starved, patience=self.patience, warmup=self.warmup)
        if at is None:
            return None
        text = f"{span.name} averages {wait[at]:.1f} of {step[at]:.1f} ms per step: training is starved of data."
        return self.finding(span.step(at), text)

    def _between_steps(self, history: History) -> tuple[Finding, ...]:
        """Return a finding if a loop over a data loader usually waits for it between two steps."""
        loader = next((each for each in loaders(history) if each["batches"]), None)
        series = history[self.total].start
        # Only the first steps, so that a later examination gives the same result.
        known = min(len(series), self.head)
        if loader is None or known < self.fewest or (known < self.head and not finished(history)):
            return ()
        begin = min(self.warmup, known // 4)
        seconds = series.seconds[begin:known]
        steps = series.values[begin + 1 : known]
        own = history[self.recording].start if self.recording in history else None
        waits = np.diff(seconds) * 1e3 - steps - (0.0 if own is None else float(np.nanmedian(own.values)))
        # Other processes, evaluations and checkpoints delay some of the steps, a slow loader delays all. Workers hand
        # over several batches at a time, so that only the median shows their wait.
        wait = float(np.nanquantile(waits, 0.5 if loader["workers"] else self.usual))
        step = float(np.nanmedian(steps))
        if not (wait > self.least and wait > self.share * (wait + step)):
            return ()
        text = (
            f"between two steps {wait:.1f} ms pass or more, and a step takes {step:.1f} ms: {wait / (wait + step):.0%} "
            f"of the time is spent on reading data (loader '{loader['name']}', {loader['workers']} workers)."
        )
        remedy = (
            "Read and decode each file once and keep the result in memory (a cache in the data set), or let other "
            "processes do it: DataLoader(..., num_workers=4, persistent_workers=True)."
        )
        return (replace(self.finding(int(series.steps[known - 1]), text), remedy=remedy),)


@dataclass(frozen=True, kw_only=True)
class StalledTraining(HealthRule):
    """Training paused for far longer than a step takes.

    Attributes:
        metric: metric whose recording times are the clock.
        excuses: kinds of events that explain a pause.
    """

    metric: str = CLOCK
    excuses: Sequence[str] = PAUSES
    ratio: float = threshold(
        20.0,
        unit="times the 99th percentile",
        reason="relative to the earlier gaps between steps; slow steps alone do not reach it",
    )
    least: float = threshold(
        60.0, unit="s", reason="shorter pauses cost little (smdebug: 1800 s, longer than many runs)", source=SMDEBUG
    )
    warmup: int = threshold(32, unit="gaps", reason="minimum number to know the usual gap")
    remedy: ClassVar[str] = (
        "Check what blocked the run: data on a network drive, another process on the device, or swapping. Record "
        "planned pauses as 'evaluation', 'checkpoint' or 'pause' events."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return the first stall of each phase."""
        return tuple(found for span in spans(history, self.metric) if (found := self._judge(history, span)))

    def _judge(self, history: History, span: Span) -> Finding | None:
        # Seconds between consecutive recordings.
        gaps = np.diff(span.series.seconds)
        long = gaps > self.least
        if not long.any():
            return None
        events = [event["step"] for kind in self.excuses for event in history.events(kind)]
        for at in np.flatnonzero(long).tolist():
            before = gaps[:at]
            # Only earlier gaps, so that a later examination gives the same result.
            usual = float(np.quantile(before, 0.99)) if len(before) >= self.warmup else np.inf
            first = span.step(at)
            last = span.step(at + 1)
            if gaps[at] > self.ratio * usual and not any(first <= step <= last for step in events):
                text = (
                    f"training stalled: {gaps[at]:.0f} s between steps {first} and {last} (usual: {number(usual, 3)} "
                    "s)."
                )
                return self.finding(last, text)
        return None


@dataclass(frozen=True, kw_only=True)
class SlowStart(HealthRule):
    """The first step took very long.

    Attributes:
        metric: metric whose recording times are the clock.
    """

    severity: ClassVar[Severity] = "note"
    metric: str = CLOCK
    least: float = threshold(
        120.0,
        unit="s",
        reason="time until the end of the first step (smdebug MaxInitializationTime: 20 min)",
        source=SMDEBUG,
    )
    ratio: float = threshold(100.0, unit="times the usual step", reason="slow steps also make the first one slow")
    settled: int = threshold(16, unit="steps", reason="minimum number to know the usual step time")
    remedy: ClassVar[str] = (
        "Cache the results of the preparation before training (decoded images, compiled kernels, point clouds)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a finding if the first step ended late."""
        if self.metric not in history:
            return ()
        series = between(history[self.metric], 0, np.inf)
        # If the history no longer holds the first step, its end is unknown.
        if series.steps[0] > history.first or len(series) <= self.settled or series.seconds[0] <= self.least:
            return ()
        # The median is not affected by the slow first step.
        usual = float(np.median(np.diff(series.seconds[: self.settled + 1])))
        if series.seconds[0] <= self.ratio * usual:
            return ()
        text = f"the first step ended after {series.seconds[0]:.0f} s; later steps take {number(usual, 3)} s."
        return (self.finding(int(series.steps[self.settled]), text),)


@dataclass(frozen=True, kw_only=True)
class StepsSlowDown(HealthRule):
    """Steps take more and more processor time, although the model does not grow.

    Wall time also depends on the other processes of a machine, so it is only asked whether it grows as well.

    Attributes:
        metric: metric of the processor time per step, in ms.
        wall: metric of the wall time per step, in ms.
        sizes: metrics of what may grow on purpose; a run in which one of them does is not judged.
    """

    metric: str = "Performance/processor_ms"
    wall: str = STEP_TIME
    sizes: Sequence[str] = ("Memory/parameters_MB",)
    ratio: float = threshold(1.5, unit="times the time at first", reason="clocks and caches change less")
    least: float = threshold(2.0, unit="ms", reason="later steps cost this much more at least")
    parts: int = threshold(3, unit="parts of the run", reason="each slower than the one before")
    count: int = threshold(6, unit="recordings", reason="one of every 50th step, so that each part has two")
    grown: float = threshold(1.1, unit="times the first size", reason="what grows may take longer")
    remedy: ClassVar[str] = (
        "Look for what grows with the number of steps: a metric or list over all outputs so far (reset it at each "
        "epoch, or compute it every few hundred steps), a history that is concatenated, sorted or plotted at each "
        "step, hooks or callbacks that are added again and again, a replay memory that is searched as a whole."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a finding at the end of the run."""
        if not finished(history) or self.metric not in history or len(history[self.metric]) < self.count:
            return ()
        if any(self._has_grown(history[name]) for name in self.sizes if name in history):
            return ()
        times = self._parts(history[self.metric])
        wall = self._parts(history[self.wall]) if self.wall in history else times
        slower = bool((np.diff(times) > 0).all()) and times[-1] > self.ratio * times[0] and wall[-1] > wall[0]
        if not slower or times[-1] - times[0] < self.least:
            return ()
        text = (
            f"steps have slowed down all along, from {number(times[0], 3)} to {number(times[-1], 3)} ms of processor "
            "time, although the model has not grown: the time per step grows with the number of steps."
        )
        return (self.finding(history.step, text),)

    def _parts(self, series: Series) -> NDArray[np.float64]:
        """Return the median of each part of a run; its first recording, when everything begins, is left out."""
        return np.array([np.nanmedian(part) for part in np.array_split(series.values[1:], self.parts)])

    def _has_grown(self, sizes: Series) -> bool:
        first = float(sizes.start.values[0])
        return float(np.nanmax(sizes.values)) > self.grown * first


@dataclass(frozen=True, kw_only=True)
class StepOutlier(HealthRule):
    """Many steps take several times as long as usual.

    Attributes:
        metric: metric of the step time, in ms.
    """

    severity: ClassVar[Severity] = "note"
    metric: str = STEP_TIME
    ratio: float = threshold(
        3.0,
        unit="times the usual step",
        reason="smdebug uses 3 or 5 standard deviations (its documentation and its code differ)",
        source=SMDEBUG,
    )
    count: int = threshold(10, unit="outliers", reason="a few outliers in the window do not matter", source=SMDEBUG)
    window: int = threshold(256, unit="steps", reason="length of the window in which outliers are counted")
    warmup: int = threshold(32, unit="steps", reason="kernels are compiled, caches fill")
    least: float = threshold(5.0, unit="ms", reason="the jitter of fast steps does not matter")
    cost: float = threshold(
        0.25,
        unit="fraction of the time of the window",
        reason="outliers that cost less are not worth a change, and on a shared machine other processes cause them",
    )
    remedy: ClassVar[str] = (
        "Check which Time/<span> is longer in those steps; distribute periodic work (grid updates, densification, "
        "saving) over more steps, or run it less often."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where the number of outliers reached ``count``."""
        return tuple(found for span in spans(history, self.metric) if (found := self._judge(span)))

    def _judge(self, span: Span) -> Finding | None:
        values = span.values
        # Mean of the preceding window, which a few outliers hardly change.
        usual = trailing_mean(values, self.window, least=self.warmup)
        slow = (values > self.ratio * usual) & (values > usual + self.least)
        if np.count_nonzero(slow) < self.count:
            return None
        counts = trailing_count(slow, self.window)
        # Time beyond the usual, as a fraction of all time in the same window.
        excess = _trailing_sum(np.where(slow, values - usual, 0.0), self.window)
        spent = _trailing_sum(np.where(np.isfinite(values), values, 0.0), self.window)
        at = first_sustained((counts >= self.count) & (excess >= self.cost * spent))
        if at is None:
            return None
        text = (
            f"{self.count} of the last {self.window} steps took over {self.ratio:g} times the usual "
            f"{number(usual[at], 3)} ms."
        )
        return self.finding(span.step(at), text)


def _trailing_sum(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Return the sum of the ``width`` values up to and including each one."""
    sums = np.cumsum(values)
    before = np.concatenate([np.zeros(min(width, len(sums))), sums[:-width]])
    return sums - before
