"""The rule protocol, and the base class of the built-in rules."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import ClassVar

from fieldwatch.health.finding import Finding, Severity
from fieldwatch.record import History

RuleResult = Finding | tuple[Finding, ...] | None
Rule = Callable[[History], RuleResult]
"""Any callable that takes a history and returns one finding, several, or None. A `HealthRule` is one."""


@dataclass(frozen=True, kw_only=True)
class HealthRule(ABC):
    """Base class of the built-in rules.

    A rule holds thresholds only, never state: the same history always gives the same findings, and there is
    nothing to resume. The first line of a rule's docstring describes the condition that it detects, and appears in
    the documentation. Thresholds are fields declared with :func:`~fieldwatch.health.threshold`. To use other
    thresholds for other metrics, subclass the rule and set ``reported_as`` to the name of the original.

    Attributes:
        severity: default severity of the findings; a rule may choose another one per finding.
        remedy: advice attached to each finding.
        general: whether the rule is part of ``GENERAL``; False for rules that need the names of a run's metrics.
        reported_as: rule name used in findings; empty for the class name.

    Raises:
        ValueError: if a threshold is negative or not finite, or a patience, window or count is below 1.
    """

    severity: ClassVar[Severity] = "warning"
    remedy: ClassVar[str] = ""
    general: ClassVar[bool] = True
    reported_as: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Check the thresholds."""
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int | float):
                continue
            # Counts of recordings and blocks: 0 would mean a condition that holds before anything was recorded.
            least = 1 if field.name in {"patience", "window", "count", "block", "head"} else 0
            if not math.isfinite(value) or value < least:
                expected = f"expected a finite number of at least {least}"
                raise ValueError(f"{self.name}({field.name}={value}): {expected}; omit it to use the default")

    @property
    def name(self) -> str:
        """Name of the rule in its findings."""
        return self.reported_as or type(self).__name__

    @abstractmethod
    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return the findings for a history: at most one per subject and phase."""

    def finding(self, step: int, message: str, *, subject: str = "", severity: Severity | None = None) -> Finding:
        """Create a finding of this rule, with the rule's name, remedy and default severity."""
        level = severity or self.severity
        return Finding(rule=self.name, step=step, severity=level, message=message, remedy=self.remedy, subject=subject)
