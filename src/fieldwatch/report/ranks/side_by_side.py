"""Memory, speed and progress of each rank of a distributed training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from fieldwatch.record import History, holds_run, read_history, read_manifest

RANKS = "ranks"
"""Subfolder of the run folder with the records of all ranks except rank 0."""
_STEPS_FOR_PACE = 256


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """Facts that one rank recorded.

    Attributes:
        rank: rank; the record of rank 0 is that of the run.
        host: host of its last start.
        pid: process ID of its last start.
        step: last recorded step; -1 if there is none.
        allocated: maximum allocated memory at the end of a step, in MiB; None if not measured.
        peak: peak memory, in MiB.
        reserved: maximum memory reserved by the allocator, in MiB.
        step_ms: mean time of the last steps, in ms.
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
    """Read the records of all ranks of a run, in order of rank; one entry for a single process.

    Raises:
        NotARun: if the folder contains no run.
    """
    root = Path(folder)
    others = [path for path in (root / RANKS).glob("*") if path.name.isdigit() and holds_run(path)]
    return [_facts(0, root), *(_facts(int(path.name), path) for path in sorted(others, key=lambda one: int(one.name)))]


def ranks_table(ranks: Sequence[RankFacts]) -> Table:
    """Return a table of the ranks in MiB and ms, with the maximum and the sum of each memory column."""
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
