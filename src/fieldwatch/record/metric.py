"""A metric is declared once: its name is the TensorBoard tag, its unit and meaning live beside it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fieldwatch.record import tags

Better = Literal["higher", "lower", "steady", "none"]
"""Which values of a metric are better."""
Axis = Literal["step", "epoch"]
Kind = Literal["scalar", "histogram", "image", "text"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One quantity a run may record.

    Attributes:
        name: the TensorBoard tag, exactly; a ``<...>`` part stands for any text without a slash.
        unit: e.g. ``"dB"``, ``"ms"``, ``""`` for a pure number.
        meaning: one sentence: what it is, how it is computed.
        better: which way is good; ``"steady"`` for norms, ``"none"`` for facts.
        axis: what its horizontal axis counts: optimizer steps, or 1-based epochs.
        kind: scalars go to every sink; the others only to sinks that can show them.
        expected: what a healthy run shows.
    """

    name: str
    unit: str
    meaning: str
    better: Better = "none"
    axis: Axis = "step"
    kind: Kind = "scalar"
    expected: str = ""


def visible_columns(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that sinks show: all but the bookkeeping ones."""
    return tuple(name for name in columns if not tags.is_bookkeeping(name))
