"""A full disk and a read-only disk, for a single save and for a whole run."""

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accidents import provoke
from forked import answer
from kill import advance, whole
from last_byte import rows_of_last_byte
from rows import Row, judged, not_run

from fieldwatch import Outputs, Run, Saving
from fieldwatch.checkpoint import Checkpoints, Retention
from fieldwatch.record import read_events

SIZE = 250_000
STEPS = 60
EVERY = 5
FULL = 12
FREE = 42
"""Steps at which the run's disk becomes full and is freed again."""
ROOM = 300_000
"""Bytes left on the full disk: enough for the record, but not for a checkpoint of 1 MB."""


@contextlib.contextmanager
def small_disk(point: Path, size: str = "8m") -> Iterator[str]:
    """Mount a disk in memory for the block; yield the reason if that is impossible, else an empty string."""
    point.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(point)]
    if os.geteuid() != 0 or shutil.which("mount") is None:
        yield "needs root, to mount a small disk"
        return
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        yield f"a small disk cannot be mounted here: {done.stderr.strip()}"
        return
    try:
        yield ""
    finally:
        if subprocess.run(["umount", str(point)], check=False, capture_output=True).returncode:
            time.sleep(1)
            subprocess.run(["umount", "--lazy", str(point)], check=True, capture_output=True)


def train(disk: Path) -> dict[str, Any]:
    """Train on a disk that is full for some steps; return the output and the checkpoints that existed meanwhile."""
    folder = disk / "run"
    filler = disk / "filler"
    seen = list[int]()
    x = torch.zeros(SIZE)
    n = torch.zeros((), dtype=torch.int64)
    with Run(folder, saving=Saving(every=EVERY, keep=Retention(last=1)), outputs=Outputs(sinks=(), rules=())) as run:
        run.track(x=x, n=n)
        run.resume()
        for step in run.steps(STEPS):
            if step.index == FULL:
                time.sleep(0.3)  # a background save has finished by then
                filler.write_bytes(bytes(max(0, shutil.disk_usage(disk).free - ROOM)))
            if step.index == FREE:
                contents = Checkpoints(folder / "checkpoints").read("last")
                seen.append(int(contents["n"]) if bool(contents["x"].eq(contents["n"]).all()) else -1)
                filler.unlink()
            advance(step, x, n)
            time.sleep(0.02)
    return {"meanwhile": seen[0], "steps": run.step_index + 1}


def alarms(folder: Path) -> list[int]:
    """Return the steps of the events about missing disk space."""
    return [event["step"] for event in read_events(folder) if "space" in json.dumps(event).lower()]


def run_full(disk: Path) -> Row:
    """Test a whole run on a disk that is full for some steps."""
    what = f"a run on a disk that is full from step {FULL} to {FREE} of {STEPS}, a save every {EVERY}"
    wanted = "the run continues, old checkpoint intact, reported within one save, saves again"
    found = answer(lambda: train(disk))
    if "raised" in found:
        return judged("P7", what, wanted, "the run ended", good=False, why=found["raised"])
    last = answer(lambda: _restored(disk / "run"))
    told = [step for step in alarms(disk / "run") if step >= FULL - 1]
    intact = 0 < found["meanwhile"] <= FULL
    good = found["steps"] == STEPS and intact and bool(told) and told[0] <= FULL + 2 * EVERY and last == STEPS
    shown = (
        f"{found['steps']} steps done, step {found['meanwhile']} intact meanwhile, first report at step "
        f"{told[0] if told else 'none'}, last checkpoint {last}"
    )
    return judged("P7", what, wanted, shown, good=good)


def _restored(folder: Path) -> int:
    contents = Checkpoints(folder / "checkpoints").read("last")
    step = int(contents["n"])
    return step if whole(step, {"x": contents["x"]}) else -1


def run_disk(folder: Path) -> list[Row]:
    """Return the rows of P7 that need their own disk."""
    return [*run_small_disk(folder), *run_last_byte(folder)]


def run_last_byte(folder: Path, seconds: float = 30.0) -> list[Row]:
    """Return the rows of P7 about a disk that is full to the last byte; none if no disk can be mounted."""
    with small_disk(folder / "probe") as why:
        if why:
            return [not_run("P7", "a run on a disk that is full to the last byte", "it goes on", why)]
    return rows_of_last_byte(lambda name: small_disk(folder / name, "24m"), folder, seconds)


def run_small_disk(folder: Path) -> list[Row]:
    """Return the rows of P7 about a disk with too little space and about a read-only disk."""
    names = {
        "full_disk": (
            "a save bigger than the free space of the disk",
            "ENOSPC before a byte is written, old checkpoint intact",
        ),
        "read_only": ("a save to a read-only disk, and a fallback there", "EROFS reported, old one readable"),
    }
    with small_disk(folder / "disk") as why:
        if why:
            limit = provoke(folder / "limited", "file_size_limit")["file_size_limit"]
            rows = [not_run("P7", what, wanted, why) for what, wanted in names.values()]
            good = limit["step"] == 1 and limit["errno"] == 27
            found = f"{limit['errno']}, step {limit['step']} intact"
            instead = ("P7", "a save beyond the limit of a file's size", "error reported, old one intact", found)
            return [*rows, judged(*instead, good=good)]
        try:
            results = provoke(folder / "disk", *names)
        except RuntimeError as error:
            return [judged("P7", *texts, "it raised", good=False, why=str(error)[-300:]) for texts in names.values()]
    with small_disk(folder / "other", "16m"):  # the first disk was left read-only
        of_run = run_full(folder / "other")
    full = results["full_disk"]
    frozen = results["read_only"]
    good = {
        "full_disk": full["errno"] == 28 and full["step"] == 1 and full["written"] == 0 and bool(full["again"]),
        "read_only": frozen["errno"] == 30 and frozen["step"] == frozen["fell_back_to"] == 1,
    }
    shown = {
        "full_disk": f"errno {full['errno']}, {full['written']} writes, step {full['step']} intact, then saved again",
        "read_only": f"errno {frozen['errno']}, step {frozen['step']} intact, fell back to {frozen['fell_back_to']}",
    }
    return [*(judged("P7", *names[name], shown[name], good=good[name]) for name in names), of_run]
