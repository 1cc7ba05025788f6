"""Rules for the values of parameters."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import number
from fieldwatch.health.finding import Finding
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.rules.gradients import decayed
from fieldwatch.health.thresholds import SMDEBUG, threshold
from fieldwatch.health.window import Span, first_sustained, named, on_steps, spans
from fieldwatch.record import History

PREFIXES = ("Parameters/",)


def _groups(history: History, prefixes: Sequence[str]) -> Iterator[tuple[str, Span, NDArray[np.float64]]]:
    """Yield, per group and phase, the group's name, the span of its mean, and its standard deviation at those steps."""
    for prefix in prefixes:
        groups = {name: group for group, name in named(history, prefix, "_mean").items()}
        for span in spans(history, *groups):
            spread = f"{prefix}{groups[span.name]}_std"
            if spread in history:
                yield groups[span.name], span, on_steps(history[spread], span.series.steps)


@dataclass(frozen=True, kw_only=True)
class UnchangedParameters(HealthRule):
    """A group receives gradients, but its parameters do not change at all.

    Attributes:
        prefixes: tag prefixes of the parameter statistics.
        gradients: tag prefixes of the gradient norms.
    """

    prefixes: Sequence[str] = PREFIXES
    gradients: Sequence[str] = ("Gradients/",)
    patience: int = threshold(
        4,
        unit="recordings",
        reason="exactly equal (smdebug: 3 within 1e-5, which slow training also reaches)",
        source=SMDEBUG,
    )
    span: int = threshold(64, unit="steps", reason="minimum range of steps that the equal recordings must cover")
    decayed: float = threshold(
        0.01, unit="fraction of the highest rate", reason="a learning rate below it explains unchanged parameters"
    )
    remedy: ClassVar[str] = (
        "Pass the group to the optimizer (were its parameters replaced after the optimizer was created?), check its "
        "learning rate, and check that step.update is called with that optimizer. If its gradients are 0, it does not "
        "contribute to the loss: look for a saturated gate or softmax, an initialization (a bias) that turns it off, "
        "and detached tensors."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, per group and phase, where its parameters had been unchanged for too long."""
        findings = (self._judge(history, group, span, std) for group, span, std in _groups(history, self.prefixes))
        return tuple(finding for finding in findings if finding)

    def _judge(self, history: History, group: str, span: Span, std: NDArray[np.float64]) -> Finding | None:
        steps = span.series.steps
        positions = np.arange(len(std))
        # Mean and standard deviation stand for the parameters: an update changes at least one of them.
        same = np.concatenate(([False], (np.diff(span.values) == 0) & (np.diff(std) == 0)))
        if np.count_nonzero(same) < self.patience - 1:
            return None
        same &= self._has_gradient(history, group, steps) & ~decayed(history, group, steps, self.decayed)
        first = np.maximum.accumulate(np.where(same, 0, positions))
        at = first_sustained(same & (positions - first >= self.patience - 1) & (steps - steps[first] >= self.span))
        if at is None:
            return None
        since = span.step(int(first[at]))
        text = f"the parameters of group '{group}' are unchanged since step {since}, although they have gradients."
        return self.finding(span.step(at), text, subject=group)

    def _has_gradient(self, history: History, group: str, steps: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return for each step whether the group's last recorded gradient was finite, non-zero and not refused."""
        for prefix in self.gradients:
            name = f"{prefix}{group}_norm"
            if name in history:
                norms = history[name]
                alive = np.isfinite(norms.values) & (norms.values > 0)
                if "Guard/refused" in history:
                    alive &= ~(on_steps(history["Guard/refused"], norms.steps) > 0)
                positions = np.searchsorted(norms.steps, steps, side="right") - 1
                return (positions >= 0) & alive[positions]
        return np.zeros(len(steps), np.bool_)


@dataclass(frozen=True, kw_only=True)
class ParameterDrift(HealthRule):
    """A group's parameters have grown to many times their initial size.

    Attributes:
        prefixes: tag prefixes of the parameter statistics.
    """

    prefixes: Sequence[str] = PREFIXES
    ratio: float = threshold(
        10.0, unit="times the first value", reason="|mean| + std of a healthy group stays near its first value"
    )
    floor: float = threshold(
        0.1, unit="parameter value", reason="lower bound of the first value: groups that start at 0 grow by any factor"
    )
    warmup: int = threshold(1, unit="recordings", reason="the first recording may precede the first update")
    patience: int = threshold(3, unit="recordings", reason="a single large recording is not a drift")
    remedy: ClassVar[str] = (
        "Lower the group's learning rate, clip gradients, or bound the parameters (weight decay, limited activations)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, per group and phase, where its parameters had been too large for too long."""
        findings = (self._judge(group, span, std) for group, span, std in _groups(history, self.prefixes))
        return tuple(finding for finding in findings if finding)

    def _judge(self, group: str, span: Span, std: NDArray[np.float64]) -> Finding | None:
        size = np.abs(span.values) + std
        # Without the phase's first recordings there is no initial size to compare with.
        if len(size) <= self.warmup or not span.whole:
            return None
        # The first recording after the warm-up, as the initial size.
        base = max(float(size[self.warmup]), self.floor)
        at = first_sustained(size > self.ratio * base, patience=self.patience, warmup=self.warmup)
        if at is None:
            return None
        text = (
            f"|mean| + std of group '{group}' has drifted from {number(size[self.warmup], 3)} to {number(size[at], 3)}."
        )
        return self.finding(span.step(at), text, subject=group)
