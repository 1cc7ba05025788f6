"""Public API for writing health rules, and the built-in rules by topic. Importing it does not load torch.

``from fieldwatch.rules import gradients``, then ``gradients.GradientExploding(high=50.0)``.
"""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.health import (
        LOOKBACK,
        HealthRule,
        Severity,
        Span,
        excused,
        finished,
        first_sustained,
        named,
        on_steps,
        phases,
        planned_steps,
        spans,
        threshold,
        trailing_count,
        trailing_mean,
    )
    from fieldwatch.health.rules import (
        finite,
        forecast,
        gradients,
        incidents,
        loop,
        losses,
        memory,
        not_kept,
        parameters,
        quality,
        rates,
        results,
        samples,
        saving,
        terms,
        timing,
    )

__all__ = [
    "LOOKBACK",
    "HealthRule",
    "Severity",
    "Span",
    "excused",
    "finished",
    "finite",
    "first_sustained",
    "forecast",
    "gradients",
    "incidents",
    "loop",
    "losses",
    "memory",
    "named",
    "not_kept",
    "on_steps",
    "parameters",
    "phases",
    "planned_steps",
    "quality",
    "rates",
    "results",
    "samples",
    "saving",
    "spans",
    "terms",
    "threshold",
    "timing",
    "trailing_count",
    "trailing_mean",
]

__getattr__, __dir__ = lazy_names(__name__)
