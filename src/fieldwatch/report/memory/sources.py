"""From a path to a trace: run folders, memory logs, tensor logs; and the newest of them."""

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
_DEPTH = 6
_MOST_FOLDERS = 20_000
_PASSED_OVER = frozenset(("node_modules", "__pycache__", "site-packages", "checkpoints", "tensorboard", "products"))


def read_trace(path: Path, label: str = "") -> MemoryHistory:
    """Read what a file or folder tells about memory.

    A run folder gives its ``memory.jsonl``; without one its tensor logs, else the always-on counters of its journal.
    Where journal and events lie beside, they are joined.

    Args:
        path: a run folder, its ``profiles`` folder, a ``memory.jsonl`` or a tensor log.
        label: a short name; the path's own by default.

    Raises:
        InputError: there is nothing about memory, or not one whole snapshot; the message says what there is.
        OSError: it cannot be read.
    """
    label = label or path.name or str(path.resolve().name)
    run = _run_of(path)
    history = read_history(run) if run is not None else None
    trace = _read(path, label, history)
    if not len(trace):
        raise InputError(
            f"{path} holds no whole snapshot ({trace.dropped} damaged or cut off): let the run reach its next "
            f"profiled iteration, or give another file"
        )
    return trace if history is None else _joined(trace, history)


def latest(start: Path) -> Path:
    """Return the newest memory log, or the run folder it belongs to, under ``start/runs``, ``start/output``, ``start``.

    At most six folders deep and 20,000 folders in all.

    Raises:
        MissingPathError: there is none.
    """
    newest: tuple[float, Path] | None = None
    for file in _logs(start):
        made = file.stat().st_mtime
        if newest is None or made > newest[0]:
            newest = made, file
    if newest is None:
        raise MissingPathError(
            f"no {MEMORY_LOG} and no {LOGS} below {start.resolve()} (runs/, output/ and the folder itself, {_DEPTH} "
            f"deep): train with --profile-tensors, or give the file or run folder itself"
        )
    file = newest[1]
    return file.parent if file.name == MEMORY_LOG else file


def _logs(start: Path) -> Iterator[Path]:
    seen: set[str] = set()
    for place in _PLACES:
        root = (start / place).resolve()
        for folder, inner, files in os.walk(root):
            depth = len(Path(folder).relative_to(root).parts)
            inner[:] = [n for n in inner if not n.startswith(".") and n not in _PASSED_OVER] if depth < _DEPTH else []
            if folder in seen:
                inner.clear()
                continue
            seen.add(folder)
            if len(seen) > _MOST_FOLDERS:
                return
            here = Path(folder)
            yield from (here / n for n in files if n == MEMORY_LOG or here.joinpath(n).match(LOGS))


def _read(path: Path, label: str, history: History | None) -> MemoryHistory:
    if not path.exists():
        raise MissingPathError(f"{path} does not exist: give a run folder, a memory.jsonl, a tensor log or 'latest'")
    if path.is_file():
        with path.open("rb") as file:
            start = file.read(1)
        return census_trace(path, label) if start == b"{" else log_trace([path], label)
    if (path / MEMORY_LOG).exists() and (path / MEMORY_LOG).stat().st_size:
        return census_trace(path / MEMORY_LOG, label)
    logs = sorted(log for log in (*path.glob(f"profiles/{LOGS}"), *path.glob(LOGS)) if log.stat().st_size)
    if logs:
        return log_trace(logs, label)
    if history is not None and (trace := journal_trace(path, label, history)) is not None:
        return trace
    raise MissingPathError(f"{path} tells nothing about memory: {_there(path)}")


def _there(folder: Path) -> str:
    """Say what a folder holds instead."""
    runs = sorted(
        inner.name for inner in folder.iterdir() if (inner / JOURNAL).exists() or (inner / MEMORY_LOG).exists()
    )
    if runs:
        return f"it holds the runs {', '.join(runs[:8])}: give one or more of them"
    return f"wanted {MEMORY_LOG}, {LOGS} or {JOURNAL} in it: train with --profile-tensors"


def _run_of(path: Path) -> Path | None:
    """Return the run folder that a path belongs to, if journal or events are there."""
    folder = path if path.is_dir() else path.parent
    folder = folder.parent if folder.name == "profiles" else folder
    return folder if (folder / JOURNAL).exists() or (folder / EVENTS).exists() else None


def _joined(trace: MemoryHistory, history: History) -> MemoryHistory:
    kinds = ("growth", "evaluation", "reset", "refusal", "finding", "checkpoint", "phase")
    told = {kind: np.array([event["step"] for event in history.events(kind)], np.int64) for kind in kinds}
    return replace(
        trace,
        events={kind: np.unique(steps) for kind, steps in told.items() if len(steps)},
        loss=_curve(history, "Loss/total"),
        peak=_curve(history, "Memory/peak_MB"),
    )


def _curve(history: History, name: str) -> RecordedCurve | None:
    if name not in history:
        return None
    series = history[name]
    return RecordedCurve(steps=series.steps.astype(np.int64), values=series.values)


def labels(paths: Sequence[Path]) -> list[str]:
    """Return a short name per path: its own, or as many of its parents as tell it from the others."""
    whole = [path.resolve().parts for path in paths]
    for depth in range(1, 1 + max(map(len, whole), default=1)):
        short = ["/".join(parts[-depth:]) for parts in whole]
        if len(set(short)) == len(set(whole)):
            return short
    return [str(path) for path in paths]
