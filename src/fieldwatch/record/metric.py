"""The declaration of one metric: TensorBoard tag, unit, meaning and expected range, in one place."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fieldwatch.record import tags

Better = Literal["higher", "lower", "steady", "none"]
"""Direction in which a metric improves."""
Axis = Literal["step", "epoch"]
Kind = Literal["scalar", "histogram", "image", "text"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One quantity that a run may record.

    Attributes:
        name: exact TensorBoard tag; a ``<...>`` placeholder matches any text without a slash.
        unit: physical unit, such as ``"dB"`` or ``"ms"``; ``""`` for a dimensionless number.
        meaning: one-sentence definition, including how the value is computed.
        better: direction of improvement; ``"steady"`` for norms, ``"none"`` for plain facts.
        axis: unit of the horizontal axis: 0-based optimizer steps or 1-based epochs.
        kind: type of the data; scalars reach every sink, other kinds only sinks that support them.
        expected: value or behavior in a healthy run.
    """

    name: str
    unit: str
    meaning: str
    better: Better = "none"
    axis: Axis = "step"
    kind: Kind = "scalar"
    expected: str = ""


def visible_columns(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that sinks display, in order; bookkeeping columns are dropped."""
    return tuple(name for name in columns if not tags.is_bookkeeping(name))
