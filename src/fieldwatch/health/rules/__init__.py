"""The built-in rules, grouped by topic: ``from fieldwatch.health.rules import losses``.

To add a rule, define a class in one of these modules: ``GENERAL`` and ``docs/rules.md`` are generated from the modules.
Rules that only one pipeline uses belong in that pipeline.
"""

import inspect
from types import ModuleType

from fieldwatch.health.rule import HealthRule
from fieldwatch.health.rules import (
    batches,
    chance,
    course,
    doubts,
    earlier,
    evaluated,
    evaluations,
    finite,
    forecast,
    gradients,
    incidents,
    kept,
    loop,
    losses,
    memory,
    not_kept,
    objectives,
    parameters,
    precision,
    progress,
    quality,
    rates,
    results,
    samples,
    saving,
    sequences,
    settings,
    simple,
    targets,
    terms,
    timing,
    untrained,
)

__all__ = [
    "GENERAL",
    "RULES",
    "batches",
    "chance",
    "course",
    "doubts",
    "earlier",
    "evaluated",
    "evaluations",
    "finite",
    "forecast",
    "gradients",
    "incidents",
    "kept",
    "loop",
    "losses",
    "memory",
    "not_kept",
    "objectives",
    "parameters",
    "precision",
    "progress",
    "quality",
    "rates",
    "results",
    "rules_in",
    "samples",
    "saving",
    "sequences",
    "settings",
    "simple",
    "targets",
    "terms",
    "timing",
    "untrained",
]

_MODULES = (
    finite,
    incidents,
    loop,
    kept,
    untrained,
    evaluations,
    evaluated,
    batches,
    precision,
    samples,
    losses,
    objectives,
    sequences,
    settings,
    targets,
    terms,
    gradients,
    parameters,
    timing,
    memory,
    forecast,
    saving,
    not_kept,
    quality,
    rates,
    results,
    progress,
    chance,
    simple,
    course,
    earlier,
    doubts,
)


def rules_in(module: ModuleType) -> tuple[type[HealthRule], ...]:
    """Return the rule classes that a module defines, in order of definition."""
    return tuple(
        member
        for member in vars(module).values()
        # Classes that a module imports belong to another module.
        if inspect.isclass(member) and issubclass(member, HealthRule) and member.__module__ == module.__name__
    )


RULES: tuple[type[HealthRule], ...] = tuple(rule for module in _MODULES for rule in rules_in(module))
"""All built-in rule classes."""

GENERAL: tuple[HealthRule, ...] = tuple(rule() for rule in RULES if rule.general)
"""Rules for every run, with their default thresholds."""
