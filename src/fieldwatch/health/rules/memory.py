"""Memory, as the tensor profile records it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fieldwatch.health.defaults import integer, number
from fieldwatch.health.finding import Finding
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.window import Span, first_held, on_steps, spans
from fieldwatch.record import History

CATEGORIES = tuple(
    f"TensorProfiling/Tensor_Category/{category}_MB" for category in ("activations", "gradients", "buffers", "other")
)
PARAMETERS = "TensorProfiling/Tensor_Category/parameters_MB"


@dataclass(frozen=True, kw_only=True)
class MemoryGrowing(HealthRule):
    """One category of memory grows from snapshot to snapshot, and the model's own growth does not explain it.

    Attributes:
        metrics: categories to judge.
        explained_by: growth of this metric (densification adds parameters) explains proportional growth of others.
    """

    metrics: Sequence[str] = CATEGORIES
    explained_by: str = PARAMETERS
    share: float = number("MemoryGrowing", "share")
    least: float = number("MemoryGrowing", "least")
    window: int = integer("MemoryGrowing", "window")
    warmup: int = integer("MemoryGrowing", "warmup")
    remedy: ClassVar[str] = (
        "Something keeps tensors alive: append loss.item() or .detach() to lists instead of tensors with their graph, "
        "and drop references to old renders and batches."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, per category and phase, where it had grown for too long."""
        return tuple(found for span in spans(history, *self.metrics) if (found := self._judge(history, span)))

    def _judge(self, history: History, span: Span) -> Finding | None:
        values, places = span.values, np.arange(len(span.values))
        if len(values) < self.window + self.warmup:
            return None
        scale = self._scale(history, span)
        own = values / scale
        rising = np.concatenate(([False], np.diff(own) > 0)) & (places > self.warmup)
        since = np.maximum.accumulate(np.where(rising, 0, places))
        gain = own - own[since]
        grown = (gain > self.share * own[since]) & (gain * scale > self.least) & (places - since >= self.window)
        at = first_held(grown)
        if at is None:
            return None
        old, snapshots = values[since[at]], places[at] - since[at]
        text = f"{span.name} is growing: {old:.0f} to {values[at]:.0f} MB over {snapshots} snapshots without a fall."
        return self.finding(span.step(at), text, subject=span.name)

    def _scale(self, history: History, span: Span) -> NDArray[np.float64]:
        """Return by what factor the model has grown since the first snapshot; 1 where that is not known."""
        if self.explained_by not in history:
            return np.ones(len(span.values))
        size = on_steps(history[self.explained_by], span.series.steps)
        known = np.flatnonzero(size > 0)
        return np.where(size > 0, size / size[known[0]], 1.0) if len(known) else np.ones(len(size))


@dataclass(frozen=True, kw_only=True)
class FragmentationHigh(HealthRule):
    """Much of the reserved memory lies idle in pieces."""

    metrics: Sequence[str] = ("TensorProfiling/fragmentation_percent",)
    high: float = number("FragmentationHigh", "high")
    warmup: int = integer("FragmentationHigh", "warmup")
    patience: int = integer("FragmentationHigh", "patience")
    remedy: ClassVar[str] = (
        "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; call torch.cuda.empty_cache() once after densification, "
        "not every few steps."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where fragmentation had been high for too long."""
        found: list[Finding] = []
        for span in spans(history, *self.metrics):
            at = first_held(span.values > self.high, patience=self.patience, warmup=self.warmup)
            if at is not None:
                text = f"fragmentation is {span.values[at]:.0f} %, above {self.high:g} % for {self.patience} snapshots."
                found.append(self.finding(span.step(at), text, subject=span.name))
        return tuple(found)
