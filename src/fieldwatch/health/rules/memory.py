"""Rules for memory, as recorded by the tensor profile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import mebibytes, nbytes, percent
from fieldwatch.health.finding import Finding
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.thresholds import SMDEBUG, threshold
from fieldwatch.health.window import Span, first_sustained, on_steps, spans
from fieldwatch.record import History, tags
from fieldwatch.record.memory import profile_tag

CATEGORIES = tuple(
    f"TensorProfiling/Tensor_Category/{category}_MB" for category in ("activations", "gradients", "buffers", "other")
)
PARAMETERS = "TensorProfiling/Tensor_Category/parameters_MB"


def _recorded(names: Sequence[str], history: History) -> list[str]:
    """Return metrics of the tensor profile under the names that the run uses."""
    return [profile_tag(tag, history) for tag in names]


@dataclass(frozen=True, kw_only=True)
class MemoryGrowing(HealthRule):
    """One category of memory grows from snapshot to snapshot, and the growth of the model does not explain it.

    Attributes:
        metrics: categories to check.
        explained_by: metric whose growth explains proportional growth of the others (densification adds parameters).
    """

    metrics: Sequence[str] = CATEGORIES
    explained_by: str = PARAMETERS
    share: float = threshold(
        0.1,
        unit="fraction",
        reason="growth since memory last fell (smdebug GPUMemoryIncrease: 5 or 10 %)",
        source=SMDEBUG,
    )
    least: float = threshold(64.0, unit="MiB", reason="smaller growth never ends a run")
    window: int = threshold(
        8, unit="snapshots", reason="number of snapshots without a fall; memory that is released falls at least once"
    )
    warmup: int = threshold(2, unit="snapshots", reason="the first update allocates the optimizer's state")
    remedy: ClassVar[str] = (
        "Something keeps tensors alive. Append loss.item() or .detach() to lists instead of tensors with their graph, "
        "and drop references to old renders and batches."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, per category and phase, where its memory had grown for too long."""
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
        # For each snapshot, the last one at which memory did not rise: the current climb began there.
        since = np.maximum.accumulate(np.where(rising, 0, positions))
        gain = unexplained - unexplained[since]
        grown = (
            (gain > self.share * unexplained[since]) & (gain * scale > self.least) & (positions - since >= self.window)
        )
        # The number of snapshots is already part of the condition.
        at = first_sustained(grown)
        if at is None:
            return None
        # Both in MiB, since a growth of some MiB would not show in GiB.
        old = mebibytes(float(values[since[at]]), 0, unit="MiB")
        new = mebibytes(float(values[at]), 0, unit="MiB")
        snapshots = positions[at] - since[at]
        text = f"{span.name} is growing: {old} to {new} over {snapshots} snapshots without a fall."
        return self.finding(span.step(at), text, subject=span.name)

    def _scale(self, history: History, span: Span) -> NDArray[np.float64]:
        """Return the factor by which the model has grown since the first snapshot; 1 if unknown."""
        explained_by = profile_tag(self.explained_by, history)
        if explained_by not in history:
            return np.ones(len(span.values))
        size = on_steps(history[explained_by], span.series.steps)
        known = np.flatnonzero(size > 0)
        return np.where(size > 0, size / size[known[0]], 1.0) if len(known) else np.ones(len(size))


@dataclass(frozen=True, kw_only=True)
class TensorsKept(HealthRule):
    """Tensors of earlier steps are alive at the end with their graphs, and memory has grown all along.

    Attributes:
        kind: kind of the events to report.
        metric: metric of the memory, in MiB.
    """

    kind: str = tags.KEPT_TENSORS
    metric: str = "Memory/allocated_MB"
    share: float = threshold(0.5, unit="tensors per step", reason="one of every second step; loops keep those of a few")
    least: float = threshold(8.0, unit="MiB", reason="of tensors; scalars of a long episode take far less")
    parts: int = threshold(6, unit="parts of the run", reason="what is allocated once is in the first of them")
    rise: float = threshold(
        0.04, unit="fraction of the whole growth", reason="in each part; a cache that is full does not grow"
    )
    remedy: ClassVar[str] = (
        "Keep values, not tensors with their graph: append loss.item() or output.detach().cpu(), and let a forward "
        "hook replace what it kept at the step before, or clear its list at every step."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding for the tensors that were counted at the end."""
        return tuple(
            self.finding(int(event["step"]), self._text(event, history), subject=str(event.get("holder", "")))
            for event in history.events(self.kind)[-1:]
            if event["count"] >= self.share * (history.step + 1)
            and event["nbytes"] >= self.least * (1 << 20)
            and self._grows(history)
        )

    def _grows(self, history: History) -> bool:
        """Return whether memory was higher in each part of the run than in the one before."""
        if self.metric not in history or len(history[self.metric]) < 2 * self.parts:
            return False
        levels = np.array([np.median(part) for part in np.array_split(history[self.metric].values, self.parts)])
        return bool((np.diff(levels) > self.rise * (levels[-1] - levels[0])).all() and levels[-1] > levels[0])

    def _text(self, event: Mapping[str, Any], history: History) -> str:
        values = history[self.metric].values
        holder = f", most of them in '{event['holder']}'" if event.get("holder") else ""
        return (
            f"{event['count']:,} tensors with their graphs ({nbytes(int(event['nbytes']), 1)}) are alive at the "
            f"end{holder}, and memory grew all along, from {mebibytes(float(values[0]), 0, unit='MiB')} to "
            f"{mebibytes(float(values[-1]), 0, unit='MiB')}: memory leaks at every step."
        )


@dataclass(frozen=True, kw_only=True)
class FragmentationHigh(HealthRule):
    """A large fraction of the reserved memory is idle and, if recorded, in blocks that cannot be returned.

    Idle cache is not a loss, because the next step uses it again. Lost are idle blocks in segments that are partly in
    use. If these are recorded and stay below ``lost`` percent of the reserved memory, there is no finding.

    Attributes:
        metrics: idle memory in percent of the reserved memory.
        pieces: idle memory in segments that are partly in use, in MiB.
        reserved: memory reserved by the allocator, in MiB; not recorded on a CPU.
        counted: metric that is recorded on every device.
    """

    metrics: Sequence[str] = ("TensorProfiling/fragmentation_percent",)
    pieces: str = "TensorProfiling/Fragmentation/not_returnable_MB"
    reserved: str = "Memory/reserved_MB"
    counted: str = "Memory/allocated_MB"
    high: float = threshold(40.0, unit="%", reason="10 to 30 % idle is normal for a caching allocator")
    lost: float = threshold(
        10.0, unit="%", reason="idle memory in segments in use; if less is lost, the idle memory is reusable cache"
    )
    warmup: int = threshold(2, unit="snapshots", reason="the pool fills")
    patience: int = threshold(4, unit="snapshots", reason="later steps reuse idle cache")
    remedy: ClassVar[str] = (
        "The next step reuses idle cache, so emptying it every few steps only costs time. If requests fail while much "
        "memory is idle, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and call torch.cuda.empty_cache() once "
        "after densification."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where fragmentation had been high for too long."""
        # A CPU run records no reserved memory: its heap is not managed by a caching allocator.
        if self.counted in history and self.reserved not in history:
            return ()
        findings: list[Finding] = []
        for span in spans(history, *_recorded(self.metrics, history)):
            lost = self._lost(history, span)
            # Negated, because `lost` is NaN if unknown, and an unknown loss must not suppress the finding.
            high = (span.values > self.high) & ~(lost <= self.lost)
            at = first_sustained(high, patience=self.patience, warmup=self.warmup)
            if at is not None:
                idle = percent(span.values[at] / 100, 0)
                limit = percent(self.high / 100, 0)
                text = f"fragmentation is {idle}, above {limit} for {self.patience} snapshots"
                in_pieces = percent(lost[at] / 100, 0)
                text += "." if np.isnan(lost[at]) else f"; {in_pieces} are in segments that are partly in use."
                findings.append(self.finding(span.step(at), text, subject=span.name))
        return tuple(findings)

    def _lost(self, history: History, span: Span) -> NDArray[np.float64]:
        """Return the idle memory in segments in use, in percent of the reserved memory; NaN if not recorded."""
        pieces = profile_tag(self.pieces, history)
        if pieces not in history or self.reserved not in history:
            return np.full(len(span.values), np.nan)
        steps = span.series.steps
        reserved = on_steps(history[self.reserved], steps)
        return 100 * on_steps(history[pieces], steps) / np.where(reserved > 0, reserved, np.nan)


@dataclass(frozen=True, kw_only=True)
class MemoryRanOut(HealthRule):
    """Memory ran out, and the work was retried in more and smaller micro-batches; the run continued.

    Attributes:
        kind: kind of the events to report.
    """

    kind: str = "out_of_memory"
    remedy: ClassVar[str] = (
        "Nothing is lost: the work was retried from the same random state, and stays split into as many parts. To save "
        "the time of the retry, start smaller (batch, rays, resolution). If it keeps happening, check what grows "
        "(Memory/allocated_MB) and which other processes use the device (`fieldwatch gpu`)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per step and kind of work; repeated splits within a step are merged."""
        # A step may split its work several times: 1, 2, 4, ... parts.
        chains: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
        for event in history.events(self.kind):
            chains.setdefault((int(event["step"]), str(event.get("what", "work"))), []).append(event)
        return tuple(self._describe(step, what, chain) for (step, what), chain in chains.items())

    def _describe(self, step: int, what: str, chain: Sequence[Mapping[str, Any]]) -> Finding:
        first = chain[0]
        last = chain[-1]
        size = last.get("requested")
        requested = "" if size is None else f" ({nbytes(int(size), 2)} were requested)"
        text = (
            f"memory ran out{requested}: '{what}' is done in {last.get('after')} parts instead of "
            f"{first.get('before')} from now on. {last.get('why', '')}"
        )
        return self.finding(step, text.strip(), subject=what)
