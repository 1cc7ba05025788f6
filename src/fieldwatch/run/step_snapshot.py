"""`StepSnapshot`: copy of what a step has recorded."""

from dataclasses import dataclass

from torch import Tensor

from fieldwatch.guard import Verdict
from fieldwatch.run.loop_checks.forwards import ForwardSnapshot


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSnapshot:
    """Copy of the values that a step has recorded, so that a retry can restore them.

    Attributes:
        device_values: recorded scalar tensors by metric name.
        host_values: recorded Python numbers by metric name.
        samples: names of the samples.
        verdict: verdict on the loss; None before it was observed.
        updated: whether the parameters were updated.
        forwards: what the checks of the loop measured in forwards of the step; None if none is due.
    """

    device_values: dict[str, Tensor]
    host_values: dict[str, float]
    samples: tuple[str, ...]
    verdict: Verdict | None
    updated: bool
    forwards: ForwardSnapshot | None
