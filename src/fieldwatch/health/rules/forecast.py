"""Rules that forecast memory: exhaustion by model growth, and leaks.

Both evaluate complete blocks of 64 steps, so that a live run and a later examination agree.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

from fieldwatch.base import mebibytes, number
from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.forecast import Forecast, Leak, capacity, find_leaks, forecast
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.thresholds import threshold
from fieldwatch.health.window import LOOKBACK
from fieldwatch.record import History

Action = Literal["warn", "checkpoint", "cap"]
_BENCHMARK = "measured by benchmarks/forecast.py"
_RESERVED = "Memory/reserved_MB"
_SUBJECT = "Memory/peak_MB"


@dataclass(frozen=True, kw_only=True)
class OutOfMemoryAhead(HealthRule):
    """At the current growth, memory is predicted to run out before the growth ends.

    The finding is a note if memory lasts longer than ``soon`` steps, a warning within ``soon`` steps and an error
    within ``near`` steps. Warnings and errors carry the actions.

    Attributes:
        actions: actions that the run should take: ``"warn"`` only reports, ``"checkpoint"`` saves a checkpoint,
            ``"cap"`` limits the size of the model.
        unit: unit of the model size in the message.
        growth_until: step at which growth ends, if no ``growth`` event declares it (as ``growth_until``).
        end: last step of the run, if known.

    Raises:
        ValueError: if an action is unknown.
    """

    actions: tuple[Action, ...] = ("warn",)
    unit: str = "primitives"
    growth_until: int | None = None
    end: int | None = None
    sure: float = threshold(
        0.5,
        unit="probability",
        reason="more likely than not, given the spread of the growth curves and of the memory of a step",
        source=_BENCHMARK,
    )
    soon: int = threshold(
        3000, unit="steps", reason="enough time to change the settings by hand; farther ahead the finding is a note"
    )
    near: int = threshold(500, unit="steps", reason="five densifications: a run that can act should act now")
    remedy: ClassVar[str] = (
        "Cap the model at the given size, stop densification earlier or raise its gradient threshold; or crop the "
        "given view or lower its resolution. Save a checkpoint before that step."
    )

    def __post_init__(self) -> None:
        """Validate the thresholds and the actions."""
        super().__post_init__()
        unknown = [action for action in self.actions if action not in get_args(Action)]
        if unknown:
            choices = ", ".join(get_args(Action))
            raise ValueError(f"OutOfMemoryAhead(actions={self.actions}): expected {choices}, got {unknown[0]!r}")

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return the forecast at the last complete block, if it predicts that memory runs out."""
        last = _last_block(history)
        ahead = forecast(history, last=last, growth_until=self.growth_until, end=self.end) if last > 0 else None
        if ahead is None or ahead.probability < self.sure:
            return ()
        severity = self._severity(ahead)
        memory = "VRAM" if _RESERVED in history else "memory"
        text = ahead.text(memory=memory, unit=self.unit)
        text = f"{text} (now {_size(ahead, self.unit)}; the process could have {mebibytes(ahead.capacity)})."
        finding = self.finding(last, text, subject=_SUBJECT, severity=severity)
        actions = [action for action in self.actions if action != "warn"]
        if severity == "note" or not actions:
            return (finding,)
        return (replace(finding, action=",".join(actions), limit=ahead.cap if "cap" in actions else None),)

    def _severity(self, ahead: Forecast) -> Severity:
        left = ahead.low - ahead.made
        return "error" if left <= self.near else "warning" if left <= self.soon else "note"


@dataclass(frozen=True, kw_only=True)
class MemoryLeak(HealthRule):
    """Memory grows from step to step, and neither model size, work per step nor new samples explain it.

    The finding is a note if the leak will have taken less than a fraction ``matters`` of the available memory by the
    end of the planned steps (event ``plan``), and only if it lasts: a heap that fills within some hundred steps grows,
    too.
    """

    significance: float = threshold(
        6.0,
        unit="standard errors",
        reason="500 examinations of three windows in a run must not raise a single false alarm",
        source=_BENCHMARK,
    )
    least: float = threshold(
        0.02, unit="MiB per step", reason="600 MiB over 30,000 steps; smaller leaks never end a run", source=_BENCHMARK
    )
    matters: float = threshold(
        0.01,
        unit="fraction of memory",
        reason="a leak that takes less by the planned end is a note (such as in the heap of a CPU run)",
    )
    lasting: int = threshold(
        480, unit="steps", reason="of a leak that is a note; the heap of a CPU run grows for some 250 steps, then stops"
    )
    warmup: int = threshold(
        32, unit="steps", reason="each phase first allocates optimizer state, cuDNN trials, caches and workspaces"
    )
    remedy: ClassVar[str] = (
        "Something is kept from every step. Append loss.item() or .detach() to lists instead of tensors with their "
        "graph, accumulate numbers instead of losses, and drop references to renders and batches. The tensor profile "
        "names the owner."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return the leak found at the last complete block of the current phase, if there is one."""
        last = _last_block(history)
        if last <= 0:
            return ()
        first = history.phase_start(last) + self.warmup
        for leak in find_leaks(history, last=last, first=first, significance=self.significance, least=self.least):
            available = capacity(history, last)
            harmless = available is not None and self._harmless(history, leak, last, available)
            if not harmless or leak.steps >= self.lasting:
                text = _leak_text(leak, available)
                severity = "note" if harmless else self.severity
                return (self.finding(last, text, subject=leak.metric, severity=severity),)
        return ()

    def _harmless(self, history: History, leak: Leak, last: int, available: float) -> bool:
        """Return whether the run ends before the leak has taken a relevant fraction of memory."""
        plans = history.events("plan")
        remaining = int(plans[-1]["steps"]) - last if plans else None
        return remaining is not None and leak.rate * (leak.steps + remaining) < self.matters * available


def _leak_text(leak: Leak, available: float | None) -> str:
    # Two standard errors: a 95 % interval.
    rate = f"{number(leak.rate, 2)} +- {number(2 * leak.error, 1)} MiB per step"
    left = None if available is None else (available - leak.level) / leak.rate
    ends = f"; at this rate memory is full in {left:,.0f} steps" if left is not None and left > 0 else ""
    return (
        f"{leak.metric} leaks {rate} over the last {leak.steps} steps, not explained by the model's size, the "
        f"step's work or new samples{ends}."
    )


def _last_block(history: History) -> int:
    """Return the last step of the last complete block of 64 steps."""
    # Findings must not depend on the step at which the run is examined.
    return (history.step + 1) // LOOKBACK * LOOKBACK - 1


def _size(ahead: Forecast, unit: str) -> str:
    return replace(ahead, cap=ahead.size).cap_text(unit)
