"""Memory to come: exhaustion by growth, and leaks. Both look at whole blocks of 64 steps, live and afterwards."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.forecast import Forecast, Leak, capacity, find_leak, forecast
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.threshold import threshold
from fieldwatch.health.window import LOOKBACK
from fieldwatch.record import History

Action = Literal["warn", "checkpoint", "cap"]
_BENCHMARK = "measured by benchmarks/forecast.py"
_RESERVED = "Memory/reserved_MB"
_SUBJECT = "Memory/peak_MB"


@dataclass(frozen=True, kw_only=True)
class OutOfMemoryAhead(HealthRule):
    """At the present growth, memory runs out before the growth ends.

    Far ahead that is a note, within ``soon`` steps a warning, within ``near`` steps an error; from the warning on the
    finding carries the actions.

    Attributes:
        actions: what the run should do: ``"warn"`` only says it, ``"checkpoint"`` saves, ``"cap"`` limits the size.
        unit: what the model's size counts, for the message.
        growth_until: the step at which growth ends, where no ``growth`` event says it (``growth_until``).
        end: the run's last step, where it is known.

    Raises:
        ValueError: an unknown action.
    """

    actions: tuple[Action, ...] = ("warn",)
    unit: str = "primitives"
    growth_until: int | None = None
    end: int | None = None
    sure: float = threshold(
        0.5,
        unit="probability",
        reason="more likely than not, by the spread of the growth curves and of the memory of a step",
        source=_BENCHMARK,
    )
    soon: int = threshold(
        3000, unit="steps", reason="time enough to change the settings by hand; farther ahead the finding is a note"
    )
    near: int = threshold(500, unit="steps", reason="five densifications: a run that can act should act now")
    remedy: ClassVar[str] = (
        "Cap growth at the size named, end it earlier or raise its gradient threshold; or lower the resolution of the "
        "view named, or crop it. A checkpoint before that step keeps the work."
    )

    def __post_init__(self) -> None:
        """Check thresholds and actions."""
        super().__post_init__()
        unknown = [action for action in self.actions if action not in get_args(Action)]
        if unknown:
            wanted = ", ".join(get_args(Action))
            raise ValueError(f"OutOfMemoryAhead(actions={self.actions}): {unknown[0]!r} is none of {wanted}")

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return the forecast made at the last whole block, if it says that memory runs out."""
        last = _last_block(history)
        ahead = forecast(history, last=last, growth_until=self.growth_until, end=self.end) if last > 0 else None
        if ahead is None or ahead.probability < self.sure:
            return ()
        severity = self._severity(ahead)
        memory = "VRAM" if _RESERVED in history else "memory"
        text = ahead.text(memory=memory, unit=self.unit)
        text = f"{text} (now {_size(ahead, self.unit)}; the process could have {ahead.capacity:,.0f} MB)."
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
    """Memory grows from step to step, and neither size, work nor new samples explain it.

    A note where it will not have taken even ``matters`` of the memory there is when the planned steps (the event
    ``plan``) are done.
    """

    significance: float = threshold(
        6.0,
        unit="standard errors",
        reason="500 looks at three windows in a run must not raise one false alarm",
        source=_BENCHMARK,
    )
    least: float = threshold(
        0.02, unit="MB per step", reason="600 MB over 30,000 steps; smaller leaks never end a run", source=_BENCHMARK
    )
    matters: float = threshold(
        0.01, unit="share of memory", reason="a leak that takes less until the planned end is a note (a CPU's heap)"
    )
    warmup: int = threshold(
        32, unit="steps", reason="in each phase optimizer state, cuDNN's trials, caches and workspaces come first"
    )
    remedy: ClassVar[str] = (
        "Something is kept from every step: append loss.item() or .detach() to lists instead of tensors with their "
        "graph, add up numbers instead of losses, and drop references to renders and batches; the tensor profile names "
        "the owner."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return the leak seen at the last whole block of the present phase, if there is one."""
        last = _last_block(history)
        if last <= 0:
            return ()
        first = history.phase_start(last) + self.warmup
        leak = find_leak(history, last=last, first=first, significance=self.significance, least=self.least)
        if leak is None:
            return ()
        text = f"{leak.metric} leaks {leak.rate:.2g} +- {2 * leak.error:.1g} MB per step: seen over {leak.steps} steps"
        available = capacity(history, last)
        left = None if available is None else (available - leak.level) / leak.rate
        ends = f"; at this rate memory is full in {left:,.0f} steps" if left is not None and left > 0 else ""
        text = f"{text}, and not explained by the model's size, the step's work or new samples{ends}."
        severity = "note" if available is not None and self._harmless(history, leak, last, available) else self.severity
        return (self.finding(last, text, subject=leak.metric, severity=severity),)

    def _harmless(self, history: History, leak: Leak, last: int, available: float) -> bool:
        """Whether the run is over before the leak has taken a share of memory that matters."""
        plans = history.events("plan")
        to_come = int(plans[-1]["steps"]) - last if plans else None
        return to_come is not None and leak.rate * (leak.steps + to_come) < self.matters * available


def _last_block(history: History) -> int:
    """Return the last step of the last whole block of 64: what is said then does not depend on when one looks."""
    return (history.step + 1) // LOOKBACK * LOOKBACK - 1


def _size(ahead: Forecast, unit: str) -> str:
    return replace(ahead, cap=ahead.size).cap_text(unit)
