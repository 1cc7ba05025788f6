"""Kills processes with SIGKILL at random times: a loop of saves, and a whole run that saves in the background."""

import json
import random
import shutil
import signal
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from forked import Child, answer, forked
from methods import Method, Ours, blank, filled, whole
from rows import Row, judged

from fieldwatch import Outputs, Run, Saving
from fieldwatch.checkpoint import Retention
from fieldwatch.record import read_blocks, read_events

SIZE = 250_000
"""Floats of the largest tensor: 1.5 MB in total."""
LARGE = 5_000_000
"""The same for a run whose saves last several steps: 20 MB."""
EVERY = 3
"""Steps between checkpoints of the killed run."""


@dataclass(frozen=True, kw_only=True)
class Kill:
    """State after one kill.

    Attributes:
        promised: the last acknowledged step.
        step: the step that was loaded, -1 for none.
        whole: whether all loaded values belong to that step.
        during: whether the kill left an unfinished save.
        raised: error of the load; empty for none.
    """

    promised: int
    step: int
    whole: bool
    during: bool
    raised: str = ""

    @property
    def kept(self) -> bool:
        """Whether nothing acknowledged is lost."""
        return not self.raised and self.whole and self.step >= self.promised


def saving_for_ever(method: Method, folder: Path, start: int, size: int) -> Callable[[Callable[[bytes], Any]], None]:
    """Save step after step, and report each acknowledged one."""

    def work(say: Callable[[bytes], Any]) -> None:
        for step in range(start + 1, 1 << 40):
            method.save(folder, step, filled(step, size))
            say(struct.pack("<q", step))

    return work


def loaded(method: Method, folder: Path, size: int) -> dict[str, Any]:
    """Load in a child; return ``step`` and ``whole``, or ``raised``."""

    def work() -> list[Any]:
        step, state = method.load(folder, blank(size))
        return [step, whole(step, state)]

    found = answer(work)
    return found if isinstance(found, dict) else {"step": found[0], "whole": found[1]}


def last_said(child: Child) -> int:
    """Return the last complete number of a child's output; -1 for none."""
    count = len(child.heard) // 8
    return struct.unpack_from("<q", child.heard, 8 * (count - 1))[0] if count else -1


def kill_loop(method: Method, folder: Path, kills: int, size: int = SIZE, seed: int = 7) -> list[Kill]:
    """Kill a process that saves in a loop, each time after its first save; load, and continue from there."""
    draw, last, results = random.Random(seed), 0, list[Kill]()  # noqa: S311  reproducible choices, not secrets
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(kills):
        began = time.monotonic()
        child = forked(saving_for_ever(method, folder, last, size))
        child.listen(8)
        time.sleep(draw.uniform(0, 2) * (time.monotonic() - began))
        child.end(signal.SIGKILL)
        results.append(_result(last_said(child), loaded(method, folder, size), _unfinished(folder)))
        last = max(last, last_said(child), results[-1].step)
        if results[-1].raised:
            shutil.rmtree(folder)
            folder.mkdir()
    return results


def _result(promised: int, found: dict[str, Any], during: bool) -> Kill:  # noqa: FBT001  the last of three plain values
    return Kill(
        promised=promised,
        step=found.get("step", -1),
        whole=found.get("whole", False),
        during=during,
        raised=found.get("raised", ""),
    )


def _unfinished(folder: Path) -> bool:
    return folder.is_dir() and any(path.name.startswith((".tmp-", ".trash-")) for path in folder.iterdir())


def training(folder: Path, size: int) -> Callable[[Callable[[bytes], Any]], None]:
    """Run a training that never ends: resume, report the start and the restored step, and save every third step."""

    def work(say: Callable[[bytes], Any]) -> None:
        x = torch.zeros(size)
        n = torch.zeros((), dtype=torch.int64)
        with Run(
            folder, saving=Saving(every=EVERY, keep=Retention(last=2)), outputs=Outputs(sinks=(), rules=())
        ) as run:
            run.track(x=x, n=n)
            run.resume()
            steps = run.steps(1 << 40)
            first = next(steps)
            say(json.dumps([first.index, whole(first.index, {"x": x, "n": n})]).encode() + b"\n")
            advance(first, x, n)
            for step in steps:
                advance(step, x, n)

    return work


def advance(step: Any, x: torch.Tensor, n: torch.Tensor) -> None:
    """Train one step: every value becomes the number of finished steps, in place."""
    x.fill_(step.index + 1)
    n.fill_(step.index + 1)
    step.record({"Loss/toy": 1.0 / (step.index + 1)})
    time.sleep(0.001)


def acknowledged(folder: Path) -> int:
    """Return the last checkpoint that the run's events report as saved; 0 for none."""
    if not (folder / "events.jsonl").exists():
        return 0
    paths = [event["path"] for event in read_events(folder) if event["kind"] == "checkpoint"]
    return max((int(Path(path).name.split("_")[1].split(".")[0]) for path in paths), default=0)


def kill_run(folder: Path, kills: int, size: int = SIZE, within: float = 0.25, seed: int = 8) -> list[Kill]:
    """Kill a whole run at random times ``within`` seconds of its first step, or while it starts or resumes.

    The next start must continue from the last checkpoint that the events report as saved, or from a later one.
    """
    draw, promised, during, usual = random.Random(seed), 0, False, 0.3  # noqa: S311  reproducible choices, not secrets
    results = list[Kill]()
    while len(results) <= kills:
        began = time.monotonic()
        child = forked(training(folder, size))
        early = 0 < len(results) < kills and draw.random() < 0.2
        if early:
            time.sleep(draw.uniform(0, usual))
        elif child.listen(1):
            usual = time.monotonic() - began
            time.sleep(draw.uniform(0, within))
        code = child.end(signal.SIGKILL)
        if child.heard:
            step, good = json.loads(child.heard.splitlines()[0])
            results.append(Kill(promised=promised, step=step, whole=good, during=during))
        elif not early:
            why = f"the run exited with {code} before its first step"
            results.append(Kill(promised=promised, step=-1, whole=False, during=during, raised=why))
        promised, during = max(promised, acknowledged(folder)), _unfinished(folder / "checkpoints")
    return results[1:]  # the first start did not follow a kill


def shown(results: list[Kill]) -> str:
    """Return the figures of a kill loop on one line."""
    kept = sum(one.kept for one in results)
    during = sum(one.during for one in results)
    back = sum(not one.raised and one.step < one.promised for one in results)
    raised = sum(bool(one.raised) for one in results)
    return (
        f"{kept} of {len(results)} loadable and whole, {back} steps back, {raised} raised; {during} hit an "
        "unfinished save"
    )


def first_wrong(results: list[Kill]) -> str:
    """Return the first failure; empty for none."""
    return next((f"{one}" for one in results if not one.kept), "")


def run_kills(folder: Path, count: int) -> list[Row]:
    """Return the rows of P1 and P19."""
    wanted = f"{count} of {count} loadable, 0 steps back"
    direct = kill_loop(Ours(last=1), folder / "direct", count)
    run = kill_run(folder / "run", count)
    behind = kill_run(folder / "large", max(5, count // 10), LARGE, within=2.0)
    steps = [
        step for block in read_blocks(folder / "run") for step in block.steps.tolist()
    ]  # as stored, without merging
    twice = len(steps) - len(set(steps))
    missing = len(set(range(max(steps, default=0))) - set(steps))
    good = bool(steps) and not twice and not missing and steps == sorted(steps)
    return [
        _row("kill -9 in a loop of saves (Checkpoints.save, one kept)", wanted, direct),
        _row(f"kill -9 of a whole run that saves every {EVERY} steps, start and resume too", wanted, run),
        _row("the same with 20 MB, which are written while training continues", "all loadable, 0 steps back", behind),
        judged(
            "P19",
            f"journal after {len(run)} resumes of that run",
            "every step once, in order",
            f"{len(steps)} rows, {twice} duplicate, {missing} missing, "
            f"{'in order' if steps == sorted(steps) else 'out of order'}",
            good=good,
        ),
    ]


def _row(what: str, wanted: str, results: list[Kill]) -> Row:
    moved = any(one.promised > 0 for one in results) and results[-1].step > 0
    good = all(one.kept for one in results) and moved
    why = first_wrong(results) or ("" if moved else "nothing was saved between the kills")
    return judged("P1", what, wanted, shown(results), good=good, why=why)
