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
        trivial: value that a prediction without training reaches, such as 0.1 for the accuracy of guessing one of ten
            classes; None if unknown. A final value that is no better is reported as an error. A baseline that depends
            on the data can be recorded as ``Baseline/<name>`` instead. Needs ``better``.

    Raises:
        ValueError: if ``trivial`` is declared for a metric whose ``better`` is neither ``"higher"`` nor ``"lower"``.
    """

    name: str
    unit: str
    meaning: str
    better: Better = "none"
    axis: Axis = "step"
    kind: Kind = "scalar"
    expected: str = ""
    trivial: float | None = None

    def __post_init__(self) -> None:
        """Check that a value without training can be compared."""
        if self.trivial is not None and self.better not in ("higher", "lower"):
            raise ValueError(
                f"Metric(name={self.name!r}, trivial={self.trivial}): expected better='higher' or better='lower', got "
                f"better={self.better!r}"
            )


def visible_columns(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that sinks display, in order; bookkeeping columns are dropped."""
    return tuple(name for name in columns if not tags.is_bookkeeping(name))
