"""Memory, as the tensor profile records it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fieldwatch.health.allocation import format_bytes
from fieldwatch.health.finding import Finding
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.threshold import SMDEBUG, threshold
from fieldwatch.health.window import Span, first_sustained, on_steps, spans
from fieldwatch.record import History
from fieldwatch.record.memory import profile_tag

CATEGORIES = tuple(
    f"TensorProfiling/Tensor_Category/{category}_MB" for category in ("activations", "gradients", "buffers", "other")
)
PARAMETERS = "TensorProfiling/Tensor_Category/parameters_MB"


def _recorded(tags: Sequence[str], history: History) -> list[str]:
    """Tags of the tensor profile under the names that the run chose."""
    return [profile_tag(tag, history) for tag in tags]


@dataclass(frozen=True, kw_only=True)
class MemoryGrowing(HealthRule):
    """One category of memory grows from snapshot to snapshot, and the model's own growth does not explain it.

    Attributes:
        metrics: categories to judge.
        explained_by: growth of this metric (densification adds parameters) explains proportional growth of others.
    """

    metrics: Sequence[str] = CATEGORIES
    explained_by: str = PARAMETERS
    share: float = threshold(
        0.1,
        unit="share",
        reason="growth since the phase's first snapshots (smdebug GPUMemoryIncrease: 5 or 10 %)",
        source=SMDEBUG,
    )
    least: float = threshold(64.0, unit="MB", reason="smaller growth never ends a run")
    window: int = threshold(
        8, unit="snapshots", reason="without a fall: memory that comes and goes falls at least once"
    )
    warmup: int = threshold(2, unit="snapshots", reason="the optimizer's state comes with the first update")
    remedy: ClassVar[str] = (
        "Something keeps tensors alive: append loss.item() or .detach() to lists instead of tensors with their graph, "
        "and drop references to old renders and batches."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, per category and phase, where it had grown for too long."""
        return tuple(
            found for span in spans(history, *_recorded(self.metrics, history)) if (found := self._judge(history, span))
        )

    def _judge(self, history: History, span: Span) -> Finding | None:
        values = span.values
        positions = np.arange(len(span.values))
        if len(values) < self.window + self.warmup:
            return None
        scale = self._scale(history, span)
        # Memory per unit of model size: growth in proportion to the model is explained.
        unexplained = values / scale
        rising = np.concatenate(([False], np.diff(unexplained) > 0)) & (positions > self.warmup)
        # For each snapshot the last one at which memory had not risen: the climb began there.
        since = np.maximum.accumulate(np.where(rising, 0, positions))
        gain = unexplained - unexplained[since]
        grown = (
            (gain > self.share * unexplained[since]) & (gain * scale > self.least) & (positions - since >= self.window)
        )
        at = first_sustained(grown)
        if at is None:
            return None
        old = values[since[at]]
        snapshots = positions[at] - since[at]
        text = f"{span.name} is growing: {old:.0f} to {values[at]:.0f} MB over {snapshots} snapshots without a fall."
        return self.finding(span.step(at), text, subject=span.name)

    def _scale(self, history: History, span: Span) -> NDArray[np.float64]:
        """Return by what factor the model has grown since the first snapshot; 1 where that is not known."""
        explained_by = profile_tag(self.explained_by, history)
        if explained_by not in history:
            return np.ones(len(span.values))
        size = on_steps(history[explained_by], span.series.steps)
        known = np.flatnonzero(size > 0)
        return np.where(size > 0, size / size[known[0]], 1.0) if len(known) else np.ones(len(size))


@dataclass(frozen=True, kw_only=True)
class FragmentationHigh(HealthRule):
    """Much of the reserved memory lies idle; where the profile says how much of it is really lost, that counts.

    Idle cache as such is no loss: the next step takes it again. Lost are pieces of segments in use; where they
    are recorded and stay below ``lost`` percent of what is reserved, there is nothing to report.

    Attributes:
        metrics: idle share of what is reserved, in percent.
        pieces: what is lost in pieces, in MiB.
        reserved: what the allocator has, in MiB; a CPU records ``counted`` and not this.
        counted: what a run records on every device.
    """

    metrics: Sequence[str] = ("TensorProfiling/fragmentation_percent",)
    pieces: str = "TensorProfiling/Fragmentation/not_returnable_MB"
    reserved: str = "Memory/reserved_MB"
    counted: str = "Memory/allocated_MB"
    high: float = threshold(40.0, unit="%", reason="10 to 30 % idle is normal for a caching allocator")
    lost: float = threshold(
        10.0, unit="%", reason="in pieces of segments in use; below it the idle rest is cache that serves again"
    )
    warmup: int = threshold(2, unit="snapshots", reason="the pool fills")
    patience: int = threshold(4, unit="snapshots", reason="idle cache is taken again by later steps")
    remedy: ClassVar[str] = (
        "Idle cache is taken again by the next step, so that emptying it every few steps only costs time. If requests "
        "fail while much lies idle, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and call "
        "torch.cuda.empty_cache() once after densification."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where fragmentation had been high for too long; nothing of a CPU's heap, which is no device."""
        if self.counted in history and self.reserved not in history:
            return ()
        findings: list[Finding] = []
        for span in spans(history, *_recorded(self.metrics, history)):
            lost = self._lost(history, span)
            high = (span.values > self.high) & ~(lost <= self.lost)
            at = first_sustained(high, patience=self.patience, warmup=self.warmup)
            if at is not None:
                text = f"fragmentation is {span.values[at]:.0f} %, above {self.high:g} % for {self.patience} snapshots"
                text += "." if np.isnan(lost[at]) else f"; {lost[at]:.0f} % lie in pieces of segments in use."
                findings.append(self.finding(span.step(at), text, subject=span.name))
        return tuple(findings)

    def _lost(self, history: History, span: Span) -> NDArray[np.float64]:
        """Return the share lost in pieces, in percent of what is reserved; NaN where that is not recorded."""
        pieces = profile_tag(self.pieces, history)
        if pieces not in history or self.reserved not in history:
            return np.full(len(span.values), np.nan)
        steps = span.series.steps
        reserved = on_steps(history[self.reserved], steps)
        return 100 * on_steps(history[pieces], steps) / np.where(reserved > 0, reserved, np.nan)


@dataclass(frozen=True, kw_only=True)
class MemoryRanOut(HealthRule):
    """Memory ran out, and the work was done again in more and smaller parts; the run went on."""

    kind: str = "out_of_memory"
    remedy: ClassVar[str] = (
        "Nothing is lost: the work was done again from the same random state, and is done in as many parts from then "
        "on. To save that time, begin smaller (batch, rays, resolution); if it comes again and again, look at what "
        "grows (Memory/allocated_MB) and at who else is on the device (`fieldwatch gpu`)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, per step and kind of work, that it happened; several in one step are one."""
        chains: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
        for event in history.events(self.kind):
            chains.setdefault((int(event["step"]), str(event.get("what", "work"))), []).append(event)
        return tuple(self._describe(step, what, chain) for (step, what), chain in chains.items())

    def _describe(self, step: int, what: str, chain: Sequence[Mapping[str, Any]]) -> Finding:
        first = chain[0]
        last = chain[-1]
        size = last.get("requested")
        requested = "" if size is None else f" ({format_bytes(int(size))} were requested)"
        text = (
            f"memory ran out{requested}: '{what}' is done in {last.get('after')} parts instead of "
            f"{first.get('before')} from here on. {last.get('why', '')}"
        )
        return self.finding(step, text.strip(), subject=what)
