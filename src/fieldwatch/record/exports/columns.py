"""The columns of an exported table: those that every row has, and one per metric."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import orjson
from numpy.typing import NDArray

from fieldwatch.record.exports.wide import WideBatch
from fieldwatch.record.metric import Axis

ColumnType = Literal["int", "real", "text", "texts"]
Cells: TypeAlias = NDArray[Any] | Sequence[Any]
"""The values of one column."""
EVENT_COLUMNS: dict[str, ColumnType] = {
    "step": "int",
    "kind": "text",
    "rule": "text",
    "severity": "text",
    "name": "text",
    "message": "text",
    "event": "text",
}
"""Of the table of events: the texts that many kinds have, null in the others, and the whole event as JSON."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What an exported table is made of.

    Attributes:
        head: the columns that every row has, and their types.
        metrics: metric name to column name: the same, unless a metric is called like a column of the head.
    """

    head: Mapping[str, ColumnType]
    metrics: Mapping[str, str]

    @classmethod
    def of(cls, axis: Axis, metrics: Iterable[str], *, names_samples: bool) -> "Columns":
        """Return the columns of an axis' table."""
        head: dict[str, ColumnType] = {"epoch": "int"} if axis == "epoch" else {}
        head |= {"step": "int", "seconds": "real", "segment": "int"}
        if names_samples:
            head["samples"] = "texts"
        return cls(head=head, metrics={name: f"{name} (metric)" if name in head else name for name in metrics})

    def head_of(self, batch: WideBatch) -> list[Cells]:
        """Return the values of the head's columns."""
        values: dict[str, Any] = {
            "epoch": batch.positions,
            "step": batch.steps,
            "seconds": batch.seconds,
            "segment": batch.segments,
            "samples": batch.samples,
        }
        return [values[name] for name in self.head]


def event_cells(event: Mapping[str, Any]) -> list[Any]:
    """Return an event as a row of the table of events."""
    texts = {name: event.get(name) for name in EVENT_COLUMNS}
    cells = [value if isinstance(value, str) else None for value in texts.values()]
    return [event["step"], *cells[1:-1], orjson.dumps(event).decode()]
