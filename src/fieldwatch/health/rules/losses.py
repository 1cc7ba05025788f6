"""Rules for the course of the total loss."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fieldwatch.base import number
from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.outcomes import is_played, loss_reduction, shows_learning, single_loss
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.thresholds import SMDEBUG, threshold
from fieldwatch.health.visits import Visits
from fieldwatch.health.window import (
    LOOKBACK,
    Span,
    excused,
    finished,
    finite_median,
    first_sustained,
    is_signed,
    noise,
    on_steps,
    planned_steps,
    spans,
    trailing_mean,
)
from fieldwatch.record import History, Series, tags

TOTAL = (tags.TOTAL,)
RESETS = ("reset",)


def robust_spread(values: NDArray[np.float64]) -> float:
    """Return the larger of two robust standard deviations: from the median deviation, and from the 98th percentile."""
    middle = float(np.median(values))
    deviation = 1.4826 * float(np.median(np.abs(values - middle)))
    # 2.054 is the 98th percentile of the standard normal distribution.
    tail = (float(np.quantile(values, 0.98)) - middle) / 2.054
    return max(deviation, tail)


def _reweighted(history: History, before: NDArray[np.float64], after: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return for each pair of steps whether the weight of any term rose by more than half between them."""
    risen = np.zeros(len(after), np.bool_)
    for name in tags.WEIGHT.parts(history.names()).values():
        series = history[name]
        positions = np.searchsorted(series.steps, np.stack([before, after]), side="right") - 1
        # A term without a weight so far counts as weight 0: a term that starts explains a rise, too.
        old, new = np.where(positions < 0, 0.0, series.values[np.maximum(positions, 0)])
        risen |= new > 1.5 * old
    return risen


@dataclass(frozen=True, kw_only=True)
class LossSpike(HealthRule):
    """The total loss briefly rises to many times its moving baseline, then recovers.

    A note if it stays below the first losses of the run, so that less was lost than had been learned, or if a schedule
    has just raised the learning rate again to where it had been, as warm restarts do.

    Attributes:
        metrics: losses to check.
        excuses: kinds of events after which the loss may rise for ``grace`` steps.
    """

    metrics: Sequence[str] = TOTAL
    excuses: Sequence[str] = RESETS
    ratio: float = threshold(
        10.0, unit="times the baseline", reason="most views differ by less; a ratio of 2 fires on every hard view"
    )
    sample_ratio: float = threshold(
        3.0, unit="times the sample's baseline", reason="a sample whose loss is always this high is not a spike"
    )
    window: int = threshold(64, unit="recordings", reason="length of the moving baseline")
    warmup: int = threshold(32, unit="recordings", reason="minimum number for a baseline")
    patience: int = threshold(16, unit="recordings", reason="a rise that does not recover within this many is a jump")
    grace: int = threshold(200, unit="steps", reason="the loss may rise after a declared reset")
    floor: float = threshold(
        0.1,
        unit="times the highest baseline so far",
        reason="near zero loss, a single batch exceeds the baseline many times without any harm",
    )
    deviation: float = threshold(
        6.0,
        unit="robust standard deviations of log(loss / baseline)",
        reason="losses with heavy tails exceed their mean ten times as a rule",
    )
    tail: int = threshold(512, unit="recordings", reason="length of the window that gives the usual deviations")
    head: int = threshold(5, unit="recordings", reason="the first losses; a spike above all of them is a warning")
    raised: float = threshold(
        3.0, unit="times the learning rate before", reason="a schedule that begins anew raises it many times"
    )
    remedy: ClassVar[str] = (
        "Check the sample of that step (SampleSpike names it if samples have names), and clip gradients so that one "
        "batch cannot move the parameters far."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return the first spike of each phase."""
        return tuple(found for span in spans(history, *self.metrics) if (found := self._judge(history, span)))

    def _judge(self, history: History, span: Span) -> Finding | None:
        values = span.values
        steps = span.series.steps
        if is_signed(values):
            return None
        base = trailing_mean(values, self.window, least=self.warmup)
        high = np.isfinite(values) & (base > 0) & (values > self.ratio * base)
        if not high.any():
            return None
        high &= values > self.floor * np.fmax.accumulate(base)
        high &= ~excused(history, self.excuses, steps, self.grace)
        for at in np.flatnonzero(high).tolist():
            if not self._exceeds_tail(values, at):
                continue
            # A spike falls below half of the threshold again; a rise that persists is a jump.
            back = values[at + 1 : at + 1 + self.patience]
            if (back < 0.5 * self.ratio * base[at]).any() and self._is_unusual(history, steps[at]):
                text = (
                    f"{span.name} was {number(values[at])}, {values[at] / base[at]:.0f} times its baseline "
                    f"{number(base[at])}."
                )
                # The highest of them: a fast fall is over within a few recordings.
                first = float(np.nanmax(values[: self.head])) if span.whole else -np.inf
                lasting = values[at] > first and not self._is_after_restart(history, steps[at])
                severity: Severity = "warning" if lasting else "note"
                return self.finding(span.step(at), text, subject=span.name, severity=severity)
        return None

    def _is_after_restart(self, history: History, step: float) -> bool:
        """Return whether the learning rates have risen within the baseline, to no more than what they had been."""
        names = list(tags.LEARNING_RATE.parts(history.names()).values())
        return bool(names) and all(self._has_restarted(history[name], step) for name in names)

    def _has_restarted(self, rates: Series, step: float) -> bool:
        before = rates.values[rates.steps <= step]
        recent = before[-self.window :]
        lowest = len(before) - len(recent) + int(np.argmin(recent))
        earlier = np.concatenate((rates.start.values[rates.start.steps < rates.steps[0]], before[:lowest]))
        if not len(earlier):
            return False
        highest = float(before[lowest:].max())
        return highest > self.raised * float(before[lowest]) and highest <= float(np.nanmax(earlier))

    def _exceeds_tail(self, values: NDArray[np.float64], at: int) -> bool:
        """Return whether a loss is beyond the usual deviations from the baseline; True if these are unknown."""
        # A shorter baseline than that of the rule, so that enough deviations are known when the rule begins.
        base = trailing_mean(values[:at], self.window, least=8)
        ratios = values[:at] / base
        usual = np.log(ratios[np.isfinite(ratios) & (ratios > 0)][-self.tail :])
        if len(usual) < self.warmup:
            return True
        spread = robust_spread(usual)
        now = np.log(values[at] / float(base[np.isfinite(base)][-1]))
        return bool(now - np.median(usual) > self.deviation * spread)

    def _is_unusual(self, history: History, step: float) -> bool:
        """Return whether the loss is also high for the samples of the step; True if samples have no names."""
        visits = Visits.of(history.sample_losses())
        here = None if visits is None else visits.steps == step
        if visits is None or here is None or not here.any():
            return True
        return bool((visits.against_own_past()[here] > self.sample_ratio).any())


@dataclass(frozen=True, kw_only=True)
class LossJump(HealthRule):
    """The total loss rises to a multiple of its moving baseline, or above 100, and stays there.

    A jump that has halved after 96 recordings is one to other data (a curriculum), which are being learned.

    Attributes:
        metrics: losses to check.
        excuses: kinds of events after which the loss may rise for ``grace`` steps.
    """

    metrics: Sequence[str] = TOTAL
    excuses: Sequence[str] = RESETS
    ratio: float = threshold(
        3.0, unit="times the baseline", reason="differences between views do not triple a mean for long"
    )
    limit: float = threshold(
        100.0,
        unit="loss",
        reason="losses averaged over pixels or rays are of order 1; applies only if the baseline was below half of it",
    )
    window: int = threshold(64, unit="recordings", reason="length of the moving baseline")
    warmup: int = threshold(64, unit="recordings", reason="minimum number for a baseline")
    patience: int = threshold(16, unit="recordings", reason="a single spike is not a jump")
    recovery: int = threshold(96, unit="recordings", reason="a jump to harder data is learned, and falls again by then")
    recovered: float = threshold(
        0.5,
        unit="fraction of the jump",
        reason="left of it, if what came is learned; a model that is destroyed keeps more",
    )
    grace: int = threshold(200, unit="steps", reason="the loss may rise after a declared reset, and recovers slowly")
    least: float = threshold(
        0.02, unit="fraction of the first loss", reason="a loss of nearly 0 that triples is still nearly 0"
    )
    remedy: ClassVar[str] = (
        "Resume from the last checkpoint before that step with a lower learning rate. Check what changed there (a "
        "schedule, a new sample, the weight of a term), and declare planned changes as a phase or a reset."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return the first jump of each phase."""
        # The losses of a policy and its critic follow the returns.
        if is_played(history):
            return ()
        return tuple(found for span in spans(history, *self.metrics) if (found := self._judge(history, span)))

    def _judge(self, history: History, span: Span) -> Finding | None:
        values = span.values
        steps = span.series.steps
        # The lag keeps the jump itself out of its baseline.
        base = trailing_mean(values, self.window, least=self.warmup, lag=self.patience)
        far = (values > self.limit) & (base < 0.5 * self.limit)
        # A ratio to the baseline has no meaning for losses of both signs.
        if not is_signed(values):
            began = float(np.nanmedian(history[span.name].values[:5]))
            # A record that starts late does not show the loss at the start of training.
            least = self.least * began if history.first <= 0 else 0.0
            far |= (base > 0) & (values > self.ratio * base) & (values > least)
        high = np.isfinite(values) & far
        if first_sustained(high, patience=self.patience) is None:
            return None
        # A term weight that rose after the first recording of the baseline explains the jump.
        earlier = steps[np.maximum(np.arange(len(steps)) - self.window - self.patience, 0)]
        high &= ~excused(history, self.excuses, steps, self.grace) & ~_reweighted(history, earlier, steps)
        # Of a phase that is over, there will be no more recordings.
        is_over = finished(history) or span.start != history.phase_start(history.step)
        at = self._lasting(high, values, base, is_over=is_over)
        if at is None:
            return None
        reach = "above the limit, " if values[at] > self.limit else ""
        text = (
            f"{span.name} jumped from {number(base[at])} to {number(values[at])} and stayed ({reach}{self.patience} "
            "steps)."
        )
        level = "error" if values[at] > self.limit else "warning"
        return self.finding(span.step(at), text, subject=span.name, severity=level)

    def _lasting(
        self, high: NDArray[np.bool_], values: NDArray[np.float64], base: NDArray[np.float64], *, is_over: bool
    ) -> int | None:
        """Return where the loss had jumped for the first time without falling again; None if it never did.

        A jump to data that are harder is learned: the loss falls again at once. Until that can be seen, there is none.
        """
        high = high.copy()
        while (at := first_sustained(high, patience=self.patience)) is not None:
            begin = at - self.patience + 1
            end = min(at + self.recovery, len(values))
            if values[at] > self.limit:
                return at
            if end - at < self.recovery and not is_over:
                return None
            level = finite_median(values[begin : at + 1])
            later = finite_median(values[max(end - self.patience, at) : end])
            if not later - base[at] < self.recovered * (level - base[at]):
                return at
            high[:end] = False
        return None


@dataclass(frozen=True, kw_only=True)
class LossNotDecreasing(HealthRule):
    """The total loss is no lower than at the start of the run.

    Losses of both signs are not judged, and neither are totals whose terms have moved against each other, such as the
    summed losses of a generator and its critic.

    Attributes:
        metrics: losses to check.
    """

    metrics: Sequence[str] = TOTAL
    drop: float = threshold(
        0.01,
        unit="relative",
        reason="less than 1 % below the start is not progress (smdebug: 0.1 % over 10 steps)",
        source=SMDEBUG,
    )
    head: int = threshold(128, unit="recordings", reason="length of the initial mean")
    window: int = threshold(
        512, unit="recordings", reason="length of the current mean: views differ, so ten steps are not enough"
    )
    warmup: int = threshold(
        1000,
        unit="recordings",
        reason="learning rates warm up; smdebug's 10 steps fire on every warm-up. At most half of the planned steps",
    )
    least: int = threshold(60, unit="recordings", reason="a shorter run is judged by its end only")
    moved: float = threshold(
        0.05, unit="fraction of the initial loss", reason="a term that has changed by this much has been learned"
    )
    noise: float = threshold(
        0.05, unit="relative standard error", reason="above it, the spread between views dominates the comparison"
    )
    patience: int = threshold(64, unit="recordings", reason="the loss must stay at its initial value for this long")
    remedy: ClassVar[str] = (
        "The model predicts no better than a constant. Check that inputs and targets (labels) belong together and that "
        "the input carries information (its normalization, the encoding), that the optimizer holds the parameters that "
        "the loss depends on, and that no logit is clamped or saturated and no tensor detached; then try a learning "
        "rate ten times higher, and ten times lower."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where the first phase had lasted too long without progress."""
        # A run that continues a trained model does not start high, so it need not decrease. Where most targets are
        # noise, a loss hardly falls, although its evaluations show what was learned.
        if history.first >= LOOKBACK:
            return ()
        first = [span for span in spans(history, *self.metrics) if span.start == 0 and span.whole]
        found = tuple(found for span in first if (found := self._judge(history, span))) or self._flat(history)
        return () if found and shows_learning(history) else found

    def _flat(self, history: History) -> tuple[Finding, ...]:
        """Return a finding at the end of a run that is too short for the means, if its only loss has not moved."""
        loss = single_loss(history)
        if loss is None or not finished(history) or not self.least <= len(loss) < self.head + self.patience:
            return ()
        values = loss.values
        fallen = loss_reduction(history)
        part = max(len(values) // 10, 5)
        noise = float(np.nanstd(values)) / max(abs(float(np.nanmean(values))), 1e-12)
        if fallen is None or abs(fallen) > self.drop or noise > self.noise:
            return ()
        first = float(np.nanmedian(values[:part]))
        last = float(np.nanmedian(values[-part:]))
        text = (
            f"{tags.TOTAL} has not fallen: it is {number(last)} at the end, no lower than the {number(first)} at first."
        )
        return (self.finding(history.step, text, subject=tags.TOTAL),)

    def _judge(self, history: History, span: Span) -> Finding | None:
        values = span.values
        steps = span.series.steps
        planned = planned_steps(history)
        warmup = self.warmup if planned is None else max(min(self.warmup, planned // 2), self.head)
        if len(values) < warmup + self.patience or is_signed(values):
            return None
        head = values[: self.head][np.isfinite(values[: self.head])]
        began, spread = (float(head.mean()), float(head.std())) if len(head) else (0.0, 0.0)
        # Standard error of the difference between two means of independent recordings.
        if spread * np.sqrt(1 / self.head + 1 / self.window) > self.noise * began or began <= 0:
            return None
        # Compared with the start as soon as there are as many recordings as the head has.
        means = trailing_mean(values, self.window, least=min(self.window, self.head))
        stuck = means >= (1 - self.drop) * began
        if first_sustained(stuck, patience=self.patience, warmup=warmup) is None:
            return None
        stuck &= ~_reweighted(history, np.full(len(steps), steps[0]), steps)
        at = first_sustained(stuck, patience=self.patience, warmup=warmup)
        # A fast fall is over before the head is: the first recordings alone show it.
        later = values[self.head : (at or 0) + 1]
        usual = means[at] + 2 * noise(later) if at is not None and len(later) else np.inf
        if at is None or float(np.median(head[:3])) > (1 + self.moved) * usual:
            return None
        if self._terms_moved(history, steps[: at + 1], self.moved * began):
            return None
        text = (
            f"{span.name} has not fallen: it averages {number(means[at])}, no lower than the {number(began)} of its "
            f"first {self.head} recordings."
        )
        return self.finding(span.step(at), text, subject=span.name)

    def _terms_moved(self, history: History, steps: NDArray[np.float64], least: float) -> bool:
        """Return whether the mean of any of several terms has changed by more than ``least``."""
        names = list(tags.WEIGHTED.parts(history.names()).values())
        if len(names) < 2:
            return False
        width = min(self.window, self.head)
        for name in names:
            values = on_steps(history[name], steps)
            values = values[np.isfinite(values)]
            # Compared with the first recordings, because the terms of a game settle within a few steps.
            if len(values) > width and abs(values[-width:].mean() - values[: width // 8 + 1].mean()) > least:
                return True
        return False


@dataclass(frozen=True, kw_only=True)
class LossOscillating(HealthRule):
    """The total loss oscillates by more than its own value, averaged over blocks of steps.

    Losses of both signs are not judged, because their mean may be anything near 0.

    Attributes:
        metrics: losses to check.
    """

    metrics: Sequence[str] = TOTAL
    block: int = threshold(32, unit="steps", reason="the mean over a block averages out the spread between views")
    window: int = threshold(8, unit="blocks", reason="long enough for several oscillations")
    swing: float = threshold(1.0, unit="times the mean", reason="the range of the block means exceeds their mean")
    reversals: int = threshold(
        3, unit="reversals", reason="up, down, up, down: a steady fall or a single spike reverses less often"
    )
    floor: float = threshold(
        0.05,
        unit="times the highest block mean so far",
        reason="near zero loss, single batches move the mean without any harm",
    )
    warmup: int = threshold(4, unit="blocks", reason="the loss falls steeply at first")
    patience: int = threshold(2, unit="blocks", reason="one window with a wide range is not an oscillation")
    remedy: ClassVar[str] = "Lower the learning rate (halve it first), clip gradients, or use larger batches."

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where the oscillation began in each phase."""
        # The errors of a value network are small between the returns that it had not foreseen.
        if is_played(history):
            return ()
        return tuple(found for span in spans(history, *self.metrics) if (found := self._judge(span)))

    def _judge(self, span: Span) -> Finding | None:
        if is_signed(span.values):
            return None
        means, lasts = self._blocks(span)
        # Cheap test: no window can have a wider range than all blocks together.
        if len(means) < self.window + self.warmup or np.ptp(means) <= self.swing * means.min():
            return None
        windows = sliding_window_view(means, self.window)
        middle = windows.mean(axis=1)
        extent = windows.max(axis=1) - windows.min(axis=1)
        if not (extent > self.swing * middle).any():
            return None
        moves = np.diff(windows, axis=1)
        # Moves below a quarter of the mean are noise and do not count as reversals.
        large = np.where(np.abs(moves) > 0.25 * middle[:, None], np.sign(moves), 0.0)
        # A reversal is a change of sign between two consecutive large moves.
        turns = np.count_nonzero(large[:, 1:] * large[:, :-1] < 0, axis=1)
        # Highest block mean up to the end of each window.
        highest = np.maximum.accumulate(means)[self.window - 1 :]
        wild = (extent > self.swing * middle) & (turns >= self.reversals) & (middle > self.floor * highest)
        at = first_sustained(wild, patience=self.patience, warmup=self.warmup)
        if at is None:
            return None
        text = (
            f"{span.name} oscillated by {number(extent[at])} around {number(middle[at])}, reversing {turns[at]} times."
        )
        return self.finding(int(lasts[at + self.window - 1]), text, subject=span.name)

    def _blocks(self, span: Span) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the means over complete blocks of steps, and the last step of each block."""
        values = span.values
        steps = span.series.steps
        finite = np.isfinite(span.values)
        if not finite.all():
            values = values[finite]
            steps = steps[finite]
        if self.block == 1:
            return values, steps
        # First recording of each block.
        starts = np.flatnonzero(np.diff(np.floor(steps / self.block), prepend=-1))
        if not len(starts):
            return values, steps
        sums = np.add.reduceat(values, starts)
        counts = np.diff(starts, append=len(values))
        # The last block counts once it is complete.
        whole = len(starts) - ((steps[-1] + 1) % self.block != 0)
        return (sums / counts)[:whole], steps[starts + counts - 1][:whole]
