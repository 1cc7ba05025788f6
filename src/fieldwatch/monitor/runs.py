"""The fieldwatch runs that are being trained on this machine, and the latest values in their journals."""

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import orjson
import psutil

from fieldwatch.monitor.processes import Processes, ask_psutil, open_folders
from fieldwatch.monitor.readings import ProcessFacts, RunFacts
from fieldwatch.record import JOURNAL, NotARun, holds_run, read_manifest

MB: Final = 2**20
_LAYOUT: Final = re.compile(rb'^\{"layout":.*$', re.MULTILINE)
CHUNK_BYTES: Final = 1 << 24
"""Number of bytes of a journal that are read at once; lines are far shorter."""
_VALUES_START: Final = 5
"""Index of the first value in a row of the journal, after layout, step, seconds, position and samples."""


class RunFinder:
    """Finds runs repeatedly; of each journal, only the part added since the last call is read."""

    def __init__(self) -> None:
        self._journals: dict[Path, LatestValues] = {}

    def read(self, processes: Processes) -> tuple[RunFacts, ...]:
        """Return the runs that processes on this machine are writing, ordered by folder.

        A run is found by its journal, which its process keeps open. Runs of other users are not visible.
        """
        pids = dict(sorted(writers().items()))
        # Journals of ended runs are dropped.
        self._journals = {folder: self._journals.get(folder) or LatestValues(folder) for folder in pids}
        facts = {pid: processes.facts(pid) for pid in set(pids.values())}
        visible = ((folder, facts[pid]) for folder, pid in pids.items())
        return tuple(self._run(folder, process) for folder, process in visible if process is not None)

    def _run(self, folder: Path, process: ProcessFacts) -> RunFacts:
        latest = self._journals[folder]
        latest.read()
        return RunFacts(
            folder=folder,
            process=process,
            step=latest.step,
            allocated_bytes=latest.in_bytes("Memory/allocated_MB"),
            reserved_bytes=latest.in_bytes("Memory/reserved_MB"),
        )


def writers() -> dict[Path, int]:
    """Return the run folders that are being written, with the pid of the training process of each.

    Forked workers of a run also have its journal open; the training process is the one named in run.json.
    """
    pids_of: dict[Path, list[int]] = {}
    # Listing open files is slow, so only processes that may be a training are examined.
    for process in _pythons():
        for folder in open_folders(process, JOURNAL):
            pids_of.setdefault(folder, []).append(process.pid)
    return {folder: _training_pid(folder, pids) for folder, pids in pids_of.items() if _readable(folder)}


class LatestValues:
    """Latest value of each column of a growing journal.

    Args:
        folder: run folder.

    Attributes:
        values: latest value of each metric, by name.
        step: step of the latest row; None before the first.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL
        self._end = 0
        self._columns: dict[int, list[str]] = {}
        self.values: dict[str, Any] = {}
        self.step: int | None = None

    def read(self) -> None:
        """Read what was added since the last call; an incomplete last line is left for the next one."""
        try:
            with self._path.open("rb") as file:
                # The file is shorter: an incomplete line was removed, or it is another file.
                if file.seek(0, os.SEEK_END) < self._end:
                    self._end = 0
                file.seek(self._end)
                while new := file.read(CHUNK_BYTES):
                    # Process up to the last complete line; no line is as long as a chunk.
                    whole = new.rfind(b"\n") + 1
                    if not whole:
                        return
                    self._take(new[:whole])
                    self._end = file.seek(whole - len(new), os.SEEK_CUR)
        except OSError:
            return

    def in_bytes(self, name: str) -> int | None:
        """Return the latest value of a metric in MiB, converted to bytes; None if it was never recorded."""
        value = self.values.get(name)
        # A recorded value may be NaN.
        return round(value * MB) if isinstance(value, int | float) and math.isfinite(value) else None

    def _take(self, new: bytes) -> None:
        for declared in _LAYOUT.findall(new):
            layout = _parsed(declared, dict)
            number = layout.get("layout")
            names = layout.get("names")
            if isinstance(number, int) and isinstance(names, list):
                self._columns[number] = [str(name) for name in cast("list[object]", names)]
        # The last rows of the layouts may share columns: applied in order of step, so that the newest value remains.
        for row in sorted(self._last_rows(new), key=lambda row: row[1]):
            self.values |= dict(zip(self._columns[row[0]], row[_VALUES_START:], strict=False))
            self.step = row[1]

    def _last_rows(self, new: bytes) -> Iterator[list[Any]]:
        for number in self._columns:
            start = b"[%d," % number
            # Searched from the end, so that only one line per layout is parsed, however much was added.
            row_start = new.rfind(b"\n" + start) + 1
            if new.startswith(start, row_start):
                row = _parsed(new[row_start : new.index(b"\n", row_start)], list)
                if len(row) > _VALUES_START and isinstance(row[1], int):
                    yield row


def _parsed(line: bytes, kind: type[Any]) -> Any:
    """Return the JSON value of a line if it has the type ``kind``, else an empty value."""
    # Damaged lines are reported elsewhere, by a health rule.
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return kind()
    return value if isinstance(value, kind) else kind()


def _pythons() -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        command = ask_psutil(process.cmdline) or ()
        # Started as `python ...` or by the console script.
        if any("python" in Path(argument).name or "fieldwatch" in argument for argument in command[:2]):
            yield process


def _readable(folder: Path) -> bool:
    return holds_run(folder) and os.access(folder / "run.json", os.R_OK)


def _training_pid(folder: Path, pids: list[int]) -> int:
    try:
        segments = read_manifest(folder).segments
    except NotARun:
        segments = ()
    named = cast("int", segments[-1].get("pid", -1)) if segments else -1
    # A run.json from another pid namespace has a foreign pid. Workers are forked later and have higher pids.
    return named if named in pids else min(pids)
