"""A trace from tensor logs: ours or the original profiler's."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fieldwatch.record.memory import TensorLogTable, read_tensor_log, valid_rows
from fieldwatch.report.memory.trace import Floats, LargestTensor, MemoryHistory


def log_trace(paths: Sequence[Path], label: str) -> MemoryHistory:
    """Read the tensor logs of one run, in order; where a later one goes back over iterations, it counts.

    Raises:
        NotATensorLog: a file is something else.
        OSError: a file cannot be read.
    """
    tables = [read_tensor_log(path) for path in paths]
    iterations = np.concatenate([table.iterations for table in tables])
    keep = valid_rows(iterations)

    def column(name: str) -> Floats:
        return np.concatenate([getattr(table, name) for table in tables]).astype(np.float64)[keep]

    times = np.concatenate([table.times for table in tables])[keep]
    thresholds = column("large_thresholds")
    last = next((table for table in reversed(tables) if len(table)), None)
    largest = last.snapshot(-1).largest if last is not None else ()
    return MemoryHistory(
        label=label,
        kind="tensor log",
        files=tuple(paths),
        steps=iterations[keep],
        allocated=column("allocated"),
        reserved=column("reserved"),
        fragmentation=column("fragmentation"),
        tensors=column("total_tensors"),
        categories=_named([table.categories for table in tables], tables, keep),
        dtypes=_named([table.dtypes for table in tables], tables, keep),
        large_counts=column("large_counts"),
        large_threshold=int(thresholds[-1]) if len(thresholds) else 100,
        largest=tuple(LargestTensor(size=one.size, shape=one.shape, dtype=one.dtype) for one in largest),
        began=_moment(times[:1]),
        ended=_moment(times[-1:]),
        dropped=sum(len(table.dropped) for table in tables),
        replaced=len(iterations) - len(keep),
        notes=tuple(note for table in tables for note in _notes(table)),
    )


def _named(parts: Sequence[dict[str, Floats]], tables: Sequence[TensorLogTable], keep: np.ndarray) -> dict[str, Floats]:
    names = dict.fromkeys(name for part in parts for name in part)
    pairs = list(zip(parts, tables, strict=True))
    return {name: np.concatenate([part.get(name, np.zeros(len(t))) for part, t in pairs])[keep] for name in names}


def _moment(times: np.ndarray) -> str:
    return str(times[0]).replace("T", " ") if len(times) and not np.isnat(times[0]) else ""


def _notes(table: TensorLogTable) -> list[str]:
    notes = list(table.implausible)
    if table.dropped:
        known = [str(iteration) for iteration in table.dropped if iteration >= 0]
        where = f" (iteration {', '.join(known[:5])}{' ...' if len(known) > 5 else ''})" if known else ""
        what = "the last is cut off" if table.truncated else "torn in the middle of the file"
        count = len(table.dropped)
        notes.append(f"{count} snapshot{'s' * (count > 1)}{where} left out, not whole: {what}")
    if table.garbage:
        notes.append(f"{table.garbage} bytes between the snapshots are none of the log's, and were passed over")
    return [f"{table.path.name}: {note}" for note in notes]
