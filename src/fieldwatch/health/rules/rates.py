"""Rules for learning rates: far too high from the start, far too low, or raised suddenly."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fieldwatch.health.finding import Finding
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.rules.results import loss_reduction
from fieldwatch.health.thresholds import threshold
from fieldwatch.health.window import LOOKBACK, finished, is_signed, on_steps
from fieldwatch.record import History, Series, tags


def highest_rate(history: History, head: int = 64) -> float | None:
    """Return the highest learning rate of all groups in the first recordings; None if none is recorded."""
    names = tags.LEARNING_RATE.parts(history.names()).values()
    # The first rate alone is 0 if the rates warm up.
    return max((float(np.nanmax(history[name].values[:head])) for name in names), default=None)


def _initial_terms(history: History) -> Series | None:
    """Return the sum of the terms that act from the start, None if it is unknown or weights have been raised.

    A term that starts later raises the total without any fault.
    """
    if tags.TOTAL not in history or history[tags.TOTAL].steps[0] > max(history.first, 0):
        return None
    total = history[tags.TOTAL]
    terms = {
        term: history[name]
        for term, name in tags.WEIGHTED.parts(history.names()).items()
        if history[name].steps[0] <= max(history.first, 0)
    }
    weights = [history[tags.WEIGHT.tag(term)].values for term in terms if tags.WEIGHT.tag(term) in history]
    if any(float(np.nanmax(weight)) > 1.5 * float(weight[0]) for weight in weights):
        return None
    if not terms:
        return total
    parts = np.stack([on_steps(series, total.steps) for series in terms.values()])
    values = np.where(np.isfinite(parts), parts, 0.0).sum(axis=0)
    return Series(steps=total.steps, seconds=total.seconds, positions=total.positions, values=values)


@dataclass(frozen=True, kw_only=True)
class RateTooHigh(HealthRule):
    """The loss rises to many times its first value early in training: the updates destroy the initial model."""

    rise: float = threshold(
        10.0,
        unit="times the first loss",
        reason="batches differ by less, and a random initialization is hard to make ten times worse",
    )
    head: int = threshold(32, unit="recordings", reason="the updates of the first steps are the largest with Adam")
    slow: float = threshold(
        2.5,
        unit="times the first loss",
        reason="enough if the loss also ends above its start: the run never recovered",
    )
    early: float = threshold(0.25, unit="fraction of the steps", reason="a later rise has another cause")
    far: float = threshold(
        100.0, unit="times the first loss", reason="beyond it, the rate is two orders of magnitude too high, else one"
    )
    remedy: ClassVar[str] = "Lower the learning rate by a factor of 10 to 100, and warm it up over the first steps."

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return the step at which the loss had risen."""
        rate = highest_rate(history)
        series = _initial_terms(history)
        if history.first >= LOOKBACK or not rate or series is None:
            return ()
        values = series.values
        if is_signed(values) or not values[0] > 0:
            return ()
        early = series[: self.head]
        high = np.flatnonzero(early.values > self.rise * values[0])
        if not len(high) and finished(history) and len(values) >= self.head and self._stayed_high(history, values):
            early = series[: max(int(self.early * len(values)), self.head)]
            high = np.flatnonzero(early.values > self.slow * values[0])
        return (self._describe(tags.TOTAL, early, int(high[0]), rate),) if len(high) else ()

    def _stayed_high(self, history: History, values: NDArray[np.float64]) -> bool:
        """Return whether the loss ended above its start, and no term was won against another."""
        names = tags.WEIGHTED.parts(history.names()).values()
        ends = [(history[name].values[:3], history[name].values[-max(len(values) // 10, 1) :]) for name in names]
        # In a game, one side loses what the other wins.
        fell = any(float(np.nanmedian(end)) < 0.5 * float(np.nanmedian(start)) for start, end in ends)
        return not fell and bool(np.nanmedian(values[-max(len(values) // 10, 1) :]) > np.nanmedian(values[:3]))

    def _describe(self, name: str, series: Series, at: int, rate: float) -> Finding:
        values = series.values
        times = float(np.nanmax(values)) / float(values[0])
        text = (
            f"{name} rose from {values[0]:.4g} to {np.nanmax(values):.4g} within the first {len(values)} steps "
            f"({times:.3g} times): the learning rate of {rate:g} is far too high."
        )
        advised = rate / (100 if times > self.far else 10)
        remedy = f"Start with learning rate {advised:.2g}, warm it up over the first steps, and clip gradients."
        return replace(self.finding(int(series.steps[at]), text, subject=name), remedy=remedy)


@dataclass(frozen=True, kw_only=True)
class RateTooLow(HealthRule):
    """The loss hardly falls, and the updates of all groups are tiny relative to their parameters."""

    ratio: float = threshold(
        1e-4, unit="update / parameter norm", reason="a tenth of the usual 1e-3: 10,000 steps to change the parameters"
    )
    fall: float = threshold(
        0.05, unit="fraction of the initial loss", reason="a loss that falls further is training, if slowly"
    )
    count: int = threshold(3, unit="recordings", reason="single small updates are no trend")
    remedy: ClassVar[str] = "Raise the learning rate by a factor of 10 to 1000, until updates are about 1e-3."

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a finding at the end of the run."""
        ratios = [history[name].values for name in tags.UPDATE_RATIO.parts(history.names()).values()]
        rate = highest_rate(history)
        if not finished(history) or not ratios or not rate or max(map(len, ratios)) < self.count:
            return ()
        highest = max(float(np.nanmedian(values)) for values in ratios)
        fallen = loss_reduction(history)
        if fallen is None or fallen > self.fall or not 0 < highest < self.ratio:
            return ()
        text = (
            f"{tags.TOTAL} fell by {max(fallen, 0.0):.1%} in the whole run, and an update changes the parameters by "
            f"{highest:.2g} of their norm: the learning rate of {rate:g} is far too low."
        )
        # Updates are proportional to the rate.
        advised = rate * min(max(1e-3 / highest, 10), 1000)
        remedy = f"Raise it to learning rate {advised:.2g}: updates of about 1e-3 of the parameter norm are usual."
        return (replace(self.finding(history.step, text, subject=tags.TOTAL), remedy=remedy),)
