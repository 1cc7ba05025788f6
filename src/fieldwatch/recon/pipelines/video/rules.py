"""Health rules of video runs: quality of validation frames, and thresholds for what is recorded once per epoch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fieldwatch import GENERAL, Finding, History
from fieldwatch.rules import (
    HealthRule,
    Severity,
    Span,
    first_held,
    gradients,
    losses,
    memory,
    on_steps,
    parameters,
    quality,
    spans,
    threshold,
)

_EPOCH_LOSS = "Train/Loss/total_loss"
_EPOCH_NORM = "Train/Gradients/total_norm"
_EPOCH_PARAMETERS = "Model/Params/"


@dataclass(frozen=True, kw_only=True)
class PoorSemantics(HealthRule):
    """Predicted CLIP embeddings of validation frames are far from the true ones, or no better than their mean."""

    metric: str = "Eval/Frame/val_clip_sim"
    baseline: str = "Eval/Baseline/val_clip_sim_mean"
    term: str = "clip"
    active: str = "Train/clip_loss_active"
    low: float = threshold(
        0.7,
        unit="cosine similarity",
        reason="a healthy run has 0.79 one epoch after the CLIP term begins, 0.97 after ten",
    )
    warmup: int = threshold(1, unit="evaluations", reason="the first one after the CLIP term began may come too soon")
    patience: int = threshold(2, unit="evaluations", reason="one evaluation is no trend")
    remedy: ClassVar[str] = "Raise the weight of the CLIP term, begin it earlier, or give its head more capacity."

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where the similarity had been poor for too long, or had not passed the mean embedding's."""
        return tuple(found for span in spans(history, self.metric) for found in self._judge(history, span))

    def _judge(self, history: History, span: Span) -> Iterator[Finding]:
        values = span.values
        begun = span.series.steps >= self._begin(history)
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
    margin: float = threshold(
        0.0, unit="dB", reason="above the mean frame: showing one picture for every frame needs no network"
    )
    warmup: int = threshold(
        20, unit="epochs", reason="even slow models pass the mean frame within their first few hundred steps"
    )
    patience: int = threshold(5, unit="epochs", reason="one odd epoch is no trend")
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


@dataclass(frozen=True, kw_only=True)
class EpochLossNotDecreasing(losses.LossNotDecreasing):
    """The mean loss of an epoch is no lower than it was when the run began."""

    reported_as: ClassVar[str] = "LossNotDecreasing"
    metrics: Sequence[str] = (_EPOCH_LOSS,)
    head: int = threshold(2, unit="epochs", reason="they say where the loss began")
    window: int = threshold(3, unit="epochs", reason="length of the present mean")
    warmup: int = threshold(10, unit="epochs", reason="the first epochs include the warm-up of the learning rate")
    patience: int = threshold(3, unit="epochs", reason="one odd epoch is no trend")


@dataclass(frozen=True, kw_only=True)
class EpochLossOscillating(losses.LossOscillating):
    """The mean loss of an epoch swings up and down by more than its own size."""

    reported_as: ClassVar[str] = "LossOscillating"
    metrics: Sequence[str] = (_EPOCH_LOSS,)
    block: int = threshold(1, unit="epochs", reason="epoch means are averages already")
    warmup: int = threshold(3, unit="epochs", reason="the first fall is steep")


@dataclass(frozen=True, kw_only=True)
class EpochGradientVanishing(gradients.GradientVanishing):
    """The mean gradient norm of an epoch is so small that nothing is learned."""

    reported_as: ClassVar[str] = "GradientVanishing"
    metrics: Sequence[str] = (_EPOCH_NORM,)
    loss: str = _EPOCH_LOSS
    low: float = threshold(
        0.001,
        unit="gradient norm",
        reason="by experience with the video models; a mean over an epoch is steadier than a step, so it can be higher",
    )
    warmup: int = threshold(1, unit="epochs", reason="an epoch's mean needs no longer start")
    patience: int = threshold(2, unit="epochs", reason="one epoch may be odd")


@dataclass(frozen=True, kw_only=True)
class EpochGradientExploding(gradients.GradientExploding):
    """The mean gradient norm of an epoch is beyond any use."""

    reported_as: ClassVar[str] = "GradientExploding"
    metrics: Sequence[str] = (_EPOCH_NORM,)
    ratio: float = threshold(
        0.0, unit="times the baseline", reason="0: epochs are few, so that only the absolute bound applies"
    )
    warmup: int = threshold(1, unit="epochs", reason="an epoch's mean needs no longer start")
    patience: int = threshold(2, unit="epochs", reason="one epoch may be odd")


VIDEO_RULES: tuple[HealthRule, ...] = (
    *GENERAL,
    EpochLossNotDecreasing(),
    EpochLossOscillating(),
    EpochGradientVanishing(),
    EpochGradientExploding(),
    gradients.GroupImbalance(metrics=("Train/Gradients/rgb_to_clip_ratio",)),
    parameters.UnchangedParameters(prefixes=(_EPOCH_PARAMETERS,), gradients=("Train/Gradients/", "Gradients/")),
    parameters.ParameterDrift(prefixes=(_EPOCH_PARAMETERS,)),
    quality.Overfitting(metrics=("Eval/Gap/psnr_gap",)),
    quality.Overtraining(train="Eval/Frame/train_psnr", validation="Eval/Frame/val_psnr"),
    PoorSemantics(),
    LearnedNothing(),
    quality.Collapse(metrics=("Train/PSNR",)),
    NoValidation(),
    memory.MemoryGrowing(metrics=(memory.PARAMETERS,), explained_by=""),
)
"""The rules of a video run."""
