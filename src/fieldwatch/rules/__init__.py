"""Public: what a health rule is written with, and the toolkit's own rules by what they look at. It needs no torch.

``from fieldwatch.rules import gradients``, then ``gradients.GradientExploding(high=50.0)``.
"""

from fieldwatch.health import (
    LOOKBACK,
    HealthRule,
    Severity,
    Span,
    excused,
    first_held,
    named,
    on_steps,
    phases,
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
    keeping,
    losses,
    memory,
    parameters,
    quality,
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
    "finite",
    "first_held",
    "forecast",
    "gradients",
    "incidents",
    "keeping",
    "losses",
    "memory",
    "named",
    "on_steps",
    "parameters",
    "phases",
    "quality",
    "samples",
    "saving",
    "spans",
    "terms",
    "threshold",
    "timing",
    "trailing_count",
    "trailing_mean",
]
