"""Rules for gradients, parameters and inputs that are lost in half types."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fieldwatch.base import number, percent
from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.rules.poor_results import ends_poorly, has_stalled, is_good
from fieldwatch.health.thresholds import threshold
from fieldwatch.health.window import finished, finite_median, first_sustained, on_steps
from fieldwatch.record import History, tags

_IEEE = "https://doi.org/10.1109/IEEESTD.2019.8766229"
"""IEEE 754-2019: binary16 has 10 bits and a smallest number of 2**-24."""


@dataclass(frozen=True, kw_only=True)
class HalfUnderflow(HealthRule):
    """Gradients underflow in float16: many entries are rounded to its smallest numbers, or to 0."""

    share: float = threshold(
        0.1,
        unit="fraction of the nonzero gradient entries",
        reason="multiples of 2**-24 below 2**-19; gradients of float32 or with loss scaling have none",
        source=_IEEE,
    )
    patience: int = threshold(2, unit="recordings", reason="a single one may belong to an unusual batch")
    remedy: ClassVar[str] = (
        "Scale the loss: torch.amp.GradScaler with scaler.scale(loss).backward() and scaler.unscale_(optimizer) before "
        "step.update(...), or use bfloat16, which has the range of float32."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return the step at which so many entries had been lost for long enough."""
        if tags.HALF_GRADIENT not in history:
            return ()
        lost = history[tags.HALF_GRADIENT]
        at = first_sustained(lost.values > self.share, patience=self.patience)
        if at is None:
            return ()
        zeros = on_steps(history[tags.ZERO_GRADIENT], lost.steps)[at] if tags.ZERO_GRADIENT in history else np.nan
        text = (
            f"gradients underflow in float16: {percent(lost.values[at], 0)} of the nonzero entries have at most "
            "five bits "
            f"left, and {percent(zeros, 0)} of all entries are exactly 0."
        )
        return (self.finding(int(lost.steps[at]), text, subject=tags.TOTAL_NORM),)


@dataclass(frozen=True, kw_only=True)
class RoundedInput(HealthRule):
    """The float32 inputs of a module hold only numbers of bfloat16: they were rounded before.

    A warning unless the result is good at the end: what is far apart, such as pixels, does not need more bits.
    """

    severity: ClassVar[Severity] = "note"
    share: float = threshold(0.98, unit="fraction of the entries", reason="one of 65,536 is exact by chance")
    good: float = threshold(0.9, unit="fraction", reason="so many right answers need no more bits")
    count: int = threshold(8, unit="recordings", reason="enough to be no property of a single batch")
    remedy: ClassVar[str] = (
        "Compute encodings of positions and times in float32, and cast to half types only behind them: bfloat16 has 8 "
        "bits, so that places and times that are closer than 1/256 of their size become the same input."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        found: list[Finding] = []
        for item, name in tags.INPUT_ROUNDED.parts(history.names()).items():
            series = history[name]
            if len(series) < self.count or finite_median(series.values) < self.share:
                continue
            severity: Severity = "warning" if finished(history) and not is_good(history, self.good) else "note"
            text = (
                f"the float32 inputs of '{item}' are exact in bfloat16: they were rounded to its 8 bits of precision "
                "before, so that nearby positions or times are the same input."
            )
            step = history.step if severity == "warning" else int(series.steps[self.count - 1])
            found.append(self.finding(step, text, subject=item, severity=severity))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class ScalerSkips(HealthRule):
    """The gradient scaler skips so many updates that they are no search for its factor any more.

    Attributes:
        skipped: metric that is 1 at the steps whose update was skipped.
        factor: metric with the factor of the scaler.
    """

    skipped: str = "Guard/scaler_skipped"
    factor: str = "Guard/loss_scale"
    share: float = threshold(
        0.2,
        unit="fraction of the later steps",
        reason="a scaler that has found its factor skips one update in 2,000; with growth_interval=10, a tenth",
    )
    search: int = threshold(
        24, unit="steps", reason="from the default factor, 2**16, a scaler gets to 1 within 17 skipped updates"
    )
    least: int = threshold(8, unit="updates", reason="fewer skipped updates cost nothing")
    remedy: ClassVar[str] = (
        "Use bfloat16 (torch.autocast(..., dtype=torch.bfloat16)), which has the range of float32 and needs no "
        "GradScaler. Otherwise look for what overflows in float16: compute the loss and large sums in float32, "
        "normalize inputs and activations, clip gradients after scaler.unscale_(optimizer), and leave "
        "growth_interval at 2000."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return the step at which so many updates had been skipped."""
        if self.skipped not in history:
            return ()
        series = history[self.skipped]
        later = series.values[self.search :] > 0
        if len(later) < self.least or np.count_nonzero(later) < self.least:
            return ()
        # Judged as soon as enough were skipped, and again at every later step.
        counts = np.cumsum(later)
        seen = np.arange(1, len(later) + 1)
        high = (counts >= self.least) & (counts > self.share * seen) & (seen >= self.search)
        if not high[-1]:
            return ()
        at = int(np.argmax(high))
        text = (
            f"the gradient scaler skipped {counts[-1]} of the last {len(later)} updates, long after its search for a "
            "factor: gradients overflow in float16"
        )
        if self.factor in history:
            factors = history[self.factor].values
            text += f", although the loss scale went from {number(factors[0])} to {number(factors[-1])}"
        return (self.finding(int(series.steps[self.search + at]), f"{text}.", subject=self.skipped),)


@dataclass(frozen=True, kw_only=True)
class HalfParameters(HealthRule):
    """An optimizer updates parameters of float16 or bfloat16.

    Of bfloat16, it is a warning if the result is poor and the updates are too small for the type, otherwise a note.

    Attributes:
        kind: kind of the events to report.
    """

    kind: str = "half_parameters"
    small: float = threshold(
        4e-3,
        unit="update / parameter norm",
        reason="half of the distance of two neighboring numbers of bfloat16, 2**-8 of them; smaller updates are lost",
        source="https://en.wikipedia.org/wiki/Bfloat16_floating-point_format",
    )
    remedy: ClassVar[str] = (
        "Keep the parameters in float32 and compute in half precision: remove model.half(), and use torch.autocast "
        "with torch.amp.GradScaler, or bfloat16. Updates below 1/2048 of a float16 number are lost to rounding, and "
        "Adam's epsilon of 1e-8 is 0 there."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding if there are such parameters."""
        for event in history.events(self.kind):
            names = event["names"]
            kind = str(event.get("dtype", "float16"))
            text = f"{event['count']} trained parameters are of {kind}, such as '{names[0]}'."
            if kind == "float16":
                return (self.finding(int(event["step"]), text, subject=str(names[0])),)
            return (self._of_bfloat16(history, event, text),)
        return ()

    def _of_bfloat16(self, history: History, event: Mapping[str, Any], text: str) -> Finding:
        ratios = [finite_median(history[name].values) for name in tags.UPDATE_RATIO.parts(history.names()).values()]
        lost = bool(ratios) and max(ratios) < self.small and (ends_poorly(history) or has_stalled(history))
        if lost:
            text += (
                f" An update changes them by {number(max(ratios), 2)} of their norm, which is less than the distance "
                "of two neighboring numbers of this type (1/256): most of it is lost to rounding (precision)."
            )
        finding = self.finding(
            history.step if lost else int(event["step"]),
            text,
            subject=str(event["names"][0]),
            severity="warning" if lost else "note",
        )
        return replace(finding, remedy=_BFLOAT16)


_BFLOAT16 = (
    "Keep the parameters in float32 and compute in bfloat16: remove model.to(torch.bfloat16), and use "
    "torch.autocast('cpu' or 'cuda', dtype=torch.bfloat16). Otherwise raise the learning rate until updates are about "
    "1e-2 of the parameters, or round stochastically."
)
