"""Memory, speed and progress of each rank of a distributed training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from fieldwatch.base import duration, mebibytes
from fieldwatch.record import History, holds_run, read_history, read_manifest

RANKS = "ranks"
"""Subfolder of the run folder with the records of all ranks except rank 0."""
_STEPS_FOR_PACE = 256
"""Number of last steps whose mean time is shown; the first ones include warm-up and compilation."""


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
    # A rank that has not written its manifest yet is left out.
    others = [path for path in (root / RANKS).glob("*") if path.name.isdigit() and holds_run(path)]
    others.sort(key=lambda path: int(path.name))
    return [_facts(0, root), *(_facts(int(path.name), path) for path in others)]


def ranks_table(ranks: Sequence[RankFacts]) -> Table:
    """Return a table of the ranks, with the maximum and the sum of each memory column."""
    # Without a box, sizes with their units fit 80 columns.
    table = Table(title="ranks", title_justify="left", box=None, pad_edge=False)
    for column in ("rank", "host", "pid", "last step", "allocated", "peak", "reserved", "step time"):
        table.add_column(column, justify="left" if column == "host" else "right", no_wrap=column != "host")
    for facts in ranks:
        memory = (mebibytes(size) for size in (facts.allocated, facts.peak, facts.reserved))
        step_time = duration(None if facts.step_ms is None else facts.step_ms / 1000)
        table.add_row(str(facts.rank), facts.host, str(facts.pid), f"{facts.step:,}", *memory, step_time)
    columns = [
        [facts.allocated for facts in ranks],
        [facts.peak for facts in ranks],
        [facts.reserved for facts in ranks],
    ]
    known = [[size for size in column if size is not None] for column in columns]
    # The maximum decides whether a device is full, the sum what a host with several ranks needs.
    table.add_row("highest", "", "", "", *(mebibytes(max(sizes, default=None)) for sizes in known), "")
    table.add_row("sum", "", "", "", *(mebibytes(sum(sizes) if sizes else None) for sizes in known), "")
    return table


def _facts(rank: int, folder: Path) -> RankFacts:
    history = read_history(folder)
    segments = read_manifest(folder).segments
    # After a restart, ranks may run on other hosts.
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
