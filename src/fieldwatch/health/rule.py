"""What a rule is: any callable that looks at a history; ours are frozen dataclasses with one base."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import ClassVar

from fieldwatch.health.finding import Finding, Severity
from fieldwatch.record import History

Found = Finding | tuple[Finding, ...] | None
Rule = Callable[[History], Found]
"""Judges the history: any callable that returns one finding, several, or None. A `HealthRule` is one."""


@dataclass(frozen=True, kw_only=True)
class HealthRule(ABC):
    """Base of the rules that come with the toolkit.

    A rule holds thresholds only, never state: the same history always gives the same findings, and there is
    nothing to resume. The first line of a rule's docstring says what it sees. Its thresholds are fields declared by
    :func:`~fieldwatch.health.threshold`; a rule with other thresholds for other metrics is a subclass that
    ``reported_as`` the first one.

    Attributes:
        severity: how bad a finding is, unless the rule decides it for each.
        remedy: what to do about a finding.
        general: whether ``GENERAL`` has the rule; False for one that needs to know a run's metrics.
        reported_as: the name that findings carry; empty for the class's own.

    Raises:
        ValueError: a threshold is negative or not finite, or a patience, window or count below 1.
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
            least = 1 if field.name in {"patience", "window", "count", "block", "head"} else 0
            if not math.isfinite(value) or value < least:
                wanted = f"wanted a finite number of at least {least}"
                raise ValueError(f"{self.name}({field.name}={value}): {wanted}; leave it out for the default")

    @property
    def name(self) -> str:
        """The rule's name, as findings carry it."""
        return self.reported_as or type(self).__name__

    @abstractmethod
    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return what is wrong in the history: at most one finding per subject and phase."""

    def finding(self, step: int, message: str, *, subject: str = "", severity: Severity | None = None) -> Finding:
        """Make a finding of this rule."""
        grade = severity or self.severity
        return Finding(rule=self.name, step=step, severity=grade, message=message, remedy=self.remedy, subject=subject)
