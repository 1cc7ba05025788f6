"""The in-memory history of a run, read by the rules of a live run and the reports of a finished one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import number
from fieldwatch.record import tags
from fieldwatch.record.events import check_event
from fieldwatch.record.row import Block
from fieldwatch.record.series import SampleLosses, Series, later_wins
from fieldwatch.record.table import ARRIVAL, BEGINNING, POSITION, SECONDS, STEP, VALUE, Table

_SHOWN = 30
"""Number of metrics that a notebook shows."""
_NO_SAMPLES = SampleLosses((), np.empty(0, np.intp), np.empty((5, 0)))


class History:
    """The recorded values of each metric, with the events and the declared phases.

    Appending a block copies it once (amortized constant time per value). Series are assembled on access and cached
    until new rows arrive. A series never changes after it was returned. Not thread-safe: read the history from the
    thread that extends it.

    Args:
        capacity: number of most recent values to keep per metric, so that a rarely recorded metric keeps a longer
            past; None keeps all. The same limit applies to the events of each kind.

    Attributes:
        step: last recorded step; -1 if there is none.
        first: first recorded step, even if its row has been dropped to stay within the capacity; -1 if there is none.
        windows: first and last active step of each loss term, as declared by ``windows`` events.

    Raises:
        ValueError: if the capacity is not positive.
    """

    def __init__(self, capacity: int | None = 4096) -> None:
        if capacity is not None and capacity < 1:
            raise ValueError(f"History(capacity={capacity}): expected at least 1, or None to keep everything")
        self.step = self.first = -1
        self.windows: dict[str, tuple[int, int]] = {}
        self._capacity = capacity
        self._tables: dict[tuple[str, tuple[str, ...]], Table] = {}
        self._tables_by_name: dict[str, list[Table]] = {}
        self._names: tuple[str, ...] | None = None
        self._recorded: frozenset[str] = frozenset()
        self._series: dict[str, Series] = {}
        self._beginnings: dict[str, Series] = {}
        self._middles: dict[str, tuple[int, Series]] = {}
        self._row_orders: dict[tuple[int, ...], _RowOrder] = {}
        self._sample_codes: dict[str, int] = {}
        self._samples: SampleLosses | None = None
        self._events: dict[str, list[Mapping[str, Any]]] = {}
        self._arrived = 0

    def extend(self, block: Block) -> None:
        """Append the rows of a block."""
        if not len(block):
            return
        # One table per set of columns: appending a block is then a single array copy.
        table = self._tables.get((block.axis, block.columns))
        if table is None:
            table = self._tables[block.axis, block.columns] = Table(block.columns, self._capacity, self._sample_codes)
            for name in block.columns:
                self._tables_by_name.setdefault(name, []).append(table)
        # The table may have been empty after a discard: its names reappear, so the cached names are stale.
        if not len(table):
            self._names = None
        table.append(block, self._arrived)
        self._arrived += len(block)
        # Rows of a block are consecutive, so its last step is its largest.
        self.step = max(self.step, int(block.steps[-1]))
        start = int(block.steps[0])
        self.first = start if self.first < 0 else min(self.first, start)
        self._forget_series()

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Append an event. ``windows`` events declare when terms are active; ``phase`` events start named phases.

        Raises:
            ValueError: if ``kind`` or ``step`` is missing or invalid.
        """
        check_event(event)
        events = self._events.setdefault(event["kind"], [])
        events.append(event)
        if event["kind"] == "windows":
            declared = cast("Mapping[str, Sequence[int]]", event["windows"])
            self.windows.update({term: (int(first), int(last)) for term, (first, last) in declared.items()})
        # Trim only at twice the capacity, for amortized constant time. Never drop phases: `phase_start` needs them all.
        elif self._capacity is not None and event["kind"] != "phase" and len(events) > 2 * self._capacity:
            del events[: -self._capacity]

    def discard(self, step: int) -> None:
        """Drop all rows and events of ``step`` and later steps, because the run repeats them after a resume."""
        self.discard_rows(step)
        self.discard_events(step)

    def discard_rows(self, step: int) -> None:
        """Drop all rows of ``step`` and later steps."""
        for table in self._tables.values():
            table.discard(step)
        self._names = None
        # `first` is where the record began, whether or not that row is still kept.
        self.step = max((table.last_step() for table in self._tables.values()), default=-1)
        self.first = self.first if self.step >= 0 else -1
        self._beginnings.clear()
        self._forget_series()

    def discard_events(self, step: int) -> None:
        """Drop all events of ``step`` and later steps."""
        for kind, events in self._events.items():
            self._events[kind] = [event for event in events if event["step"] < step]

    def names(self) -> tuple[str, ...]:
        """Return the names of all metrics with at least one value, in order of first appearance."""
        if self._names is None:
            names = [name for name in self._tables_by_name if self._is_recorded(name)]
            self._recorded = frozenset(names)
            self._names = tags.Names(names)
        return self._names

    def events(self, kind: str) -> Sequence[Mapping[str, Any]]:
        """Return the events of one kind in order of arrival."""
        events = self._events.get(kind, [])
        return tuple(events if self._capacity is None or kind == "phase" else events[-self._capacity :])

    def sample_losses(self) -> SampleLosses:
        """Return the losses of each named sample.

        They come from the columns ``Sample/<k>/loss`` (k is the index in the batch) if a row has them, else from
        ``Loss/total`` of rows that name a single sample.
        """
        if self._samples is None:
            sample_rows = [table.sample_rows() for table in self._tables.values() if table.names_samples]
            if not sample_rows:
                return _NO_SAMPLES
            codes = np.concatenate([part for part, _ in sample_rows])
            rows = np.concatenate([part for _, part in sample_rows], axis=1)
            # Code -1: the row does not name a sample for this slot.
            named = codes >= 0
            if not named.all():
                codes = codes[named]
                rows = rows[:, named]
            self._samples = SampleLosses(tuple(self._sample_codes), codes.astype(np.intp), rows)
        return self._samples

    def phase_start(self, step: int) -> int:
        """Return the first step of the phase that contains ``step``.

        A phase is a maximal interval with a constant set of active terms (as declared) and without a ``phase`` event
        inside.
        """
        # The last step of a declared window is inclusive, so the next phase starts one step later.
        borders = [border for first, last in self.windows.values() for border in (first, last + 1)]
        borders += [int(event["step"]) for event in self._events.get("phase", ())]
        return max((border for border in borders if 0 <= border <= step), default=0)

    def rows(self, name: str) -> int:
        """Return the number of rows that hold a metric: no less than the length of its series, and cheaper."""
        return sum(len(table) for table in self._tables_by_name.get(name, ()))

    def last_values(self, names: Sequence[str], count: int) -> NDArray[np.float64] | None:
        """Return the last values of several metrics, ``[metrics, count]``.

        None if any of them has fewer values, or if they were not recorded in the same rows and in order.
        """
        tables = {id(table): table for name in names for table in self._tables_by_name.get(name, ())}
        if len(tables) != 1:
            return None
        (table,) = tables.values()
        return table.columns(names, count) if len(table) >= count and table.ascending() else None

    def __getitem__(self, name: str) -> Series:
        """Return the series of a metric.

        Raises:
            KeyError: if nothing was recorded under this name.
        """
        series = self._series.get(name)
        if series is None:
            tables = [table for table in self._tables_by_name.get(name, ()) if len(table)]
            if not tables:
                known = ", ".join(sorted(self.names())) or "nothing"
                raise KeyError(f"nothing was recorded as '{name}'; recorded: {known}")
            series = self._series[name] = self._merged(name, tables)
        return series

    def __contains__(self, name: object) -> bool:
        # Names that are known for the current tables are kept, since rules ask for hundreds at every examination.
        if self._names is None:
            return self._is_recorded(cast("str", name))
        return name in self._recorded

    def _is_recorded(self, name: str) -> bool:
        for table in self._tables_by_name.get(name, ()):  # noqa: SIM110  any() takes three times as long
            if len(table):
                return True
        return False

    def __repr__(self) -> str:
        """Return the number of steps and metrics, and the last total loss."""
        names = self.names()
        loss = f", {tags.TOTAL} {number(float(self[tags.TOTAL].values[-1]))}" if tags.TOTAL in self else ""
        return f"<History: {self._recorded_steps()}, {len(names):,} metrics{loss}>"

    def _repr_html_(self) -> str:
        """Return the history as the output of a notebook's cell: the total loss, and a table of the metrics."""
        from fieldwatch.base.cell import (  # noqa: PLC0415  at first use
            Html,
            card,
            curve,
            paragraphs,
            sparkline,
            table,
        )

        names = sorted(self.names(), key=lambda name: not name.startswith(f"{tags.LOSS}/"))
        parts: list[Html] = []
        if tags.TOTAL in self and len(self[tags.TOTAL]) > 1:
            total = self[tags.TOTAL]
            parts.append(curve(tags.TOTAL, total.steps, total.values))
        rows = [_summary(name, self[name]) for name in names[:_SHOWN]]
        if rows:
            columns = ("metric", "values", "first", "last", "lowest", "highest", "")
            curves = [sparkline(name, self[name].steps, self[name].values) for name in names[:_SHOWN]]
            shown = [(*row, drawn) for row, drawn in zip(rows, curves, strict=True)]
            parts.append(table(columns, shown, numeric=range(1, 6)))
        rest = len(names) - len(rows)
        parts.append(paragraphs([f"and {rest:,} more: history.names() lists them all" if rest else ""]))
        headline = f"{self._recorded_steps()}, {len(names):,} metrics"
        level = "notes" if rows else "empty"
        return card("History", level=level, label="record", headline=headline, parts=parts)

    def _recorded_steps(self) -> str:
        return f"steps {self.first:,} to {self.step:,}" if self.step >= 0 else "no steps"

    def _merged(self, name: str, tables: list[Table]) -> Series:
        # Metrics stored in the same tables have the same row order, so it is computed only once for all of them.
        # Tables live as long as the history, so their ids are stable keys.
        key = tuple(map(id, tables))
        if key not in self._row_orders:
            self._row_orders[key] = _RowOrder.of(tables, self._capacity)
        order = self._row_orders[key]
        columns = [table.column(name) for table in tables]
        values = columns[0] if order.index is None else np.concatenate(columns).take(order.index)
        return Series(
            steps=order.steps,
            seconds=order.seconds,
            positions=order.positions,
            values=values,
            beginning=self._beginning(name, tables),
            thinned=self._thinned(name, tables),
        )

    def _beginning(self, name: str, tables: list[Table]) -> Series | None:
        """Return the first recordings of a metric, None if its series holds them."""
        if not any(table.drops() for table in tables):
            return None
        known = self._beginnings.get(name)
        if known is not None:
            return known
        beginning = _in_order([table.beginning(name) for table in tables], most=BEGINNING)
        if not len(beginning):
            return None
        # Later rows do not change it any more.
        if len(beginning) == BEGINNING:
            self._beginnings[name] = beginning
        return beginning

    def _thinned(self, name: str, tables: list[Table]) -> Series | None:
        """Return some of the recordings of a metric that no series holds any more; None if there are none."""
        # Rows are dropped in bulk, so those that were are the same at most examinations.
        changes = sum(table.changes for table in tables)
        if not changes:
            return None
        known = self._middles.get(name)
        if known is not None and known[0] == changes:
            return known[1]
        parts = [part for table in tables if (part := table.thinned(name)) is not None]
        if not parts:
            return None
        middle = _in_order(parts)
        self._middles[name] = (changes, middle)
        return middle

    def _forget_series(self) -> None:
        self._series.clear()
        self._row_orders.clear()
        self._samples = None


def _in_order(parts: Sequence[NDArray[np.float64]], most: int | None = None) -> Series:
    """Return rows of several tables, ``[5, n]`` as `Table.beginning` returns them, as a series of at most ``most``."""
    rows = np.concatenate(parts, axis=1)
    index = later_wins(rows[ARRIVAL], rows[STEP], rows[POSITION])[:most]
    return Series(
        steps=rows[STEP, index],
        seconds=rows[SECONDS, index],
        positions=rows[POSITION, index],
        values=rows[VALUE, index],
    )


def _summary(name: str, series: Series) -> tuple[str, ...]:
    """Return the row of a metric in a notebook's table."""
    finite = series.values[np.isfinite(series.values)]
    ends = (number(float(series.values[0])), number(float(series.values[-1])))
    extremes = (number(float(finite.min())), number(float(finite.max()))) if len(finite) else ("-", "-")
    return name, f"{len(series):,}", *ends, *extremes


@dataclass(frozen=True, kw_only=True)
class _RowOrder:
    """Order of the rows of several tables, shared by all metrics in these tables."""

    index: NDArray[np.intp] | None
    steps: NDArray[np.float64]
    seconds: NDArray[np.float64]
    positions: NDArray[np.float64]

    @classmethod
    def of(cls, tables: list[Table], capacity: int | None) -> "_RowOrder":
        # Common case, a run without resumes: the rows are in order, and views suffice.
        if len(tables) == 1 and tables[0].ascending():
            head = tables[0].head()
            return cls(index=None, steps=head[STEP], seconds=head[SECONDS], positions=head[POSITION])
        head = np.concatenate([table.head() for table in tables], axis=1)
        index = later_wins(head[ARRIVAL], head[STEP], head[POSITION])
        index = index if capacity is None else index[-capacity:]
        return cls(index=index, steps=head[STEP, index], seconds=head[SECONDS, index], positions=head[POSITION, index])
