"""Memory history from tensor logs, of fieldwatch or of the original profiler."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fieldwatch.record.memory import TensorLogTable, read_tensor_log, valid_rows
from fieldwatch.report.memory.trace import Floats, LargestTensor, MemoryHistory


def log_trace(paths: Sequence[Path], label: str) -> MemoryHistory:
    """Read the tensor logs of one run, one per start; of a repeated iteration, the latest snapshot is kept.

    Args:
        paths: log files, in order of their starts.
        label: short name of the run.

    Raises:
        NotATensorLog: if a file is not a tensor log.
        OSError: if a file cannot be read.
    """
    tables = [read_tensor_log(path) for path in paths]
    iterations = np.concatenate([table.iterations for table in tables])
    # A resumed run repeats iterations, which makes their earlier snapshots invalid.
    keep = valid_rows(iterations)

    def column(name: str) -> Floats:
        return np.concatenate([getattr(table, name) for table in tables]).astype(np.float64)[keep]

    times = np.concatenate([table.times for table in tables])[keep]
    thresholds = column("large_thresholds")
    # The log of the last start may have no complete snapshot.
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
        largest=tuple(LargestTensor(size=tensor.size, shape=tensor.shape, dtype=tensor.dtype) for tensor in largest),
        began=_moment(times[:1]),
        ended=_moment(times[-1:]),
        dropped=sum(len(table.dropped) for table in tables),
        replaced=len(iterations) - len(keep),
        notes=tuple(note for table in tables for note in _notes(table)),
    )


def _named(parts: Sequence[dict[str, Floats]], tables: Sequence[TensorLogTable], keep: np.ndarray) -> dict[str, Floats]:
    """Join the columns of all tables by name; a name that a table does not have is 0 there."""
    names = dict.fromkeys(name for part in parts for name in part)
    pairs = list(zip(parts, tables, strict=True))
    return {
        name: np.concatenate([part.get(name, np.zeros(len(table))) for part, table in pairs])[keep] for name in names
    }


def _moment(times: np.ndarray) -> str:
    return str(times[0]).replace("T", " ") if len(times) and not np.isnat(times[0]) else ""


def _notes(table: TensorLogTable) -> list[str]:
    """Describe damage and implausible values of a log."""
    notes = list(table.implausible)
    if table.dropped:
        # -1 marks a snapshot whose iteration is unreadable.
        known = [str(iteration) for iteration in table.dropped if iteration >= 0]
        where = f" (iteration {', '.join(known[:5])}{' ...' if len(known) > 5 else ''})" if known else ""
        what = "the last one is truncated" if table.truncated else "damaged in the middle of the file"
        count = len(table.dropped)
        notes.append(f"{count} incomplete snapshot{'s' * (count > 1)}{where} skipped: {what}")
    if table.garbage:
        notes.append(f"{table.garbage:,} bytes between the snapshots do not belong to the log and were skipped")
    return [f"{table.path.name}: {note}" for note in notes]
