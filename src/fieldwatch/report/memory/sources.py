"""Reader of memory histories from paths: run folders, memory logs and tensor logs, or the newest of them."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fieldwatch.base import InputError, MissingPathError
from fieldwatch.record import EVENTS, JOURNAL, History, read_history
from fieldwatch.record.memory import MEMORY_LOG
from fieldwatch.report.memory.from_census import census_trace
from fieldwatch.report.memory.from_journal import journal_trace
from fieldwatch.report.memory.from_tensor_log import log_trace
from fieldwatch.report.memory.trace import MemoryHistory, RecordedCurve

LOGS = "tensor_profile_*.log"
LATEST = "latest"
_PLACES = ("runs", "output", ".")
"""Folders that are searched for the newest log, those of trainings first."""
_DEPTH = 6
_MOST_FOLDERS = 20_000
"""Maximum number of searched folders, so that a whole disk is never searched."""
_SKIPPED = frozenset(("node_modules", "__pycache__", "site-packages", "checkpoints", "tensorboard", "products"))


def read_trace(path: Path, label: str = "") -> MemoryHistory:
    """Read the memory history of a file or folder.

    Of a run folder, the best source is read: ``memory.jsonl``, else its tensor logs, else the counters of its journal.
    If the run has a journal or events, its loss, peak memory and events are added.

    Args:
        path: run folder, its ``profiles`` folder, a ``memory.jsonl`` or a tensor log.
        label: short name of the run; the name of the path if empty.

    Raises:
        InputError: if there is no record of memory, or no complete snapshot; the message names what is there instead.
        OSError: if a file cannot be read.
    """
    label = label or path.name or str(path.resolve().name)
    run = _run_of(path)
    history = read_history(run) if run is not None else None
    trace = _read(path, label, history)
    if not len(trace):
        raise InputError(
            f"{path} contains no complete snapshot ({trace.dropped} damaged or truncated): let the run reach its next "
            "profiled iteration, or give another file"
        )
    return trace if history is None else _joined(trace, history)


def latest(start: Path) -> Path:
    """Return the newest tensor log, or the run folder with the newest memory log.

    ``start/runs``, ``start/output`` and ``start`` are searched, at most 6 levels deep and 20,000 folders in all.

    Args:
        start: folder to start from.

    Raises:
        MissingPathError: if there is no log.
    """
    newest: tuple[float, Path] | None = None
    for file in _logs(start):
        changed = file.stat().st_mtime
        if newest is None or changed > newest[0]:
            newest = changed, file
    if newest is None:
        raise MissingPathError(
            f"no {MEMORY_LOG} and no {LOGS} below {start.resolve()} (runs/, output/ and the folder itself, {_DEPTH} "
            f"deep): train with --profile-tensors, or give the file or run folder itself"
        )
    file = newest[1]
    # The run folder, so that journal and events are read as well.
    return file.parent if file.name == MEMORY_LOG else file


def _logs(start: Path) -> Iterator[Path]:
    visited: set[str] = set()
    for place in _PLACES:
        root = (start / place).resolve()
        for folder, inner, files in os.walk(root):
            depth = len(Path(folder).relative_to(root).parts)
            inner[:] = [n for n in inner if not n.startswith(".") and n not in _SKIPPED] if depth < _DEPTH else []
            # The last place contains the others.
            if folder in visited:
                inner.clear()
                continue
            visited.add(folder)
            if len(visited) > _MOST_FOLDERS:
                return
            here = Path(folder)
            yield from (here / n for n in files if n == MEMORY_LOG or here.joinpath(n).match(LOGS))


def _read(path: Path, label: str, history: History | None) -> MemoryHistory:
    if not path.exists():
        raise MissingPathError(f"{path} does not exist: give a run folder, a memory.jsonl, a tensor log or 'latest'")
    if path.is_file():
        # By content, since files are renamed: a tensor log never begins with a brace.
        with path.open("rb") as file:
            start = file.read(1)
        return census_trace(path, label) if start == b"{" else log_trace([path], label)
    # A run that has not reached its first profiled step may have empty files.
    if (path / MEMORY_LOG).exists() and (path / MEMORY_LOG).stat().st_size:
        return census_trace(path / MEMORY_LOG, label)
    logs = sorted(log for log in (*path.glob(f"profiles/{LOGS}"), *path.glob(LOGS)) if log.stat().st_size)
    if logs:
        return log_trace(logs, label)
    if history is not None and (trace := journal_trace(path, label, history)) is not None:
        return trace
    raise MissingPathError(f"{path} contains no record of memory: {_advice(path)}")


def _advice(folder: Path) -> str:
    """Return what to do about a folder without a record of memory."""
    runs = sorted(
        inner.name for inner in folder.iterdir() if (inner / JOURNAL).exists() or (inner / MEMORY_LOG).exists()
    )
    if runs:
        return f"it contains the runs {', '.join(runs[:8])}: give one or more of them"
    return f"expected {MEMORY_LOG}, {LOGS} or {JOURNAL} in it: train with --profile-tensors"


def _run_of(path: Path) -> Path | None:
    """Return the run folder that a path belongs to; None if it has neither journal nor events."""
    folder = path if path.is_dir() else path.parent
    folder = folder.parent if folder.name == "profiles" else folder
    return folder if (folder / JOURNAL).exists() or (folder / EVENTS).exists() else None


def _joined(trace: MemoryHistory, history: History) -> MemoryHistory:
    """Add events, loss and peak memory of the run to its memory history."""
    # Kinds that may allocate or free memory.
    kinds = ("growth", "evaluation", "reset", "refusal", "finding", "checkpoint", "phase")
    events = {kind: np.array([event["step"] for event in history.events(kind)], np.int64) for kind in kinds}
    return replace(
        trace,
        events={kind: np.unique(steps) for kind, steps in events.items() if len(steps)},
        loss=_curve(history, "Loss/total"),
        peak=_curve(history, "Memory/peak_MB"),
    )


def _curve(history: History, name: str) -> RecordedCurve | None:
    if name not in history:
        return None
    series = history[name]
    return RecordedCurve(steps=series.steps.astype(np.int64), values=series.values)


def labels(paths: Sequence[Path]) -> list[str]:
    """Return a short name for each path: its last part, or as many parts as distinguish all paths."""
    all_parts = [path.resolve().parts for path in paths]
    for depth in range(1, 1 + max(map(len, all_parts), default=1)):
        short = ["/".join(parts[-depth:]) for parts in all_parts]
        # Compared with the number of distinct paths: the same path may be given twice.
        if len(set(short)) == len(set(all_parts)):
            return short
    return [str(path) for path in paths]
