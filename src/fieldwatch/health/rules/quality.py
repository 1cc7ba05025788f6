"""Rules for the quality on training and validation data.

These rules need the names of a run's metrics, so they are not part of ``GENERAL``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.outcomes import held_out_metrics, name_words
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.thresholds import SMDEBUG, threshold
from fieldwatch.health.window import excused, finished, first_sustained, on_steps, spans
from fieldwatch.record import History, Series

_DNERV = (
    "https://github.com/QiZhao-NJU/Neural-Representation-for-Video-via-Differential-Input-and-Pyramidal-Architecture"
    "/issues/1"
)
"""The authors of DNeRV on failed trainings."""


@dataclass(frozen=True, kw_only=True)
class Overfitting(HealthRule):
    """Training quality is far above validation quality.

    A note while validation quality gains clearly from the training up to the end.

    Attributes:
        metrics: differences between training and validation PSNR, in dB.
    """

    general: ClassVar[bool] = False
    metrics: Sequence[str]
    gap: float = threshold(
        5.0, unit="dB", reason="gaps below 3 dB are usual; above 5 dB, held-out data hardly gain from training"
    )
    most: float = threshold(8.0, unit="dB", reason="a gap this large is a fault, however held-out data gain")
    gain: float = threshold(
        1.0,
        unit="dB",
        reason="what held-out data have gained since the first evaluation, if they gain from the training at all",
        source="measured by benchmarks/verdicts.py",
    )
    near: float = threshold(0.1, unit="dB", reason="from the best: a result that was not lost again")
    warmup: int = threshold(1, unit="evaluations", reason="the first one is early in training")
    patience: int = threshold(2, unit="evaluations", reason="a single evaluation is not a trend")
    remedy: ClassVar[str] = (
        "Use more views or frames, a smaller model, or an encoding that interpolates (fewer frequency levels); use the "
        "checkpoint with the best validation score."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where each gap had been above ``gap`` for too long."""
        findings: list[Finding] = []
        # Over the whole run: a phase has few evaluations, and the gap does not depend on the terms of the loss.
        for name in (name for name in self.metrics if name in history):
            series = history[name]
            # A run with few evaluations is judged by its last one.
            few = finished(history) and len(series) < self.warmup + self.patience
            patience = 1 if few else self.patience
            at = first_sustained(series.values > self.gap, patience=patience, warmup=0 if few else self.warmup)
            if few and at is not None and series.values[-1] <= self.gap:
                at = None
            if at is not None:
                text = f"{name} is {series.values[at]:.1f} dB (more than {self.gap:g}): the run is overfitting."
                severity = "note" if self._still_gains(history, float(series.values[-1])) else self.severity
                findings.append(self.finding(int(series.steps[at]), text, subject=name, severity=severity))
        return tuple(findings)

    def _still_gains(self, history: History, gap: float) -> bool:
        """Return whether held-out data have gained clearly, up to the end: then the gap is only that of a close fit."""
        if gap > self.most:
            return False
        for name, better in held_out_metrics(history).items():
            values = history[name].values
            if better != "higher" or "psnr" not in name_words(name) or len(values) < 2:
                continue
            if values[-1] - values[0] > self.gain and values[-1] > np.nanmax(values) - self.near:
                return True
        return False


@dataclass(frozen=True, kw_only=True)
class Overtraining(HealthRule):
    """Validation quality falls while training quality still rises.

    Validation that rises again from its lowest value, as after a reset, still gains from the training.

    Attributes:
        train: PSNR on training data.
        validation: PSNR on validation data.
    """

    general: ClassVar[bool] = False
    train: str
    validation: str
    worse: float = threshold(0.5, unit="dB", reason="drop from the best validation: more than the noise of evaluations")
    better: float = threshold(0.1, unit="dB", reason="training must gain meanwhile, otherwise it is not overtraining")
    patience: int = threshold(
        2, unit="evaluations", reason="evaluations are rare (smdebug: 10 recordings)", source=SMDEBUG
    )
    remedy: ClassVar[str] = "Stop here and keep the best validation checkpoint; regularize, or use more data."

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where validation had been below its best for too long."""
        # Over the whole run: a phase has few evaluations, and scores of held-out data are comparable across phases.
        if self.train not in history or self.validation not in history:
            return ()
        found = self._judge(history, history[self.validation])
        return () if found is None else (found,)

    def _judge(self, history: History, series: Series) -> Finding | None:
        values = series.values
        train = on_steps(history[self.train], series.steps)
        best = np.maximum.accumulate(values)
        # Index of the best evaluation so far.
        at_best = np.maximum.accumulate(np.where(values == best, np.arange(len(values)), 0))
        # After a shock, such as a reset, both fall and rise again: held-out data still gain from the training.
        lowest = np.array([np.nanmin(values[begin : end + 1]) for end, begin in enumerate(at_best)])
        falls = (values < best - self.worse) & (values < lowest + self.worse)
        over = falls & (train > train[at_best] + self.better)
        at = first_sustained(over, patience=self.patience)
        if at is None:
            return None
        since = int(series.steps[at_best[at]])
        text = f"validation fell from {best[at]:.2f} dB (step {since}) to {values[at]:.2f} while training improved."
        return self.finding(int(series.steps[at]), text, subject=self.validation)


@dataclass(frozen=True, kw_only=True)
class Collapse(HealthRule):
    """Quality suddenly drops far below its best and stays there.

    Attributes:
        metrics: PSNR metrics to check.
        excuses: kinds of events after which quality may drop for ``grace`` steps.
        within: range over which the best is taken: ``"phase"``, or ``"run"`` if scores are comparable across phases
            (such as those of held-out views).
    """

    severity: ClassVar[Severity] = "error"
    general: ClassVar[bool] = False
    metrics: Sequence[str]
    excuses: Sequence[str] = ()
    within: Literal["phase", "run"] = "phase"
    drop: float = threshold(
        3.0, unit="dB", reason="drop from the best: NeRV trainings can collapse suddenly at some epoch", source=_DNERV
    )
    warmup: int = threshold(2, unit="recordings", reason="the best needs a few recordings first")
    patience: int = threshold(3, unit="recordings", reason="quality recovers from one bad epoch")
    grace: int = threshold(300, unit="steps", reason="quality recovers from an excused event within this time")
    remedy: ClassVar[str] = (
        "Resume from the best checkpoint with half the learning rate, or start with another seed; clip gradients."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where quality had been too low for too long."""
        if self.within == "run":
            judged = ((name, history[name]) for name in self.metrics if name in history)
        else:
            judged = ((span.name, span.series) for span in spans(history, *self.metrics))
        return tuple(found for name, series in judged if (found := self._judge(history, name, series)))

    def _judge(self, history: History, name: str, series: Series) -> Finding | None:
        # A quality that is not finite counts as collapsed, and never as the best.
        values = np.where(np.isfinite(series.values), series.values, -np.inf)
        best = np.maximum.accumulate(values)
        low = (values < best - self.drop) & ~excused(history, self.excuses, series.steps, self.grace)
        at = first_sustained(low, patience=self.patience, warmup=self.warmup)
        if at is None:
            return None
        stayed = " and stayed there" if self.patience > 1 else ""
        text = f"{name} collapsed from {best[at]:.2f} to {series.values[at]:.2f} dB{stayed}."
        return self.finding(int(series.steps[at]), text, subject=name)
