"""Rules for what the gradients of outputs say of their targets: columns without any, classes learned as numbers."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fieldwatch.base import percent
from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.outcomes import held_out_accuracy
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.rules.poor_results import ends_poorly, is_good
from fieldwatch.health.squares import squares_factor
from fieldwatch.health.thresholds import threshold
from fieldwatch.health.window import finished
from fieldwatch.record import History, tags


@dataclass(frozen=True, kw_only=True)
class OutputUnused(HealthRule):
    """Columns of a module's output have had no gradient at any measured step: no term of the loss uses them.

    A warning if they are many and no held-out result is near its best, otherwise a note.
    """

    severity: ClassVar[Severity] = "note"
    share: float = threshold(0.1, unit="fraction of the columns", reason="fewer may be classes that never occur")
    count: int = threshold(24, unit="recordings", reason="heads that are trained in turns have had their turn by then")
    remedy: ClassVar[str] = (
        "Check that the loss has a term for each part of the output (a term that is computed and not added to the sum, "
        "a head that was forgotten, a slice that is too short), and that a term is not overwritten by the next one."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, one finding per module."""
        if not finished(history) or self._nothing_has_a_gradient(history):
            return ()
        found: list[Finding] = []
        for item, name in tags.UNUSED_SHARE.parts(history.names()).items():
            series = history[name]
            share = float(series.values[-1])
            if len(series) < self.count or not share >= self.share:
                continue
            severity: Severity = "note" if is_good(history) and not ends_poorly(history) else "warning"
            text = (
                f"{percent(share, 0)} of the columns of the output of '{item}' have had no gradient at {len(series)} "
                "measured steps: no term of the loss depends on them, so that part is not trained."
            )
            found.append(self.finding(history.step, text, subject=item, severity=severity))
        return tuple(found)

    def _nothing_has_a_gradient(self, history: History) -> bool:
        """Return whether all gradients of the run are zero: then `GradientVanishing` says so."""
        return tags.TOTAL_NORM in history and not history[tags.TOTAL_NORM].values.any()


@dataclass(frozen=True, kw_only=True)
class ClassAsNumber(HealthRule):
    """A mean of squares has whole numbers as targets, and an accuracy is evaluated: classes are learned as numbers."""

    whole: float = threshold(1e-3, unit="distance from a whole number", reason="rounding of the gradient")
    kinds: int = threshold(3, unit="whole numbers", reason="two may be yes and no, whose mean is a probability")
    most: int = threshold(1000, unit="whole numbers", reason="more are a quantity, such as a count of pixels")
    same: float = threshold(
        0.02, unit="relative deviation", reason="other factors than 1 scale what targets seem to be"
    )
    good: float = threshold(0.9, unit="fraction", reason="so many right answers need no other loss")
    count: int = threshold(8, unit="recordings", reason="targets of a few batches may be whole by chance")
    remedy: ClassVar[str] = (
        "Give the model one output per class and use cross_entropy with the class indices as targets: classes have no "
        "order and no distance, so a wrong answer between two classes is as good as none. Keep the mean of squares "
        "only for what can be counted or ordered."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, one finding per module."""
        if not finished(history):
            return ()
        answers = [(name, value) for name, value in held_out_accuracy(history)]
        if not answers or answers[0][1] >= self.good:
            return ()
        name, value = answers[0]
        return tuple(
            self.finding(history.step, self._text(history, item, name, value), subject=item)
            for item in tags.TARGET_FRACTION.parts(history.names())
            if self._is_whole(history, item)
        )

    def _is_whole(self, history: History, item: str) -> bool:
        fractions = history[tags.TARGET_FRACTION.tag(item)].values
        known = fractions[np.isfinite(fractions)]
        factor = squares_factor(history, item)
        if len(known) < self.count or factor is None or abs(factor - 1) > self.same:
            return False
        low, high = self._range(history, item)
        scale = max(abs(low), abs(high), 1.0)
        return float(np.median(known)) < self.whole * scale and self.kinds - 1 <= high - low < self.most

    def _range(self, history: History, item: str) -> tuple[float, float]:
        low = float(np.nanmin(history[tags.TARGET_LOW.tag(item)].values))
        high = float(np.nanmax(history[tags.TARGET_HIGH.tag(item)].values))
        return low, high

    def _text(self, history: History, item: str, name: str, value: float) -> str:
        low, high = self._range(history, item)
        return (
            f"the targets of '{item}' are whole numbers from {low:.0f} to {high:.0f}, learned by a mean of squares, "
            f"and {name} ended at {percent(value, 0)}: classes are learned as a number."
        )
