"""Checks by strace what the start of a run puts on the disk: run.json with its name, and a rehearsed checkpoint.

A test that reads the files cannot check either, because the page cache answers before the disk has the data.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rows import Row, judged, not_run
from syscalls import can_trace, traced

CALLS = "write,pwrite64,fsync,rename,renameat,renameat2,fadvise64,read,pread64,preadv,preadv2"
RUN = ("P2", "run.json at every time it is written (strace)", "write < fsync < rename < fsync(folder)")
REHEARSAL = (
    "P2",
    "where the rehearsal of a checkpoint reads it back from (strace)",
    "fsync < drop from cache < read",
)
FILES = ("tensors.safetensors", "manifest.json", "manifest.sha256")
Call = tuple[str, str, str]
"""A call without digits in its name, its path, and the new name of a rename."""


def run_start(folder: Path) -> list[Row]:
    """Return the rows of P2 about the start of a run."""
    why = can_trace()
    if why:
        return [not_run(*RUN, why), not_run(*REHEARSAL, why)]
    calls = recorded(folder / "run", folder / "log")
    return [run_row(calls), rehearsal_row(calls)]


def recorded(folder: Path, log: Path) -> list[Call]:
    """Return the calls of a short run on files in its folder, in the order in which they began."""

    def work(_say: Callable[[bytes], Any]) -> None:
        import torch  # noqa: PLC0415  only the child may start threads

        from fieldwatch import Outputs, Run, Saving  # noqa: PLC0415

        with Run(folder, saving=Saving(every=2), outputs=Outputs(sinks=(), rules=())) as run:
            run.track(state=torch.zeros(1000))
            for step in run.steps(3):
                step.record({"Loss/total": 1.0})

    log.parent.mkdir(parents=True, exist_ok=True)
    _, code = traced(work, log, "-e", f"trace={CALLS}")
    if code:
        raise RuntimeError(f"a short run under strace exited with {code}: see its traceback above")
    return [call for line in log.read_text().splitlines() if str(folder) in line for call in parsed(line)]


def parsed(line: str) -> list[Call]:
    """Parse a line of strace; None if it only continues an earlier call."""
    match = re.match(r"\d+ +([a-z]+)\w*\((.*)", line)
    if match is None:
        return []
    if match[1].startswith("rename"):
        old, new = re.findall(r'"([^"]*)"', match[2])
        return [("rename", old, new)]
    path = re.match(r"\d+<([^>]*)>", match[2])
    return [] if path is None or "(deleted)" in line else [(_plain(match[1], line), path[1], "")]


def _plain(name: str, line: str) -> str:
    if name == "fadvise":
        return "drop" if "POSIX_FADV_DONTNEED" in line else name
    return {"pwrite": "write", "pread": "read", "preadv": "read"}.get(name, name)


def run_row(calls: list[Call]) -> Row:
    """Check each write of run.json: its bytes must be on the disk before its name, and the name must follow."""
    given = [i for i, (name, _, new) in enumerate(calls) if name == "rename" and Path(new).name == "run.json"]
    wrong = []
    for start, end in zip(given, [*given[1:], len(calls)], strict=True):
        _, draft, final = calls[start]
        before = [name for name, path, _ in calls[:start] if path == draft]
        if not before or before[-1] != "fsync":
            wrong.append(f"{Path(final).name} was named before it was on the disk")
        if ("fsync", str(Path(final).parent), "") not in calls[start:end]:
            wrong.append(f"the name {Path(final).name} was not put on the disk")
    found = f"written {len(given)} times, {'not always' if wrong else 'always'} in this order"
    return judged(*RUN, found, good=bool(given) and not wrong, why="; ".join(dict.fromkeys(wrong)))


def rehearsal_row(calls: list[Call]) -> Row:
    """Check that each file of the rehearsal is synced, dropped from the page cache, and only then read."""
    wrong = []
    for file in FILES:
        names = [name for name, path, _ in calls if "step_preflight" in path and Path(path).name == file]
        order = list(dict.fromkeys(name for name in names if name in ("fsync", "drop", "read")))
        if order != ["fsync", "drop", "read"]:
            wrong.append(f"{file}: {' < '.join(order) or 'never touched'}")
    found = f"{len(FILES) - len(wrong)} of {len(FILES)} files in this order"
    return judged(*REHEARSAL, found, good=not wrong, why="; ".join(wrong))
