"""What the parameters themselves do."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fieldwatch.health.finding import Finding
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.rules.gradients import decayed
from fieldwatch.health.threshold import SMDEBUG, threshold
from fieldwatch.health.window import Span, first_sustained, named, on_steps, spans
from fieldwatch.record import History

PREFIXES = ("Parameters/",)


def _groups(history: History, prefixes: Sequence[str]) -> Iterator[tuple[str, Span, NDArray[np.float64]]]:
    """Yield, per group and phase, the recordings of its mean, and its standard deviation at the same steps."""
    for prefix in prefixes:
        groups = {name: group for group, name in named(history, prefix, "_mean").items()}
        for span in spans(history, *groups):
            spread = f"{prefix}{groups[span.name]}_std"
            if spread in history:
                yield groups[span.name], span, on_steps(history[spread], span.series.steps)


@dataclass(frozen=True, kw_only=True)
class UnchangedParameters(HealthRule):
    """A group gets gradients, but its parameters do not change at all."""

    prefixes: Sequence[str] = PREFIXES
    gradients: Sequence[str] = ("Gradients/",)
    patience: int = threshold(
        4,
        unit="recordings",
        reason="exactly equal ones (smdebug: 3 within 1e-5, which slow learning reaches)",
        source=SMDEBUG,
    )
    span: int = threshold(64, unit="steps", reason="the equal recordings have to cover them")
    decayed: float = threshold(
        0.01, unit="share of the highest rate", reason="a learning rate below it explains parameters at rest"
    )
    remedy: ClassVar[str] = (
        "Give the group to the optimizer (were its parameters replaced after the optimizer was made?) and check its "
        "learning rate and that step.update is called with that optimizer."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, per group and phase, where its parameters had been the same for too long."""
        found = (self._judge(history, group, span, std) for group, span, std in _groups(history, self.prefixes))
        return tuple(finding for finding in found if finding)

    def _judge(self, history: History, group: str, span: Span, std: NDArray[np.float64]) -> Finding | None:
        steps = span.series.steps
        positions = np.arange(len(std))
        same = np.concatenate(([False], (np.diff(span.values) == 0) & (np.diff(std) == 0)))
        if np.count_nonzero(same) < self.patience - 1:
            return None
        same &= self._has_gradient(history, group, steps) & ~decayed(history, group, steps, self.decayed)
        first = np.maximum.accumulate(np.where(same, 0, positions))
        at = first_sustained(same & (positions - first >= self.patience - 1) & (steps - steps[first] >= self.span))
        if at is None:
            return None
        since = span.step(int(first[at]))
        text = f"the parameters of group '{group}' are unchanged since step {since}, although it has gradients."
        return self.finding(span.step(at), text, subject=group)

    def _has_gradient(self, history: History, group: str, steps: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Tell for each step whether the group's last recorded gradient was alive and was not refused."""
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
    """A group's parameters have grown to many times their size."""

    prefixes: Sequence[str] = PREFIXES
    ratio: float = threshold(
        10.0, unit="times the first value", reason="|mean| + std of a healthy group stays near its first value"
    )
    floor: float = threshold(0.1, unit="parameter value", reason="groups that start at zero grow by any factor")
    warmup: int = threshold(1, unit="recordings", reason="the first one may precede the first update")
    patience: int = threshold(3, unit="recordings", reason="one large recording is no drift")
    remedy: ClassVar[str] = (
        "Lower the group's learning rate, clip gradients, or bound the parameters (weight decay, limited activations)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, per group and phase, where it had been too large for too long."""
        found = (self._judge(group, span, std) for group, span, std in _groups(history, self.prefixes))
        return tuple(finding for finding in found if finding)

    def _judge(self, group: str, span: Span, std: NDArray[np.float64]) -> Finding | None:
        size = np.abs(span.values) + std
        if len(size) <= self.warmup or not span.whole:
            return None
        base = max(float(size[self.warmup]), self.floor)
        at = first_sustained(size > self.ratio * base, patience=self.patience, warmup=self.warmup)
        if at is None:
            return None
        text = f"|mean| + std of group '{group}' has drifted from {size[self.warmup]:.3g} to {size[at]:.3g}."
        return self.finding(span.step(at), text, subject=group)
