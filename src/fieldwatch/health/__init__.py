"""Health checks: rules that read a run's history and report what is wrong, since which step, and how to fix it.

The rules themselves are in the modules of :mod:`fieldwatch.health.rules`.
"""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.health.allocation import AllocationRequest, DeviceMemory, parse_out_of_memory
    from fieldwatch.health.causes import Diagnosis, diagnose, explain
    from fieldwatch.health.closer_look import replay_command
    from fieldwatch.health.documentation import rules_markdown
    from fieldwatch.health.examiner import Examiner, examine
    from fieldwatch.health.finding import Finding, Severity, exit_code, findings_in, training_exit_code, worst
    from fieldwatch.health.out_of_memory import OutOfMemoryDiagnosis, triage
    from fieldwatch.health.rule import HealthRule, Rule
    from fieldwatch.health.rules import GENERAL
    from fieldwatch.health.rules.forecast import MemoryLeak, OutOfMemoryAhead
    from fieldwatch.health.rules.saving import DamagedRecord, FellBack
    from fieldwatch.health.window import (
        LOOKBACK,
        Span,
        excused,
        finished,
        first_sustained,
        named,
        on_steps,
        phases,
        planned_steps,
        spans,
        trailing_count,
        trailing_mean,
    )
from fieldwatch.health.thresholds import Threshold, threshold, thresholds_of

__all__ = [
    "GENERAL",
    "LOOKBACK",
    "AllocationRequest",
    "DamagedRecord",
    "DeviceMemory",
    "Diagnosis",
    "Examiner",
    "FellBack",
    "Finding",
    "HealthRule",
    "MemoryLeak",
    "OutOfMemoryAhead",
    "OutOfMemoryDiagnosis",
    "Rule",
    "Severity",
    "Span",
    "Threshold",
    "diagnose",
    "examine",
    "excused",
    "exit_code",
    "explain",
    "findings_in",
    "finished",
    "first_sustained",
    "named",
    "on_steps",
    "parse_out_of_memory",
    "phases",
    "planned_steps",
    "replay_command",
    "rules_markdown",
    "spans",
    "threshold",
    "thresholds_of",
    "trailing_count",
    "trailing_mean",
    "training_exit_code",
    "triage",
    "worst",
]

__getattr__, __dir__ = lazy_names(__name__)
