"""Rules for gradients and parameters that are lost in float16."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fieldwatch.base import percent
from fieldwatch.health.finding import Finding
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.thresholds import threshold
from fieldwatch.health.window import first_sustained, on_steps
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
class HalfParameters(HealthRule):
    """An optimizer updates parameters of float16.

    Attributes:
        kind: kind of the events to report.
    """

    kind: str = "half_parameters"
    remedy: ClassVar[str] = (
        "Keep the parameters in float32 and compute in half precision: remove model.half(), and use torch.autocast "
        "with torch.amp.GradScaler, or bfloat16. Updates below 1/2048 of a float16 number are lost to rounding, and "
        "Adam's epsilon of 1e-8 is 0 there."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding if there are such parameters."""
        for event in history.events(self.kind):
            names = event["names"]
            text = f"{event['count']} trained parameters are of float16, such as '{names[0]}'."
            return (self.finding(int(event["step"]), text, subject=str(names[0])),)
        return ()
