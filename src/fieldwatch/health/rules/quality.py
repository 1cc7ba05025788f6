"""Quality on training and validation data."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fieldwatch.health.defaults import integer, number
from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.window import Span, excused, first_held, on_steps, spans
from fieldwatch.record import History, Series


@dataclass(frozen=True, kw_only=True)
class Overfitting(HealthRule):
    """Training quality is far above validation quality."""

    metrics: Sequence[str] = ("Eval/Gap/psnr_gap",)
    gap: float = number("Overfitting", "gap")
    warmup: int = integer("Overfitting", "warmup")
    patience: int = integer("Overfitting", "patience")
    remedy: ClassVar[str] = (
        "Use more views or frames, a smaller model, or an encoding that interpolates (fewer frequency levels); stop at "
        "the best validation checkpoint."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where each gap had been too large for too long."""
        found: list[Finding] = []
        for span in spans(history, *self.metrics):
            at = first_held(span.values > self.gap, patience=self.patience, warmup=self.warmup)
            if at is not None:
                text = f"{span.name} is {span.values[at]:.1f} dB (more than {self.gap:g}): the run is overfitting."
                found.append(self.finding(span.step(at), text, subject=span.name))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Overtraining(HealthRule):
    """Validation gets worse while training still gets better."""

    train: str = "Eval/Frame/train_psnr"
    validation: str = "Eval/Frame/val_psnr"
    worse: float = number("Overtraining", "worse")
    better: float = number("Overtraining", "better")
    patience: int = integer("Overtraining", "patience")
    remedy: ClassVar[str] = "Stop here and keep the best validation checkpoint; regularise, or take more data."

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where validation had fallen behind its best for too long."""
        return tuple(found for span in spans(history, self.validation) if (found := self._judge(history, span)))

    def _judge(self, history: History, span: Span) -> Finding | None:
        if self.train not in history:
            return None
        values = span.values
        train = on_steps(history[self.train], span.series.steps)
        best = np.maximum.accumulate(values)
        at_best = np.maximum.accumulate(np.where(values == best, np.arange(len(values)), 0))
        over = (values < best - self.worse) & (train > train[at_best] + self.better)
        at = first_held(over, patience=self.patience)
        if at is None:
            return None
        since = span.step(int(at_best[at]))
        text = f"validation fell from {best[at]:.2f} dB (step {since}) to {values[at]:.2f} while training improved."
        return self.finding(span.step(at), text, subject=span.name)


@dataclass(frozen=True, kw_only=True)
class PoorSemantics(HealthRule):
    """Predicted CLIP embeddings of validation frames are far from the true ones, or no better than their mean."""

    metric: str = "Eval/Frame/val_clip_sim"
    baseline: str = "Eval/Baseline/val_clip_sim_mean"
    term: str = "clip"
    active: str = "Train/clip_loss_active"
    low: float = number("PoorSemantics", "low")
    warmup: int = integer("PoorSemantics", "warmup")
    patience: int = integer("PoorSemantics", "patience")
    remedy: ClassVar[str] = "Raise the weight of the CLIP term, begin it earlier, or give its head more capacity."

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where the similarity had been poor for too long, or had not passed the mean embedding's."""
        return tuple(found for span in spans(history, self.metric) for found in self._judge(history, span))

    def _judge(self, history: History, span: Span) -> Iterator[Finding]:
        values, begun = span.values, span.series.steps >= self._begin(history)
        warmup = int(np.argmax(begun)) + self.warmup if begun.any() else len(begun)
        at = first_held(values < self.low, patience=self.patience, warmup=warmup)
        if at is not None:
            text = f"{span.name} is {values[at]:.3f}, below {self.low:g}: poor semantic learning."
            yield self.finding(span.step(at), text, subject=span.name)
        if self.baseline not in history:
            return
        mean = on_steps(history[self.baseline], span.series.steps)
        at = first_held(values <= mean, patience=self.patience, warmup=warmup)
        if at is not None:
            text = (
                f"{span.name} is {values[at]:.3f}, no better than always answering the mean embedding ({mean[at]:.3f})."
            )
            yield self.finding(span.step(at), text, subject=span.name, severity="note")

    def _begin(self, history: History) -> float:
        """Return the step at which the CLIP term began; infinity if it is known not to have begun."""
        if self.term in history.windows:
            return history.windows[self.term][0]
        if self.active not in history:
            return 0
        series = history[self.active]
        on = series.values > 0
        return float(series.steps[np.argmax(on)]) if on.any() else np.inf


@dataclass(frozen=True, kw_only=True)
class LearnedNothing(HealthRule):
    """Training quality is no better than showing the mean frame for every frame."""

    metric: str = "Train/PSNR"
    reference: str = "Reference/mean_frame_psnr"
    margin: float = number("LearnedNothing", "margin")
    warmup: int = integer("LearnedNothing", "warmup")
    patience: int = integer("LearnedNothing", "patience")
    remedy: ClassVar[str] = (
        "The network ignores its input: check the encoding and the frame index that it gets, the learning rate, and "
        "that the output range matches the images'."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where training had been below the reference for too long."""
        if self.reference not in history:
            return ()
        bar = float(history[self.reference].values[-1])
        found: list[Finding] = []
        for span in spans(history, self.metric):
            at = first_held(span.values <= bar + self.margin, patience=self.patience, warmup=self.warmup)
            if at is not None:
                text = (
                    f"{span.name} is {span.values[at]:.2f} dB, the mean frame alone {bar:.2f} dB: nothing was learnt."
                )
                found.append(self.finding(span.step(at), text, subject=span.name))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Collapse(HealthRule):
    """Quality suddenly drops far below its best and stays there.

    Attributes:
        metrics: PSNRs.
        excuses: kinds of events after which quality may be down for ``grace`` steps.
        within: what the best is taken of: the phase, or the run, as held-out photos are the same in all phases.
    """

    severity: ClassVar[Severity] = "error"
    metrics: Sequence[str] = ("Train/PSNR",)
    excuses: Sequence[str] = ()
    within: Literal["phase", "run"] = "phase"
    drop: float = number("Collapse", "drop")
    warmup: int = integer("Collapse", "warmup")
    patience: int = integer("Collapse", "patience")
    grace: int = integer("Collapse", "grace")
    remedy: ClassVar[str] = (
        "Resume from the best checkpoint with half the learning rate, or start with another seed; clip gradients."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where quality had been down for too long."""
        if self.within == "run":
            judged = ((name, history[name]) for name in self.metrics if name in history)
        else:
            judged = ((span.name, span.series) for span in spans(history, *self.metrics))
        return tuple(found for name, series in judged if (found := self._judge(history, name, series)))

    def _judge(self, history: History, name: str, series: Series) -> Finding | None:
        values = np.where(np.isfinite(series.values), series.values, -np.inf)
        best = np.maximum.accumulate(values)
        low = (values < best - self.drop) & ~excused(history, self.excuses, series.steps, self.grace)
        at = first_held(low, patience=self.patience, warmup=self.warmup)
        if at is None:
            return None
        stayed = " and stayed there" if self.patience > 1 else ""
        text = f"{name} collapsed from {best[at]:.2f} to {series.values[at]:.2f} dB{stayed}."
        return self.finding(int(series.steps[at]), text, subject=name)


@dataclass(frozen=True, kw_only=True)
class NoValidation(HealthRule):
    """There are no validation frames: generalisation is not measured."""

    severity: ClassVar[Severity] = "note"
    metric: str = "Eval/Info/num_val_frames"
    remedy: ClassVar[str] = "Take a split that holds frames out (9_9_10 instead of 9_10_10)."

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where an evaluation found no validation frames."""
        found: list[Finding] = []
        for span in spans(history, self.metric):
            at = first_held(span.values == 0)
            if at is not None:
                found.append(
                    self.finding(span.step(at), "the evaluation has no validation frames (the split holds out 0).")
                )
        return tuple(found)
