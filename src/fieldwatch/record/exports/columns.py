"""Columns of an exported table: head columns, which every row has, and one column per metric."""

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
"""Columns of the events table: fields that many kinds share (null in other kinds), and the whole event as JSON."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns of an exported table.

    Attributes:
        head: names and types of the columns that every row has.
        metrics: metric name to column name; they differ only if a metric has the name of a head column.
    """

    head: Mapping[str, ColumnType]
    metrics: Mapping[str, str]

    @classmethod
    def of(cls, axis: Axis, metrics: Iterable[str], *, names_samples: bool) -> "Columns":
        """Return the columns of the table of an axis."""
        # The axis comes first; a table on the epoch axis also has the step that recorded each row.
        head: dict[str, ColumnType] = {"epoch": "int"} if axis == "epoch" else {}
        head |= {"step": "int", "seconds": "real", "segment": "int"}
        if names_samples:
            head["samples"] = "texts"
        return cls(head=head, metrics={name: f"{name} (metric)" if name in head else name for name in metrics})

    def head_of(self, batch: WideBatch) -> list[Cells]:
        """Return the values of the head columns."""
        values: dict[str, Any] = {
            "epoch": batch.positions,
            "step": batch.steps,
            "seconds": batch.seconds,
            "segment": batch.segments,
            "samples": batch.samples,
        }
        return [values[name] for name in self.head]


def event_cells(event: Mapping[str, Any]) -> list[Any]:
    """Return an event as a row of the events table."""
    # Other kinds of events may use these keys for values that are not strings: those stay in the JSON column only.
    texts = {name: event.get(name) for name in EVENT_COLUMNS}
    cells = [value if isinstance(value, str) else None for value in texts.values()]
    return [event["step"], *cells[1:-1], orjson.dumps(event).decode()]
