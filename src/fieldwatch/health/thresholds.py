"""Thresholds of rules, each declared with its unit, the reason for its default and the source of that value."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fieldwatch.health.rule import HealthRule

AUTHORS = "chosen by the authors"
"""Source of thresholds that the authors chose, for the reason given."""
SMDEBUG = "https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html"
"""Built-in rules of Amazon SageMaker Debugger (smdebug) and their defaults."""
_METADATA = "fieldwatch.threshold"


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """Metadata of one threshold of a rule.

    Attributes:
        value: default value.
        unit: unit of the value.
        reason: justification of the default.
        source: link, benchmark of this repository, or ``AUTHORS``.
    """

    value: float
    unit: str
    reason: str
    source: str


def threshold(value: float, *, unit: str, reason: str, source: str = AUTHORS) -> Any:
    """Declare a threshold as a field of a rule.

    In the class body: ``gap: float = threshold(5.0, unit="dB", reason="gaps below 3 dB are usual")``. As with
    :func:`dataclasses.field`, the annotation gives the type of the field, and the dataclass replaces the declaration
    with the default. Any threshold can be overridden per rule: ``GradientExploding(high=50.0)``.

    Args:
        value: default value; an int for counts.
        unit: unit of the value.
        reason: justification of the default.
        source: link or benchmark of this repository; omitted if the authors chose the value.

    Raises:
        ValueError: if the unit, reason or source is empty.
    """
    if not (unit and reason and source):
        raise ValueError(
            f"threshold({value}): expected a unit, a reason and a source, got {unit!r}, {reason!r}, {source!r}"
        )
    about = Threshold(value=value, unit=unit, reason=reason, source=source)
    # dataclasses keep metadata per field, and subclasses inherit it.
    return field(default=value, metadata={_METADATA: about})


def thresholds_of(rule: "type[HealthRule] | HealthRule") -> Mapping[str, Threshold]:
    """Return the thresholds that a rule declares or inherits, by field name."""
    return {declared.name: declared.metadata[_METADATA] for declared in fields(rule) if _METADATA in declared.metadata}
