"""Findings about the memory of a run, with remedies."""

import numpy as np

from fieldwatch.base import number, percent
from fieldwatch.health import Finding, Severity
from fieldwatch.report.memory.jumps import GRAVE, Jump
from fieldwatch.report.memory.leak import LeakJudgment
from fieldwatch.report.memory.trace import MemoryHistory, in_mib

LOST = 0.10
"""Fraction of the reserved memory above which idle memory that cannot be returned is a warning."""
MODEL = frozenset(("parameters", "gradients", "optimizer"))
"""Categories whose jumps are explained: they grow with the model."""


def findings_of(trace: MemoryHistory, jumps: tuple[Jump, ...], leak: LeakJudgment) -> tuple[Finding, ...]:
    """Return the findings, in order of step."""
    findings = [*_leak(leak), *_jumps(jumps), *_lost(trace), *_damage(trace)]
    return tuple(sorted(findings, key=lambda finding: finding.step))


def _leak(leak: LeakJudgment) -> list[Finding]:
    growth = leak.growth
    if not leak.suspected or growth is None:
        return []
    interval = f"95 % interval {number(growth.low, 3)} to {number(growth.high, 3)}"
    text = f"{leak.why}: {number(growth.per_1000, 3)} MiB per 1000 iterations ({interval})."
    remedy = (
        "Check which category and component rise with it, and which large tensors are new; store loss.item() or "
        ".detach() in lists instead of tensors with their graph, and release old batches. A snapshot of the allocator "
        "(--snapshot-at) shows the allocating lines."
    )
    return [_finding("memory leak suspected", max(0, leak.step), "warning", text, remedy)]


def _jumps(jumps: tuple[Jump, ...]) -> list[Finding]:
    """Return one finding for all sudden rises that neither an event nor the model's growth explains."""
    rises = [jump for jump in jumps if jump.shape != "drop" and jump.share > GRAVE and not _explained(jump)]
    if not rises:
        return []
    # One finding for all of them: a loop that evaluates every 100 steps would otherwise raise hundreds.
    largest = max(rises, key=lambda jump: jump.change)
    where = f", mostly {largest.parts[0][0]}" if largest.parts else ""
    steps = ", ".join(str(jump.step) for jump in rises[:5]) + (" ..." if len(rises) > 5 else "")
    text = (
        f"{len(rises)} sudden rise{'s' * (len(rises) > 1)} of more than {percent(GRAVE, 0)} that no recorded event "
        f"explains (iteration {steps}); the largest {in_mib(largest.change, 0, signed=True)} at "
        f"{largest.step}{where}."
    )
    remedy = (
        "Check what the loop does at those iterations: an evaluation outside no_grad or not in chunks, a batch or "
        "view that is much larger, a new term."
    )
    return [_finding("memory rose suddenly", max(0, rises[0].step), "warning", text, remedy)]


def _explained(jump: Jump) -> bool:
    # A spike of the model's own memory is not explained: a model that grows does not shrink again at once.
    return bool(jump.near) or (bool(jump.parts) and jump.shape == "jump" and jump.parts[0][0] in MODEL)


def _lost(trace: MemoryHistory) -> list[Finding]:
    """Return a finding about idle memory that can neither serve large requests nor be returned."""
    lost = trace.fragments.get("not_returnable")
    # On a CPU, the heap of the C library is measured, which is not managed by a caching allocator.
    if lost is None or not trace.reserved.any() or trace.device == "cpu":
        return []
    share = lost / np.maximum(trace.reserved, 1e-9)
    # The median, since an evaluation leaves idle pieces behind that the next steps reuse.
    if float(np.median(share)) <= LOST:
        return []
    text = (
        f"half of the time more than {percent(float(np.median(share)), 0)} of the reserved memory is idle in pieces of "
        f"segments in use (at most {in_mib(lost.max(), 0)}): large requests cannot use it, and the allocator cannot "
        "return it to the device."
    )
    remedy = "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before the start, and allocate large buffers once."
    first = int(np.argmax(share > LOST))
    return [_finding("memory in pieces", int(trace.steps[first]), "warning", text, remedy)]


def _damage(trace: MemoryHistory) -> list[Finding]:
    if not trace.dropped:
        return []
    text = f"{trace.dropped} snapshot{'s' * (trace.dropped > 1)} of the log are damaged or truncated and were skipped."
    remedy = "If only the last one is truncated, the process ended while writing it; the others are valid."
    return [_finding("log damaged", max(0, int(trace.steps[-1])), "note", text, remedy)]


def _finding(rule: str, step: int, severity: Severity, message: str, remedy: str) -> Finding:
    return Finding(rule=rule, step=step, severity=severity, message=message, remedy=remedy)
