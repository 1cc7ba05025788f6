"""Another process keeps a disk full to the last byte: runs with the default sinks continue, are killed or stopped."""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from forked import answer, forked
from rows import Row, judged
from torch import nn

from fieldwatch import Run, Saving, Terms
from fieldwatch.record import read_blocks, read_events

PACE = 0.02
"""Lower limit in seconds for a step of the watched run."""
BEFORE = 300
AFTER = 300
"""Steps before the disk becomes full, and after it is freed."""
Act = Callable[[], None]


def keep_full(disk: Path, flags: Path, seconds: float, *, greedy: bool = True) -> dict[str, Any]:
    """Fill a disk at the run's request and free it later; if ``greedy``, take every byte that becomes free, too."""
    flags.mkdir(parents=True, exist_ok=True)
    while not (flags / "fill").exists():
        time.sleep(0.005)
    filler = disk / "filler"
    until = time.monotonic() + seconds
    looks = 0
    empty = 0
    file = os.open(filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    (flags / "filling").touch()
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            while greedy or not looks:
                os.write(file, bytes(4096))
        looks += 1
        empty += shutil.disk_usage(disk).free == 0
        (flags / "full").touch()
        time.sleep(0.001)
    os.close(file)
    filler.unlink()
    (flags / "free").touch()
    return {"looks": looks, "empty": empty}


def train(folder: Path, steps: int, each: Callable[[Run, int], None] = lambda _run, _index: None) -> str:
    """Fit a line with the default sinks and a save every 50 steps; return the weights' bytes."""
    torch.manual_seed(0)
    model = nn.Linear(16, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with Run(folder, saving=Saving(every=50)) as run:
        run.track(model=model, optimizer=optimizer)
        run.resume()
        for step in run.steps(steps):
            inputs = torch.randn(32, 16)
            terms = Terms(fit=(1.0, (model(inputs) - inputs[:, :4]).square().mean()))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer)
            each(run, step.index)
    tensors = (*model.parameters(), *(value for state in optimizer.state.values() for value in state.values()))
    return b"".join(tensor.detach().numpy().tobytes() for tensor in tensors).hex()


def under_a_full_disk(flags: Path, act: Act, *, at: int) -> Callable[[Run, int], None]:
    """Return the run's action per step: wait for the full disk at step ``BEFORE``, and act at step ``at``."""

    def each(run: Run, index: int) -> None:
        if index == BEFORE:
            _ = run.checkpoints
            (flags / "fill").touch()
            wait_for(flags / "full")
        if index == at:
            act()
        if index > BEFORE:
            time.sleep(PACE)

    return each


def wait_for(path: Path, seconds: float = 60.0) -> None:
    """Wait until a file exists.

    Raises:
        TimeoutError: the file did not appear.
    """
    until = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"{path} did not appear within {seconds:.0f} s")
        time.sleep(0.005)


def steps_of(folder: Path) -> list[int]:
    """Return the steps of the journal's rows, in order."""
    return [step for block in read_blocks(folder) if block.axis == "step" for step in block.steps.tolist()]


def pauses(folder: Path) -> list[dict[str, Any]]:
    """Return the run's message at the end of each pause."""
    return [event for event in read_events(folder) if event["kind"] == "disk_freed"]


def goes_on(disk: Path, elsewhere: Path, seconds: float) -> dict[str, Any]:
    """Compare a run whose disk is full for some seconds with its twin on another disk."""
    flags = elsewhere / "flags"
    steps = BEFORE + AFTER + int(seconds / PACE)
    filler = forked(lambda _: keep_full(disk, flags, seconds))
    began = time.monotonic()
    found = answer(lambda: train(disk / "run", steps, under_a_full_disk(flags, lambda: None, at=-1)), 600)
    filler.end(0 if (flags / "free").exists() else signal.SIGKILL)
    twin = answer(lambda: train(elsewhere / "twin", steps), 600)
    if isinstance(found, dict):
        return found
    return {
        "same": found == twin,
        "whole": steps_of(disk / "run") == list(range(steps)),
        "rows": sum(one["rows"] for one in pauses(disk / "run")),
        "writes": sum(one["writes"] for one in pauses(disk / "run")),
        "lost": sum(one["lost"] for one in pauses(disk / "run")),
        "full": round(sum(one["full_seconds"] for one in pauses(disk / "run")), 1),
        "steps": steps,
        "took": round(time.monotonic() - began, 1),
    }


def ends(disk: Path, elsewhere: Path, number: int, seconds: float, *, greedy: bool = True) -> dict[str, Any]:
    """Compare a run that gets a signal while its disk is full, and is resumed once it is free, with its twin."""
    flags = elsewhere / "flags"
    at = BEFORE + 30
    steps = BEFORE + AFTER
    filler = forked(lambda _: keep_full(disk, flags, seconds, greedy=greedy))
    act = under_a_full_disk(flags, lambda: os.kill(os.getpid(), number), at=at)
    child = forked(lambda _: train(disk / "run", steps, act))
    code = child.end()
    crashes = [path for path in (disk / "run" / "crash").glob("*/crash.json") if path.stat().st_size]
    filler.end()
    left = steps_of(disk / "run")
    found = answer(lambda: train(disk / "run", steps))
    twin = answer(lambda: train(elsewhere / "twin", steps))
    return {
        "code": code,
        "crash": bool(crashes),
        "same": found == twin and isinstance(found, str),
        "whole": steps_of(disk / "run") == list(range(steps)),
        "kept": left == list(range(len(left))) and len(left) >= BEFORE - 64,
    }


def starts(disk: Path, elsewhere: Path) -> dict[str, Any]:
    """Start a run on a full disk, and again once it is free."""
    elsewhere.mkdir(parents=True, exist_ok=True)
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    refused = answer(lambda: train(disk / "run", 60))
    filler.unlink()
    again = answer(lambda: train(disk / "run", 60))
    twin = answer(lambda: train(elsewhere / "twin", 60))
    why = refused.get("raised", "") if isinstance(refused, dict) else "it was not refused"
    return {"refused": "No space" in why or "Errno 28" in why, "why": why, "same": again == twin}


def rows_of_last_byte(
    disks: Callable[[str], contextlib.AbstractContextManager[str]], folder: Path, seconds: float = 30.0
) -> list[Row]:
    """Return the rows of P7 about a disk with 0 free bytes.

    Args:
        disks: function that mounts a small disk with the given name below the folder.
        folder: working folder of the part.
        seconds: seconds for which the disk of the continuing run stays full.
    """
    rows = list[Row]()
    with disks("last_byte") as _:
        one = goes_on(folder / "last_byte", folder / "beside", seconds)
    what = "a run with the default sinks on a disk that another process keeps full to the last byte"
    wanted = "it continues; weights and moments of its undisturbed twin; every row in the journal once"
    good = bool(one.get("same") and one.get("whole") and one.get("writes", 0) > 0 and one.get("full", 0) >= seconds - 1)
    good = good and one["lost"] == 0
    shown = (
        "{steps} steps, {writes} writes waited with {rows} rows, {lost} lost, full for {full} s".format(**one)
        if "rows" in one
        else ""
    )
    rows.append(judged("P7", what, wanted, shown, good=good, why="" if good else str(one)))
    for name, number, code, full_for in (
        ("kill -9", signal.SIGKILL, -signal.SIGKILL, 4.0),
        ("SIGTERM", signal.SIGTERM, 1, 12.0),  # longer than a run may delay a signal
    ):
        with disks(f"full-{number}") as _:
            one = ends(folder / f"full-{number}", folder / f"beside-{number}", number, full_for)
        good = bool(one["same"] and one["whole"] and one["kept"] and one["code"] == code)
        what = f"{name} while the disk is full, resumed when it is free"
        shown = "the same weights, every row once" if good else str(one)
        rows.append(judged("P7", what, "the twin's weights, no row lost or duplicate", shown, good=good))
    with disks("last_words") as _:
        one = ends(folder / "last_words", folder / "beside_words", signal.SIGTERM, 12.0, greedy=False)
    in_order = one["code"] == 128 + signal.SIGTERM or (one["code"] == 1 and one["crash"])
    good = bool(one["same"] and one["whole"] and in_order)
    what = "SIGTERM while the disk is full, and no process takes the space that the run releases from its reserve"
    wanted = "saved, or a crash folder; resumed, the twin's weights"
    shown = f"exit code {one['code']}, {'a' if one['crash'] else 'no'} crash folder, the same weights"
    rows.append(judged("P7", what, wanted, shown if good else str(one), good=good))
    with disks("begun_full") as _:
        one = starts(folder / "begun_full", folder / "beside_begun")
    good = one["refused"] and one["same"]
    shown = f"refused: {one['why'][:120]}; then {'the same weights' if one['same'] else 'other weights'}"
    what = "a run that starts on a full disk, and again later"
    rows.append(judged("P7", what, "refused, then it starts", shown, good=good))
    return rows
