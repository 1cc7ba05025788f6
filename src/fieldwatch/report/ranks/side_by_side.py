"""A training of several processes, side by side: what each held, how long its steps took, how far it came."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from fieldwatch.record import History, holds_run, read_history, read_manifest

RANKS = "ranks"
"""Folder, in the run folder, of the records of the ranks after the first."""
_STEPS_FOR_PACE = 256


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """What one rank recorded about itself.

    Attributes:
        rank: its number; the first one's record is that of the run.
        host: its machine, at its last start.
        pid: its process.
        step: the last one that it recorded; -1 for none.
        allocated: the most that it held at the end of a step, in MiB; None where that was not measured.
        peak: the most that it held at once, in MiB.
        reserved: the most that its allocator took from the device, in MiB.
        step_ms: mean time of its last steps.
    """

    rank: int
    host: str
    pid: int
    step: int
    allocated: float | None
    peak: float | None
    reserved: float | None
    step_ms: float | None


def read_ranks(folder: str | Path) -> list[RankFacts]:
    """Read the records of all ranks of a run, by rank; one entry for a run of one process.

    Raises:
        NotARun: the folder holds no run.
    """
    root = Path(folder)
    others = [path for path in (root / RANKS).glob("*") if path.name.isdigit() and holds_run(path)]
    return [_facts(0, root), *(_facts(int(path.name), path) for path in sorted(others, key=lambda one: int(one.name)))]


def ranks_table(ranks: Sequence[RankFacts]) -> Table:
    """Show ranks side by side, in MiB and milliseconds; below them the largest of each, and what all have together."""
    table = Table(title="ranks (MiB, ms)", title_justify="left")
    for column in ("rank", "host", "pid", "last step", "held", "peak", "reserved", "a step"):
        table.add_column(column, justify="left" if column == "host" else "right")
    for one in ranks:
        figures = (one.allocated, one.peak, one.reserved, one.step_ms)
        table.add_row(str(one.rank), one.host, str(one.pid), str(one.step), *map(_cell, figures))
    columns = [[one.allocated for one in ranks], [one.peak for one in ranks], [one.reserved for one in ranks]]
    known = [[value for value in column if value is not None] for column in columns]
    table.add_row("most", "", "", "", *(_cell(max(values, default=None)) for values in known), "")
    table.add_row("sum", "", "", "", *(_cell(sum(values) if values else None) for values in known), "")
    return table


def _facts(rank: int, folder: Path) -> RankFacts:
    history = read_history(folder)
    segments = read_manifest(folder).segments
    last: Mapping[str, Any] = segments[-1] if segments else {}
    times = history["Time/step"].last(_STEPS_FOR_PACE).values if "Time/step" in history.names() else ()
    return RankFacts(
        rank=rank,
        host=str(last.get("host", "")),
        pid=int(last.get("pid", 0)),
        step=history.step,
        allocated=_largest(history, "Memory/allocated_MB"),
        peak=_largest(history, "Memory/peak_MB"),
        reserved=_largest(history, "Memory/reserved_MB"),
        step_ms=float(sum(times) / len(times)) if len(times) else None,
    )


def _largest(history: History, name: str) -> float | None:
    return float(history[name].values.max()) if name in history.names() and len(history[name].values) else None


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
