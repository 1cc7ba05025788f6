"""Thresholds: a rule declares each number together with its unit, the reason for its value and its source."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fieldwatch.health.rule import HealthRule

AUTHORS = "chosen by the authors"
"""The source of a threshold that only its reason supports."""
SMDEBUG = "https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html"
"""Amazon SageMaker Debugger (smdebug): its built-in rules and their defaults."""
_METADATA = "fieldwatch.threshold"


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """What is known of one threshold of a rule.

    Attributes:
        value: the default.
        unit: what the value counts or measures.
        reason: why the default has this value.
        source: a link, a benchmark of this repository, or that the authors chose it.
    """

    value: float
    unit: str
    reason: str
    source: str


def threshold(value: float, *, unit: str, reason: str, source: str = AUTHORS) -> Any:
    """Declare a threshold as a field of a rule.

    In the class: ``gap: float = threshold(5.0, unit="dB", reason="below 3 dB is usual")``. As with
    :func:`dataclasses.field`, the annotation of the field gives its type; the dataclass replaces the declaration by
    the value. Any threshold can be overridden for one rule: ``GradientExploding(high=50.0)``.

    Args:
        value: the default; an int for a field that counts something.
        unit: what the value counts or measures.
        reason: why the default has this value.
        source: a link or a benchmark of this repository; left out where the authors chose the value.

    Raises:
        ValueError: unit, reason or source is empty.
    """
    if not (unit and reason and source):
        raise ValueError(
            f"threshold({value}): expected a unit, a reason and a source, got {unit!r}, {reason!r}, {source!r}"
        )
    about = Threshold(value=value, unit=unit, reason=reason, source=source)
    return field(default=value, metadata={_METADATA: about})


def thresholds_of(rule: "type[HealthRule] | HealthRule") -> Mapping[str, Threshold]:
    """Return the thresholds that a rule declares or inherits, by field name."""
    return {declared.name: declared.metadata[_METADATA] for declared in fields(rule) if _METADATA in declared.metadata}
