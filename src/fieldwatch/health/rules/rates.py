"""Rules for learning rates: far too high from the start, far too low, or raised suddenly."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import number, percent
from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.outcomes import first_step, has_improved, is_played, late, loss_reduction, mean_until
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.rules.gradients import GradientVanishing
from fieldwatch.health.rules.poor_results import ends_poorly, has_stalled
from fieldwatch.health.rules.terms import TermNotLearned
from fieldwatch.health.thresholds import threshold
from fieldwatch.health.window import LOOKBACK, finished, first_sustained, is_signed, on_steps
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
    start = first_step(history)
    if tags.TOTAL not in history or history[tags.TOTAL].steps[0] > start:
        return None
    total = history[tags.TOTAL]
    terms = {
        term: history[name]
        for term, name in tags.WEIGHTED.parts(history.names()).items()
        if history[name].steps[0] <= start
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
    patience: int = threshold(
        2, unit="recordings", reason="a single batch may hold a sample whose loss is far above all others"
    )
    slow: float = threshold(
        2.5,
        unit="times the first loss",
        reason="enough if the loss also ends above its start: the run never recovered",
    )
    early: float = threshold(0.25, unit="fraction of the steps", reason="a later rise has another cause")
    ratio: float = threshold(
        0.03,
        unit="update / parameter norm (median of the first half)",
        reason="30 times the usual 1e-3: parameters are overwritten every 30 steps; healthy runs stay below 0.02",
        source="measured by benchmarks/verdicts.py",
    )
    usual: float = threshold(
        0.1, unit="update / parameter norm", reason="a policy with smaller updates is not destroyed by its rate"
    )
    learned: float = threshold(
        0.2, unit="fraction of the first loss", reason="a loss that has fallen further has learned under this rate"
    )
    flat: float = threshold(
        0.8,
        unit="times an earlier loss",
        reason="enough if the loss stopped falling after a tenth of the run",
    )
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
        if is_played(history, self.usual):
            return ()
        early = series[: self.head]
        at = self._blown_up(early.values, float(values[0]))
        # Tasks that become harder on purpose (longer sequences) raise the loss while results improve.
        late = finished(history) and len(values) >= self.head and not has_improved(history)
        if at is None and late and self._stayed_high(history, values):
            early = series[: max(int(self.early * len(values)), self.head)]
            at = first_sustained(early.values > self.slow * values[0], patience=self.patience)
        if at is not None:
            return (self._describe(history, early, at, rate),)
        return self._overwritten(history, values, rate)

    def _blown_up(self, values: NDArray[np.float64], first: float) -> int | None:
        """Return where the loss had risen for two recordings in a row; None if it never did.

        One is not enough, since a single batch may hold a sample whose loss is far above all others.
        """
        followed = (values[:-1] > self.rise * first) & (values[1:] > self.slow * first)
        at = np.flatnonzero(followed)
        return int(at[0]) + 1 if len(at) else None

    def _overwritten(self, history: History, values: NDArray[np.float64], rate: float) -> tuple[Finding, ...]:
        """Return a finding at the end of the run if updates were large and the loss stood still under them."""
        ratios = [history[name].values for name in tags.UPDATE_RATIO.parts(history.names()).values()]
        if not finished(history) or not ratios or max(map(len, ratios)) < 4:
            return ()
        largest = max(float(np.nanmedian(each[: max(len(each) // 2, 1)])) for each in ratios)
        count = len(values)
        early = float(np.nanmean(values[count // 20 : count // 6 + 1]))
        later = float(np.nanmean(values[2 * count // 5 : 3 * count // 5 + 1]))
        # In a game, the losses of the players stand still while they learn.
        if len(ratios) > 1 and len(tags.WEIGHTED.parts(history.names())) > 1:
            return ()
        if largest < self.ratio or later < self.flat * early or later < self.learned * float(values[0]):
            return ()
        text = (
            f"an update changes the parameters by {number(largest, 2)} of their norm, and {tags.TOTAL} stood still at "
            f"{number(later)} meanwhile: the learning rate of {rate:g} is far too high."
        )
        # Updates are proportional to the rate.
        advised = rate * 1e-3 / largest if largest < 1 else rate / 1000
        remedy = (
            f"Start with learning rate {number(max(advised, rate / 1000), 2)}, and warm it up over the first steps."
        )
        return (replace(self.finding(history.step, text, subject=tags.TOTAL), remedy=remedy),)

    def _stayed_high(self, history: History, values: NDArray[np.float64]) -> bool:
        """Return whether the loss ended above its start, and no term was won against another."""
        names = tags.WEIGHTED.parts(history.names()).values()
        ends = [(history[name].values[:3], history[name].values[-max(len(values) // 10, 1) :]) for name in names]
        # In a game, one side loses what the other wins.
        fell = any(float(np.nanmedian(end)) < 0.5 * float(np.nanmedian(start)) for start, end in ends)
        return not fell and bool(np.nanmedian(values[-max(len(values) // 10, 1) :]) > np.nanmedian(values[:3]))

    def _describe(self, history: History, series: Series, at: int, rate: float) -> Finding:
        name = tags.TOTAL
        values = series.values
        times = float(np.nanmax(values)) / float(values[0])
        text = (
            f"{name} rose from {number(values[0])} to {number(np.nanmax(values))} within the first {len(values)} steps "
            f"({number(times, 3)} times): the learning rate of {rate:g} is far too high."
        )
        factor = 100 if times > self.far else 10
        if _died(history):
            factor = 300
            text += " The gradients were gone after the first updates: they have killed the units."
        advised = rate / factor
        remedy = f"Start with learning rate {number(advised, 2)}, warm it up over the first steps, and clip gradients."
        return replace(self.finding(int(series.steps[at]), text, subject=name), remedy=remedy)


def _died(history: History) -> bool:
    """Return whether the gradient norm fell to nothing within the first updates."""
    if tags.TOTAL_NORM not in history or len(history[tags.TOTAL_NORM]) < _DEAD_STEPS:
        return False
    norms = history[tags.TOTAL_NORM].values
    return float(np.nanmedian(norms[_DEAD_STEPS // 2 : _DEAD_STEPS])) < _DEAD * float(norms[0])


_DEAD_STEPS = 32
_DEAD = 1e-5
"""Fraction of the first gradient norm that is left when all units are dead."""


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
            f"{tags.TOTAL} fell by {percent(max(fallen, 0.0))} in the whole run, and an update changes the "
            "parameters by "
            f"{number(highest, 2)} of their norm: the learning rate of {rate:g} is far too low."
        )
        # Updates are proportional to the rate.
        advised = rate * min(max(1e-3 / highest, 10), 1000)
        remedy = (
            f"Raise it to learning rate {number(advised, 2)}: updates of about 1e-3 of the parameter norm are usual."
        )
        return (replace(self.finding(history.step, text, subject=tags.TOTAL), remedy=remedy),)


@dataclass(frozen=True, kw_only=True)
class GroupTooSlow(HealthRule):
    """The updates of one parameter group are tiny next to those of another one, and the run ends poorly."""

    ratio: float = threshold(
        1e-4, unit="update / parameter norm", reason="a tenth of the usual 1e-3: 10,000 steps to change the parameters"
    )
    apart: float = threshold(
        30.0, unit="times", reason="pretrained parts are trained with a tenth of the rate of new ones, rarely with less"
    )
    count: int = threshold(3, unit="recordings", reason="single small updates are no trend")
    remedy: ClassVar[str] = (
        "Raise the learning rate of the named group until its updates are about 1e-3 of its parameters; the players of "
        "a game (a generator and its critic) need updates of similar size."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, the slowest group."""
        ratios = {
            group: float(np.nanmedian(history[name].values))
            for group, name in tags.UPDATE_RATIO.parts(history.names()).items()
            # A group with a rate of its own name has been given that rate on purpose.
            if len(history[name]) >= self.count and tags.LEARNING_RATE.tag(group) not in history
        }
        if not finished(history) or len(ratios) < 2:
            return ()
        group = min(ratios, key=lambda each: ratios[each])
        fastest = max(ratios, key=lambda each: ratios[each])
        # Parameters that do not change at all have other causes than their rate.
        if not 0 < ratios[group] < self.ratio or ratios[fastest] < self.apart * ratios[group]:
            return ()
        if not ends_poorly(history) and not TermNotLearned()(history):
            return ()
        # Without a gradient, updates are tiny at any rate.
        if any(finding.subject in (group, tags.TOTAL_NORM) for finding in GradientVanishing()(history)):
            return ()
        text = (
            f"an update changes group '{group}' by {number(ratios[group], 2)} of its norm, but '{fastest}' by "
            f"{number(ratios[fastest], 2)}: '{group}' hardly learns."
        )
        return (self.finding(history.step, text, subject=group),)


@dataclass(frozen=True, kw_only=True)
class RateEndsEarly(HealthRule):
    """All learning rates have fallen to nearly 0 long before the end of the run.

    A warning if that is most of the run, or if the result is poor; otherwise a note.
    """

    severity: ClassVar[Severity] = "note"
    share: float = threshold(
        1e-3, unit="fraction of the highest rate", reason="schedules end at 0.01 to 0.001 of it, at their last steps"
    )
    part: float = threshold(0.25, unit="fraction of the steps", reason="schedules reach their end in the last tenth")
    most: float = threshold(0.6, unit="fraction of the steps", reason="so long at rest is no schedule's intention")
    low: float = threshold(
        0.05,
        unit="fraction of the highest rate",
        reason="enough if the loss has stalled since: a schedule ends below it for the last sixth (cosine)",
    )
    lower: float = threshold(0.4, unit="fraction of the steps", reason="step schedules fall so far in the last third")
    remedy: ClassVar[str] = (
        "Check how often scheduler.step() is called and the unit of its length: a schedule that counts epochs "
        "(T_max, step_size, total_iters, gamma per epoch) ends too early if it is stepped after every batch. Make the "
        "schedule as long as the run."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a finding at the end of the run."""
        names = tags.LEARNING_RATE.parts(history.names()).values()
        if not finished(history) or not names:
            return ()
        ends = [_last_above(history[name], self.share) for name in names]
        last = max(ends)
        rest = self._rest(history, last)
        if rest < self.part:
            last = max(_last_above(history[name], self.low) for name in names)
            rest = self._rest(history, last)
            if rest < self.lower or not (ends_poorly(history) or has_stalled(history)):
                return ()
            text = (
                f"the learning rate has been below {self.low:g} of its highest value since step {last + 1}, for "
                f"{percent(rest, 0)} of the run, and {tags.TOTAL} has stood still: it was lowered too early."
            )
            finding = self.finding(history.step, text, severity="warning")
            return (replace(finding, remedy=f"{_PLATEAU} {self.remedy}"),)
        severity: Severity = "warning" if rest >= self.most or ends_poorly(history) else "note"
        text = (
            f"the learning rate has been below {self.share:g} of its highest value since step {last + 1}, for "
            f"{percent(rest, 0)} of the run: its schedule ended too early."
        )
        return (self.finding(history.step, text, severity=severity),)

    def _rest(self, history: History, last: int) -> float:
        """Return the fraction of the run behind a step."""
        return 1 - (last + 1 - max(history.first, 0)) / max(history.step + 1 - max(history.first, 0), 1)


_PLATEAU = (
    "If the schedule waits for a plateau (ReduceLROnPlateau), check its mode ('min' for a loss, 'max' for an "
    "accuracy), its patience, and how often scheduler.step(metric) is called."
)


@dataclass(frozen=True, kw_only=True)
class RateStartsLate(HealthRule):
    """All learning rates are far below their highest value for most of the run: the warm-up is too long.

    A warning if the result is poor, otherwise a note.
    """

    severity: ClassVar[Severity] = "note"
    share: float = threshold(0.2, unit="fraction of the highest rate", reason="one-cycle schedules start at 0.04 of it")
    part: float = threshold(0.5, unit="fraction of the steps", reason="schedules warm up over at most a third")
    jump: float = threshold(5.0, unit="times the rate before", reason="a warm-up rises in many small steps")
    rise: float = threshold(
        1.5, unit="times the rate at half of the run", reason="a rate that rises to the last step was to rise further"
    )
    remedy: ClassVar[str] = (
        "Shorten the warm-up to 1 to 10 % of the run, and check the unit of its length (steps or epochs) and how often "
        "scheduler.step() is called."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a finding at the end of the run."""
        names = tags.LEARNING_RATE.parts(history.names()).values()
        if not finished(history) or not names or history.first >= LOOKBACK:
            return ()
        firsts: list[float] = []
        for name in names:
            rates = history[name]
            high = np.flatnonzero(rates.values > self.share * np.nanmax(rates.values))
            first = int(high[0]) if len(high) else 0
            # A warm-up rises step by step; what rises at once is not one, and `RateJump` reports it.
            jumps = first > 0 and rates.values[first] > self.jump * rates.values[first - 1]
            # A rate that is high from the first value that is kept has risen before.
            firsts.append(0.0 if jumps or first == 0 else float(rates.steps[first]))
        part = min(firsts) / max(history.step, 1)
        if self._destroys(history, min(firsts)):
            return ()
        if part >= self.part:
            text = (
                f"the learning rate was below {self.share:g} of its highest value for the first {percent(part, 0)} of "
                "the run: its warm-up is too long."
            )
        elif all(self._rises(history[name].values) for name in names):
            first, last = history[next(iter(names))].values[[0, -1]]
            text = (
                f"the learning rate still rises at the last step, from {number(first, 2)} to {number(last, 2)}: its "
                "warm-up is longer than the run, so the rate has stayed too low."
            )
        else:
            return ()
        severity: Severity = "warning" if ends_poorly(history) or has_stalled(history) else "note"
        return (self.finding(history.step, text, severity=severity),)

    def _destroys(self, history: History, step: float) -> bool:
        """Return whether the loss is higher at the end than before the rate was high: it is too high, not too late."""
        if step <= 0 or tags.TOTAL not in history:
            return False
        loss = history[tags.TOTAL]
        return late(loss) > mean_until(loss, step)

    def _rises(self, rates: NDArray[np.float64]) -> bool:
        """Return whether a rate never falls, never jumps, and is far above that of half of the run at the end."""
        middle = float(rates[len(rates) // 2])
        rising = bool((np.diff(rates) >= 0).all())
        jumps = bool((rates[1:] > self.jump * rates[:-1])[rates[:-1] > 0].any())
        return rising and not jumps and middle > 0 and float(rates[-1]) > self.rise * middle


def _last_above(rates: Series, share: float) -> int:
    """Return the last step at which a rate was above a fraction of its highest value."""
    high = np.flatnonzero(rates.values > share * np.nanmax(rates.values))
    return int(rates.steps[high[-1]]) if len(high) else -1


@dataclass(frozen=True, kw_only=True)
class AlwaysClipped(HealthRule):
    """Clipping scales the gradients down to a small part at nearly every step, so that the limit sets the step size.

    A warning if the result is poor at the end, otherwise a note.
    """

    severity: ClassVar[Severity] = "note"
    scale: float = threshold(
        0.05, unit="factor of the clipping", reason="limits are set near the usual norm; 1 at most steps is healthy"
    )
    share: float = threshold(0.9, unit="fraction of the steps", reason="nearly all steps, from the first to the last")
    least: int = threshold(100, unit="recordings", reason="the first gradients are large")
    remedy: ClassVar[str] = (
        "Raise the limit of the clipping to about the usual Gradients/total_norm (step.update(..., clip=1.0) is "
        "common), or raise the learning rate; with loss scaling, unscale the gradients before they are clipped."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a finding at the end of the run."""
        if not finished(history) or tags.CLIP_SCALE not in history:
            return ()
        scales = history[tags.CLIP_SCALE].values
        if len(scales) < self.least or float(np.mean(scales < self.scale)) < self.share:
            return ()
        severity: Severity = "warning" if ends_poorly(history) else "note"
        text = (
            f"clipping scaled the gradients by {number(float(np.nanmedian(scales)), 2)} (median), at nearly every step."
        )
        return (self.finding(history.step, text, subject=tags.CLIP_SCALE, severity=severity),)
