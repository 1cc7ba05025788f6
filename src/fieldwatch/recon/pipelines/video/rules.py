"""Health rules of video runs: quality on validation frames, and thresholds for values recorded once per epoch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fieldwatch import GENERAL, Finding, History
from fieldwatch.rules import (
    HealthRule,
    Severity,
    Span,
    finite,
    first_sustained,
    gradients,
    losses,
    memory,
    on_steps,
    parameters,
    quality,
    results,
    spans,
    terms,
    threshold,
)

# Tags of the dual-head HNeRV code, recorded once per epoch.
_EPOCH_LOSS = "Train/Loss/total_loss"
_EPOCH_NORM = "Train/Gradients/total_norm"
_EPOCH_PARAMETERS = "Model/Params/"
_STILL = "of the mean frame, from which the frames of the clip hardly differ: fine details count as much as motion"
_CLOSE = "within the first hundreds of steps; a network that learned nothing is 10 dB and more below"


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
        reason="a healthy run reaches 0.79 one epoch after the CLIP term starts, 0.97 after ten",
    )
    warmup: int = threshold(1, unit="evaluations", reason="the first one after the CLIP term starts may be too early")
    patience: int = threshold(2, unit="evaluations", reason="a single evaluation is not a trend")
    remedy: ClassVar[str] = (
        "Check first that the frames themselves are reconstructed and in the right order (Eval/Pooled against "
        "Reference/). Then raise the weight of the CLIP term, start it earlier, or give its head more capacity."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return findings where the similarity stayed low, or did not exceed that of the mean embedding."""
        return tuple(found for span in spans(history, self.metric) for found in self._judge(history, span))

    def _judge(self, history: History, span: Span) -> Iterator[Finding]:
        values = span.values
        # Before the CLIP term starts, its head is untrained and a low similarity is expected.
        begun = span.series.steps >= self._begin(history)
        warmup = int(np.argmax(begun)) + self.warmup if begun.any() else len(begun)
        at = first_sustained(values < self.low, patience=self.patience, warmup=warmup)
        if at is not None:
            text = f"{span.name} is {values[at]:.3f}, below {self.low:g}: the semantic head learns poorly."
            yield self.finding(span.step(at), text, subject=span.name)
        if self.baseline not in history:
            return
        mean = on_steps(history[self.baseline], span.series.steps)
        at = first_sustained(values <= mean, patience=self.patience, warmup=warmup)
        if at is not None:
            text = (
                f"{span.name} is {values[at]:.3f}, no better than always predicting the mean embedding "
                f"({mean[at]:.3f})."
            )
            yield self.finding(span.step(at), text, subject=span.name, severity="note")

    def _begin(self, history: History) -> float:
        """Return the step at which the CLIP term starts; infinity if the record shows that it has not started."""
        # Declared windows are exact; otherwise the recorded flag shows when the term started.
        if self.term in history.windows:
            return history.windows[self.term][0]
        if self.active not in history:
            return 0
        series = history[self.active]
        on = series.values > 0
        return float(series.steps[np.argmax(on)]) if on.any() else np.inf


def _renders_still_clip(psnr: float, bar: float, *, still: float, close: float) -> bool:
    """Return whether frames that hardly differ, so that their mean has a high PSNR, are rendered almost as well.

    Args:
        psnr: PSNR of the rendered frames, in dB.
        bar: PSNR of the mean frame, in dB.
        still: PSNR of the mean frame from which a clip counts as still, in dB.
        close: distance from the mean frame that is close, in dB.
    """
    return bar > still and psnr > bar - close


@dataclass(frozen=True, kw_only=True)
class LearnedNothing(HealthRule):
    """Training quality is no better than predicting the mean frame for every frame.

    A note if the frames hardly differ and are rendered almost as well: what is missing are details, or a longer run.
    """

    metric: str = "Train/PSNR"
    reference: str = "Reference/train_mean_frame"
    margin: float = threshold(0.0, unit="dB", reason="above the mean frame, which needs no network")
    still: float = threshold(24.0, unit="dB", reason=_STILL)
    close: float = threshold(3.0, unit="dB below the mean frame", reason=_CLOSE)
    warmup: int = threshold(
        20, unit="epochs", reason="even slow models pass the mean frame within their first few hundred steps"
    )
    patience: int = threshold(5, unit="epochs", reason="a single bad epoch is not a trend")
    remedy: ClassVar[str] = (
        "The network ignores its input: check the encoding and the frame index it receives, the learning rate, and "
        "that its output range matches that of the images."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a finding for each phase in which training PSNR stayed below the reference for `patience` epochs."""
        if self.reference not in history:
            return ()
        # The reference does not depend on training, so all its values are equal.
        bar = float(history[self.reference].values[-1])
        found: list[Finding] = []
        for span in spans(history, self.metric):
            at = first_sustained(span.values <= bar + self.margin, patience=self.patience, warmup=self.warmup)
            if at is not None:
                text = (
                    f"{span.name} is {span.values[at]:.2f} dB, the mean frame alone has {bar:.2f} dB: the network has "
                    "learned nothing."
                )
                severity: Severity = "warning"
                if _renders_still_clip(float(span.values[-1]), bar, still=self.still, close=self.close):
                    text = (
                        f"{span.name} is {span.values[at]:.2f} dB, below the mean frame of a still clip ({bar:.2f} dB)."
                    )
                    severity = "note"
                found.append(self.finding(span.step(at), text, subject=span.name, severity=severity))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class NoValidation(HealthRule):
    """There are no validation frames, so generalization is not measured."""

    severity: ClassVar[Severity] = "note"
    metric: str = "Eval/Info/num_val_frames"
    remedy: ClassVar[str] = "Choose a split with held-out frames (9_9_10 instead of 9_10_10)."

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a finding where an evaluation had no validation frames."""
        found: list[Finding] = []
        for span in spans(history, self.metric):
            at = first_sustained(span.values == 0)
            if at is not None:
                found.append(
                    self.finding(span.step(at), "the evaluation has no validation frames: the split holds out 0.")
                )
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class FramesWorseThanNothing(results.WorseThanNothing):
    """The frames that are rendered are no better than the mean frame.

    A note if the frames of the clip hardly differ and are rendered almost as well.
    """

    reported_as: ClassVar[str] = "WorseThanNothing"
    frames: str = "Eval/Pooled/val_psnr"
    still: float = threshold(24.0, unit="dB", reason=_STILL)
    close: float = threshold(3.0, unit="dB below the mean frame", reason=_CLOSE)
    # Against a mean frame, which may be close to a still clip, any gain counts.
    margin: float = threshold(0.0, unit="fraction of the baseline", reason="a still clip is close to its mean frame")
    remedy: ClassVar[str] = (
        "Do not use this result. Check that the frames are in the right order and of one clip (`fieldwatch doctor "
        "--data`), that the loss depends on the input, and that the learning rate is neither far too high nor too low."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return the findings; what held-out frames alone lack comes from too few training frames."""
        found = tuple(self._weighed(history, finding) for finding in super().__call__(history))
        if [finding.subject for finding in found] != [self.frames]:
            return found
        remedy = (
            "Train on more of the frames: leave out --data-split, or raise its first number (7_7_8, the default, "
            f"trains on seven of eight). Frames far from all trained ones cannot be known. {self.remedy}"
        )
        return tuple(replace(finding, remedy=remedy) for finding in found)

    def _weighed(self, history: History, finding: Finding) -> Finding:
        """Return a finding, as a note if a still clip is rendered almost as well as its mean frame."""
        if finding.subject not in self.baselines:
            return finding
        bar = float(history[self.baselines[finding.subject]].values[-1])
        if _renders_still_clip(float(history[finding.subject].values[-1]), bar, still=self.still, close=self.close):
            return replace(finding, severity="note")
        return finding


@dataclass(frozen=True, kw_only=True)
class EpochLossNotDecreasing(losses.LossNotDecreasing):
    """The epoch's mean loss is no lower than at the start of the run."""

    reported_as: ClassVar[str] = "LossNotDecreasing"
    metrics: Sequence[str] = (_EPOCH_LOSS,)
    head: int = threshold(2, unit="epochs", reason="the initial loss is their mean")
    window: int = threshold(3, unit="epochs", reason="length of the current mean")
    warmup: int = threshold(10, unit="epochs", reason="the first epochs include the learning rate warm-up")
    patience: int = threshold(3, unit="epochs", reason="a single bad epoch is not a trend")


@dataclass(frozen=True, kw_only=True)
class EpochLossOscillating(losses.LossOscillating):
    """The epoch's mean loss oscillates by more than its own magnitude."""

    reported_as: ClassVar[str] = "LossOscillating"
    metrics: Sequence[str] = (_EPOCH_LOSS,)
    block: int = threshold(1, unit="epochs", reason="epoch values are already averages")
    warmup: int = threshold(3, unit="epochs", reason="the loss falls steeply at first")


@dataclass(frozen=True, kw_only=True)
class EpochGradientVanishing(gradients.GradientVanishing):
    """The epoch's mean gradient norm is too small for the network to learn."""

    reported_as: ClassVar[str] = "GradientVanishing"
    metrics: Sequence[str] = (_EPOCH_NORM,)
    loss: str = _EPOCH_LOSS
    low: float = threshold(
        0.001,
        unit="gradient norm",
        reason=(
            "empirical, from the video models; an epoch mean is steadier than the value of a step, so the bound can be "
            "higher"
        ),
    )
    warmup: int = threshold(1, unit="epochs", reason="an epoch mean is steady after one epoch")
    patience: int = threshold(2, unit="epochs", reason="a single epoch may be an outlier")


@dataclass(frozen=True, kw_only=True)
class EpochGradientExploding(gradients.GradientExploding):
    """The epoch's mean gradient norm is too large for training."""

    reported_as: ClassVar[str] = "GradientExploding"
    metrics: Sequence[str] = (_EPOCH_NORM,)
    ratio: float = threshold(
        0.0, unit="times the baseline", reason="0 disables it: epochs are few, so only the absolute bound applies"
    )
    warmup: int = threshold(1, unit="epochs", reason="an epoch mean is steady after one epoch")
    patience: int = threshold(2, unit="epochs", reason="a single epoch may be an outlier")


_ADAPTED = (
    FramesWorseThanNothing(
        baselines={
            "Eval/Pooled/train_psnr": "Reference/train_mean_frame",
            "Eval/Pooled/val_psnr": "Reference/val_mean_frame",
        },
    ),
    finite.NonFinite(norms=("Gradients/", "Train/Gradients/"), losses=("Train/Loss/", "Train_Batch/")),
    terms.TermDominates(primary=(*terms.PRIMARY, "clip")),
)
"""General rules adapted to a video run: its epoch tags, and its CLIP term, which is a data term."""

VIDEO_RULES: tuple[HealthRule, ...] = (
    *(rule for rule in GENERAL if rule.name not in {adapted.name for adapted in _ADAPTED}),
    *_ADAPTED,
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
"""All health rules of a video run."""
