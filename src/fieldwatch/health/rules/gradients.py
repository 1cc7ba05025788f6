"""Rules for gradient norms, their balance between groups, and the size of updates."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import number
from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.rules.poor_results import ends_poorly
from fieldwatch.health.thresholds import SMDEBUG, threshold
from fieldwatch.health.window import (
    Span,
    between,
    finished,
    finite_median,
    first_sustained,
    on_steps,
    phases,
    spans,
    trailing_mean,
)
from fieldwatch.record import History, Series, tags

TOTAL_NORM = (tags.TOTAL_NORM,)
_LARGE_UNITS = (
    "The norm has been far too large from the first steps on, as where a loss is one of numbers in a large unit: scale "
    "the targets to mean 0 and standard deviation 1 (and the answers back for an evaluation), or give the term of the "
    "loss a smaller weight, so that other terms count as well."
)
_CONVERGED = (
    "Nothing, if the result is good. If it is not, the loss is small where the result is poor: compare what the loss "
    "measures with what the evaluation does."
)
_UNBOUNDED = (
    "If the loss divides, as an overlap (Dice) or a ratio does, give it what it is defined for: probabilities (sigmoid "
    "or softmax of the logits), so that its denominator stays away from 0."
)


def group_norms(history: History) -> Mapping[str, str]:
    """Return the recorded gradient norms of parameter groups, as metric names by group."""
    return tags.GROUP_NORM.parts(history.names())


def decayed(history: History, group: str, steps: NDArray[np.float64], share: float) -> NDArray[np.bool_]:
    """Return for each step whether the group's learning rate is below a fraction of its maximum so far.

    If no rate is recorded under the name of the group, the optimizer's groups have other names or none: then all
    recorded rates have to be below the fraction.
    """
    name = tags.LEARNING_RATE.tag(group)
    names = [name] if name in history else list(tags.LEARNING_RATE.parts(history.names()).values())
    low = np.full(len(steps), bool(names))
    for rates in (history[each] for each in names):
        highest = np.maximum.accumulate(rates.values)
        # Learning rates may be recorded less often than gradients: use the last recording up to each step.
        positions = np.searchsorted(rates.steps, steps, side="right") - 1
        low &= (positions >= 0) & (rates.values[positions] < share * highest[positions])
    return low


@dataclass(frozen=True, kw_only=True)
class GradientVanishing(HealthRule):
    """The gradient norm is too small to train.

    Attributes:
        metrics: gradient norms to check.
        loss: loss metric. If it has fallen by a factor of ``learned``, the fit may have converged and the finding is a
            note. Empty to disable this check.
    """

    metrics: Sequence[str] = TOTAL_NORM
    loss: str = tags.TOTAL
    learned: float = threshold(
        10.0,
        unit="times",
        reason="a converged L2 fit ends with small gradients; if `loss` fell by this factor, the finding is a note",
    )
    low: float = threshold(
        1e-7,
        unit="gradient norm",
        reason="below it, float32 updates vanish; losses averaged over pixels make 1e-3 normal",
        source=SMDEBUG,
    )
    faded: float = threshold(
        1000.0,
        unit="times",
        reason=(
            "a norm that was this much higher at first has vanished because the fit converged, if the loss halved; a "
            "saturated or underflowing model starts with small norms"
        ),
    )
    depth: float = threshold(
        1e-7,
        unit="fraction of the largest group norm",
        reason="below the resolution of float32 relative to the other groups: the group learns nothing from the loss",
    )
    warmup: int = threshold(16, unit="recordings", reason="the first steps may have no gradient")
    patience: int = threshold(32, unit="recordings", reason="a single empty batch is not a trend")
    remedy: ClassVar[str] = (
        "Check for saturated activations (replace sigmoids by ReLU, add normalization or residual connections, check "
        "the initialization), a term scaled down by a mean over too many elements, detached tensors and "
        "float16 underflow; raise the loss scale or the weight of the term."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where each norm had been below ``low``, or far below those of the other groups, for too long."""
        found = [self._judge(history, span) for span in spans(history, *self.metrics)]
        return tuple(finding for finding in (*found, *self._in_depth(history)) if finding)

    def _judge(self, history: History, span: Span) -> Finding | None:
        at = first_sustained(span.values < self.low, patience=self.patience, warmup=self.warmup)
        if at is None:
            return None
        text = (
            f"{span.name} is vanishing: {number(span.values[at], 3)}, below {self.low:g} {self.patience} times in a "
            "row."
        )
        reduction = self._loss_reduction(history, span.step(at))
        began = float(np.nanmedian(span.values[: self.warmup]))
        has_faded = began > self.faded * float(span.values[at])
        if reduction < (2.0 if has_faded else self.learned):
            return self.finding(span.step(at), text, subject=span.name)
        text += f" {self.loss} has fallen by a factor of {number(reduction, 3)}, so the fit may have converged."
        note = self.finding(span.step(at), text, subject=span.name, severity="note")
        return replace(note, remedy=_CONVERGED)

    def _in_depth(self, history: History) -> Iterator[Finding]:
        """Yield the groups whose norms are negligible next to those of the largest group."""
        groups = {name: group for group, name in group_norms(history).items()}
        if len(groups) < 2:
            return
        # No group can be negligible that never falls below this, which is cheap to know.
        bound = self.depth * max(np.nanmax(history[name].values, initial=0.0) for name in groups)
        for span in spans(history, *groups):
            if not np.any((span.values > 0) & (span.values < bound)):
                continue
            steps = span.series.steps
            largest = np.zeros(len(steps))
            for name in groups:
                # fmax ignores NaN: a group that has no gradient at a step must not hide the others.
                largest = np.fmax(largest, on_steps(history[name], steps))
            tiny = (span.values > 0) & (span.values < self.depth * largest)
            at = first_sustained(tiny, patience=self.patience, warmup=self.warmup)
            if at is not None:
                group = groups[span.name]
                text = (
                    f"the gradient of group '{group}' vanishes: its norm is {number(span.values[at], 2)}, that of "
                    "the largest "
                    f"group {number(largest[at], 2)}."
                )
                yield self.finding(span.step(at), text, subject=group)

    def _loss_reduction(self, history: History, step: int) -> float:
        """Return the factor by which the loss has fallen up to a step; 0 if it is not recorded."""
        if self.loss not in history:
            return 0.0
        losses = history[self.loss]
        values = losses.values[losses.steps <= step]
        # Medians, because a single batch may be easy or hard.
        width = max(min(self.warmup, len(values) // 4), 1)
        last = float(np.nanmedian(values[-width:])) if len(values) else 0.0
        return float(np.nanmedian(values[:1])) / last if last > 0 else 0.0


def _at_rate(history: History) -> str:
    """Return the highest learning rate of the first steps in words; empty if none is recorded."""
    names = tags.LEARNING_RATE.parts(history.names()).values()
    rate = max((float(np.nanmax(history[name].values[:32])) for name in names), default=0.0)
    return f" (at a learning rate of {rate:g})" if rate else ""


@dataclass(frozen=True, kw_only=True)
class GradientExploding(HealthRule):
    """The gradient norm is far above its moving baseline, or above any useful value.

    Attributes:
        metrics: gradient norms to check.
    """

    metrics: Sequence[str] = TOTAL_NORM
    high: float = threshold(
        100.0, unit="gradient norm", reason="losses averaged over pixels or rays stay well below it"
    )
    ratio: float = threshold(
        10.0,
        unit="times the baseline",
        reason="required in addition, because losses summed over pixels have large gradients from the start",
    )
    ceiling: float = threshold(
        1e6, unit="gradient norm", reason="above it, the norm counts as exploding for any baseline"
    )
    window: int = threshold(64, unit="recordings", reason="length of the moving baseline")
    warmup: int = threshold(32, unit="recordings", reason="gradients of the first steps are large")
    patience: int = threshold(8, unit="recordings", reason="clipping handles single large gradients")
    peak: float = threshold(
        50.0, unit="times the later median", reason="first gradients are larger, but not by this much"
    )
    extreme: float = threshold(
        1000.0, unit="times the later median", reason="enough if the result is poor: such an update is a jump"
    )
    slow: float = threshold(
        3e-4, unit="update / parameter norm", reason="a third of the usual 1e-3, and well below that of healthy runs"
    )
    remedy: ClassVar[str] = "Clip the gradient norm (step.update(..., clip=1.0)) and lower the learning rate."

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where each norm had been above ``high`` for too long."""
        found = tuple(found for span in spans(history, *self.metrics) if (found := self._judge(span)))
        return found or self._at_start(history)

    def _at_start(self, history: History) -> tuple[Finding, ...]:
        """Return a finding at the end of the run if its first gradients have slowed all later updates.

        Adam divides by a mean of squares that remembers a gradient for about 1,000 steps.
        """
        ratios = [history[name].values for name in tags.UPDATE_RATIO.parts(history.names()).values()]
        if not finished(history) or not ratios or tags.CLIP_SCALE in history or tags.TOTAL_NORM not in history:
            return ()
        norms = history[tags.TOTAL_NORM]
        if norms.steps[0] > 0 or len(norms) < 2 * self.warmup:
            return ()
        peak = float(np.max(norms.values[: self.warmup]))
        usual = float(np.nanmedian(norms.values[self.warmup :]))
        largest = max(float(np.nanmedian(each)) for each in ratios)
        if peak > self.high and peak > self.extreme * usual and ends_poorly(history):
            text = (
                f"{tags.TOTAL_NORM} exploded to {number(peak)} within the first {self.warmup} steps, "
                f"{number(peak / max(usual, 1e-30), 2)} times its usual {number(usual, 3)}: the first updates"
                f"{_at_rate(history)} have destroyed the initial model."
            )
            finding = self.finding(history.step, text, subject=tags.TOTAL_NORM)
            return (replace(finding, remedy=f"{self.remedy} {_UNBOUNDED}"),)
        if not (peak > self.high and peak > self.peak * usual and 0 < largest < self.slow):
            return ()
        text = (
            f"{tags.TOTAL_NORM} exploded to {number(peak)} within the first {self.warmup} steps and is "
            f"{number(usual, 3)} since: "
            "an optimizer that divides by the squares of past gradients takes tiny steps now "
            f"({number(largest, 2)} of the "
            "parameters)."
        )
        return (self.finding(history.step, text, subject=tags.TOTAL_NORM),)

    def _judge(self, span: Span) -> Finding | None:
        values = span.values
        # The moving baseline is computed only if enough values are high at all.
        if np.count_nonzero(values > self.high) < self.patience:
            return None
        high = values > self.high
        grown = high
        if self.ratio > 0:
            # The lag keeps the explosion itself out of its baseline.
            base = trailing_mean(values, self.window, least=min(self.warmup, self.window), lag=self.patience)
            grown = values > self.ratio * base
            high &= grown | (values > self.ceiling)
        at = first_sustained(high & np.isfinite(values), patience=self.patience, warmup=self.warmup)
        if at is None:
            return None
        text = f"{span.name} is exploding: {number(values[at])}, above {self.high:g} {self.patience} times in a row."
        found = self.finding(span.step(at), text, subject=span.name)
        first = finite_median(values[: self.patience])
        if span.whole and not grown[at] and first > self.ratio * self.high:
            return replace(found, remedy=f"{_LARGE_UNITS} {self.remedy}")
        return found


@dataclass(frozen=True, kw_only=True)
class GroupImbalance(HealthRule):
    """The gradient norms of two parameter groups (heads) differ by an order of magnitude.

    A note up to ``far`` times, since a heavy term may be meant; a warning beyond it, or if the result is poor at the
    end.

    Attributes:
        metrics: recorded ratios to check.
        groups: groups whose recorded norms are compared pairwise. There is no default, because norms of groups with
            different units (positions, opacities) are not comparable.
    """

    general: ClassVar[bool] = False
    metrics: Sequence[str] = ()
    groups: Sequence[str] = ()
    low: float = threshold(
        0.1, unit="ratio of norms", reason="an order of magnitude: beyond it, one of the two groups hardly learns"
    )
    high: float = threshold(10.0, unit="ratio of norms", reason="the inverse of `low`")
    far: float = threshold(
        30.0,
        unit="ratio of norms, or its inverse",
        reason="14 in a healthy run that weighs absolute errors against a term of its own",
        source="measured by benchmarks/verdicts.py",
    )
    warmup: int = threshold(3, unit="recordings", reason="a head that has just started is out of balance")
    patience: int = threshold(3, unit="recordings", reason="a single unbalanced recording is not a trend")
    remedy: ClassVar[str] = (
        "Raise the weight of the term that trains the weaker group until the ratio is within 0.1 to 10, or use a "
        "separate learning rate for each group."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where each ratio had been outside ``low`` to ``high`` for too long."""
        findings = [self._judge(history, span, span.values, span.name) for span in spans(history, *self.metrics)]
        for first, second in combinations(self.groups, 2):
            name = tags.GRADIENT_NORM.tag(second)
            for span in spans(history, tags.GRADIENT_NORM.tag(first)):
                below = on_steps(history[name], span.series.steps) if name in history else span.values * np.nan
                # NaN compares as False, so a missing norm is never out of balance.
                ratio = np.divide(span.values, below, out=np.full(len(below), np.nan), where=below > 0)
                findings.append(self._judge(history, span, ratio, f"{first}/{second}"))
        return tuple(finding for finding in findings if finding)

    def _judge(self, history: History, span: Span, ratio: NDArray[np.float64], subject: str) -> Finding | None:
        out = (ratio < self.low) | (ratio > self.high)
        at = first_sustained(out, patience=self.patience, warmup=self.warmup)
        if at is None:
            return None
        text = (
            f"gradient ratio {subject} is {number(ratio[at], 3)}, outside {self.low:g} to {self.high:g}: out of "
            "balance."
        )
        beyond = (ratio < 1 / self.far) | (ratio > self.far)
        is_far = first_sustained(beyond, patience=self.patience, warmup=self.warmup) is not None
        severity: Severity = "warning" if is_far or ends_poorly(history) else "note"
        return self.finding(span.step(at), text, subject=subject, severity=severity)


@dataclass(frozen=True, kw_only=True)
class DeadGroup(HealthRule):
    """A parameter group that used to receive gradients no longer does."""

    patience: int = threshold(200, unit="recordings", reason="a group may be updated only every few steps")
    least: int = threshold(
        16,
        unit="recordings with a gradient",
        reason="parameters that were just unfrozen are a group of their own until their module is scanned again",
    )
    handover: int = threshold(
        2,
        unit="steps",
        reason="a group that appears when another ends has taken over its parameters, as an unfreeze does",
    )
    remedy: ClassVar[str] = (
        "Check that the group still contributes to the loss: were its parameters replaced, is a tensor detached, is an "
        "activation saturated? To stop training it on purpose, freeze it at a phase border."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, per group and phase, where it had been without a gradient for too long."""
        groups = group_norms(history)
        if not groups:
            return ()
        bounds = phases(history)
        recordings = [
            (group, last, part)
            for group, name in groups.items()
            for first, last in bounds
            if len(part := between(history[name], first, last))
        ]
        begun = {group: float(history[name].steps[0]) for group, name in groups.items()}
        return tuple(
            found
            for group, last, part in recordings
            if not self._handed_over(group, part, begun) and (found := self._judge(group, part, last))
        )

    def _handed_over(self, group: str, series: Series, begun: Mapping[str, float]) -> bool:
        """Return whether another group appeared when this one ended: its parameters were regrouped or unfrozen."""
        end = float(series.steps[-1])
        return any(other != group and abs(start - end) <= self.handover for other, start in begun.items() if start > 0)

    def _judge(self, group: str, series: Series, last: int) -> Finding | None:
        nonzero = np.count_nonzero(series.values)
        if nonzero < self.least:
            return None
        known = int(series.steps[-1])
        # Parameters without a gradient (grad is None) are not recorded at all.
        if last - known >= self.patience:
            text = f"group '{group}' had a gradient until step {known}, and has had none since."
            return self.finding(known + self.patience, text, subject=group)
        # Too few zeros for `patience` in a row: skip the search.
        if nonzero > len(series) - self.patience:
            return None
        dead = series.values == 0
        # Zeros before the first gradient mean that the group has not started yet.
        dead[: np.argmin(dead)] = False
        at = first_sustained(dead, patience=self.patience)
        if at is None:
            return None
        text = f"the gradient of group '{group}' was exactly 0 {self.patience} times in a row, after being non-zero."
        return self.finding(int(series.steps[at]), text, subject=group)


@dataclass(frozen=True, kw_only=True)
class UpdateRatio(HealthRule):
    """A group's updates are as large as its parameters, or too small to change them."""

    high: float = threshold(
        1.0,
        unit="update / parameter norm",
        reason="an update as large as the parameters rewrites them (healthy: 1e-3; smdebug: 10)",
        source=SMDEBUG,
    )
    low: float = threshold(
        1e-8,
        unit="update / parameter norm",
        reason="such updates are below the resolution of float32",
        source=SMDEBUG,
    )
    warmup: int = threshold(100, unit="steps", reason="groups that start at zero have no meaningful ratio yet")
    patience: int = threshold(8, unit="recordings", reason="single large or small updates do no harm")
    decayed: float = threshold(
        0.01, unit="fraction of the highest rate", reason="a learning rate below it explains small updates"
    )
    remedy: ClassVar[str] = (
        "Set the group's learning rate so that the norm of an update is about 1e-3 of the parameter norm."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, per group and phase, where the ratio had been outside ``low`` to ``high`` for too long."""
        groups = {name: group for group, name in tags.UPDATE_RATIO.parts(history.names()).items()}
        return tuple(
            self.finding(span.step(at), f"updates of group '{group}' are {text}", subject=group)
            for span in spans(history, *groups)
            for group in (groups[span.name],)
            for at, text in self._judge(history, group, span)
        )

    def _judge(self, history: History, group: str, span: Span) -> Iterator[tuple[int, str]]:
        values = span.values
        # Steps, not recordings: the ratio is usually recorded every 50 steps only.
        warmup = int(np.searchsorted(span.series.steps, span.start + self.warmup))
        at = first_sustained(values > self.high, patience=self.patience, warmup=warmup)
        if at is not None:
            yield at, f"too large: {number(values[at], 3)} times its parameters."
        # Exactly 0: nothing updates the group, which is no question of its rate.
        small = (values < self.low) & (values > 0)
        # Learning rates are looked up only if the cheaper test has fired.
        if first_sustained(small, patience=self.patience, warmup=warmup) is not None:
            small &= ~decayed(history, group, span.series.steps, self.decayed)
            at = first_sustained(small, patience=self.patience, warmup=warmup)
            if at is not None:
                yield at, f"too small: {number(values[at], 3)} times its parameters."


@dataclass(frozen=True, kw_only=True)
class TermConflict(HealthRule):
    """The gradients of two loss terms point in opposite directions for a long time."""

    severity: ClassVar[Severity] = "note"
    cosine: float = threshold(
        0.5, unit="negative cosine", reason="gradients more than 120 degrees apart undo half of each other"
    )
    window: int = threshold(
        32, unit="recordings", reason="length of the moving mean: single batches disagree all the time"
    )
    warmup: int = threshold(16, unit="recordings", reason="terms that have just started may disagree")
    patience: int = threshold(32, unit="recordings", reason="terms may disagree for a while")
    remedy: ClassVar[str] = (
        "Lower one of the two weights, or train the terms in separate phases. If both are needed, accept the conflict."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, per pair of terms and phase, where the mean cosine had been below ``-cosine`` for too long."""
        pairs = {name: pair for pair, name in tags.COSINE.parts(history.names()).items()}
        findings = (self._judge(span, pairs[span.name]) for span in spans(history, *pairs))
        return tuple(finding for finding in findings if finding)

    def _judge(self, span: Span, pair: str) -> Finding | None:
        means = trailing_mean(span.values, self.window, least=self.warmup)
        at = first_sustained(means < -self.cosine, patience=self.patience)
        if at is None:
            return None
        text = f"gradients of two terms point in opposite directions ({pair}): their mean cosine is {means[at]:.2f}."
        return self.finding(span.step(at), text, subject=pair)
