"""A long run with faults of every kind at random times, compared with an undisturbed one: it must end and be the same.

The run is restarted in two ways: by fork, after signals only; and as new processes by the supervisor, where also the
disk fills up, the newest checkpoint is damaged, the run hangs, and memory runs out.
"""

import contextlib
import hashlib
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from disk import small_disk
from forked import Child, answer, forked
from rows import Row, judged
from torch import nn

from fieldwatch import Guard, Outputs, Run, Saving
from fieldwatch.checkpoint import Checkpoints, Retention
from fieldwatch.monitor import Supervisor, read_black_box
from fieldwatch.record import read_blocks

EVERY = 200
SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM, signal.SIGINT)
FAULTS = (
    *("SIGKILL", "SIGSEGV", "SIGABRT", "SIGTERM"),
    *("hang", "out of memory", "full disk", "damaged checkpoint", "stopped"),
)
MEAN = 20.0
"""Mean seconds between two faults."""
STEPS_BY_FORK = 30_000
HANG_TIMEOUT = 2.0
FULL_FOR = 3.0
"""Seconds for which the disk stays full."""
GOODPUT = 0.9
STAMP = struct.Struct("<dq")
"""One step in the log of a process: end time and index."""


def build() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    """A small network with dropout, and its data."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
    data = torch.randn(512, 8, generator=torch.Generator().manual_seed(1))
    return model, torch.optim.Adam(model.parameters(), lr=1e-3), data


def training(folder: Path, steps: int, timeout: float | None = None) -> Callable[[Callable[[bytes], Any]], None]:
    """Train on random batches, with the faults that the folder's harness requests; log when each step ended."""

    def work(say: Callable[[bytes], Any]) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        model, optimizer, data = build()
        orders = folder.parent / "orders"
        with Run(
            folder,
            saving=Saving(every=EVERY, keep=Retention(last=2)),
            guard=Guard(hang_timeout=timeout or "auto"),
            outputs=Outputs(sinks=(), rules=()),
        ) as run:
            run.track(model=model, optimizer=optimizer)
            run.resume()
            for step in run.steps(steps):
                batch = data[torch.randperm(512)[:32]]
                loss = (model(batch).squeeze(1) - batch.prod(1)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                step.record({"Loss/toy": float(loss.detach())})
                optimizer.step()
                say(STAMP.pack(time.monotonic(), step.index))
                if timeout is not None and step.index % 16 == 0:
                    obey(orders)
                time.sleep(0.001)  # so that the run is in its steps when a fault arrives

    return work


def obey(orders: Path) -> None:
    """Perform the fault that the harness has written down, once."""
    try:
        order = orders.read_text()
        orders.unlink()
    except OSError:
        return
    if order == "hang":
        time.sleep(1000)
    if order == "out of memory":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB (planted)")


def weights(folder: Path) -> str:
    """Return a hash of the final weights, moments and random states."""
    stored = Checkpoints(folder / "checkpoints").read("last")
    text = hashlib.sha256()
    for value in stored["model"].values():
        text.update(value.numpy().tobytes())
    for state in stored["optimizer"]["state"].values():
        text.update(state["exp_avg"].numpy().tobytes() + state["exp_avg_sq"].numpy().tobytes())
    text.update(stored["random_state"]["torch"].numpy().tobytes())
    return text.hexdigest()


def missing_rows(folder: Path, steps: int) -> list[int]:
    """Return the steps that the journal lacks or has twice."""
    found = [step for block in read_blocks(folder) for step in block.steps.tolist()]
    return sorted(set(range(steps)) - set(found)) if len(found) == len(set(found)) else [-1]


@dataclass(kw_only=True)
class Disturbed:
    """Results of a disturbed run.

    Attributes:
        faults: injected faults, in order.
        executed: number of computed steps, with repetitions.
        down: seconds from the last step of each process to the first step of the next one.
        seconds: duration of the run.
        ended: whether the last process exited with 0.
        why: how it ended otherwise.
    """

    faults: list[str] = field(default_factory=list[str])
    executed: int = 0
    down: float = 0.0
    seconds: float = 0.0
    ended: bool = False
    why: str = ""


def disturb(start: Callable[[], Child], mean: float, patience: float, seed: int = 11) -> Disturbed:
    """Start a run, send it a signal at random times, and restart it, until it is done."""
    draw, result, began = random.Random(seed), Disturbed(), time.monotonic()  # noqa: S311  reproducible choices, not secrets
    died: float | None = None
    while not result.ended and len(result.faults) < 200 and time.monotonic() - began < patience:
        child = start()
        child.listen(1)
        result.down += 0 if died is None else time.monotonic() - died
        fault = draw.choice(SIGNALS)
        code = child.end(fault) if _still_runs(child, mean * draw.uniform(0.5, 1.5)) else child.end()
        died = time.monotonic()
        result.executed += len(child.heard) // STAMP.size
        result.ended = code == 0
        if not result.ended:
            result.faults.append(fault.name)
    result.seconds = time.monotonic() - began
    return result


def _still_runs(child: Child, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([child.pipe], [], [], left)[0]:
            got = os.read(child.pipe, 65536)
            if not got:
                return False
            child.heard += got
    return True


class Harness:
    """A run under a supervisor, and the faults that are injected into it.

    Args:
        place: folder on a separate disk, for the run.
        logs: folder on another disk, for the times of all steps.
        steps: number of steps of the run.
    """

    def __init__(self, place: Path, logs: Path, steps: int) -> None:
        self.run = place / "run"
        self._disk = place
        self._logs = logs
        self._command = [sys.executable, __file__, "supervise", str(self.run), str(steps), str(logs)]
        self._said = (logs / "said").open("w")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the supervisor, which starts the training."""
        self._process = subprocess.Popen(self._command, stdout=self._said, stderr=self._said)

    @property
    def code(self) -> int | None:
        """Return the exit code of the supervisor; None while it runs."""
        return None if self._process is None else self._process.poll()

    def pid(self) -> int:
        """Return the process ID of the training, if it is in its steps; else 0."""
        beat = read_black_box(self.run)
        alive = beat is not None and beat.ending == "running" and beat.step >= 0
        return beat.pid if beat is not None and alive and Path(f"/proc/{beat.pid}").exists() else 0

    def harm(self, fault: str) -> bool:
        """Inject a fault; return False if no training is running."""
        pid = self.pid()
        if not pid:
            return False
        if fault in ("hang", "out of memory"):
            draft = self._disk / "orders.new"
            draft.write_text(fault)
            draft.rename(self._disk / "orders")
        elif fault == "full disk":
            self._fill()
        elif fault == "damaged checkpoint":
            return self._damage(pid)
        elif fault == "SIGTERM" and self._process is not None:  # to the supervisor, as a scheduler does
            self._process.send_signal(signal.SIGTERM)
        else:
            number = signal.SIGSTOP if fault == "stopped" else signal.Signals[fault]
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return True

    def _fill(self) -> None:
        filler = self._disk / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        time.sleep(FULL_FOR)
        filler.unlink()

    def _damage(self, pid: int) -> bool:
        """Flip a bit in the newest checkpoint, and kill the run before it writes another one."""
        if len(list((self.run / "checkpoints").glob("step_*"))) < 2:
            return False  # there is no earlier checkpoint to fall back to
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGSTOP)
            newest = max((self.run / "checkpoints").glob("step_*"))
            with (newest / "tensors.safetensors").open("r+b") as file:
                byte = file.read(1)
                file.seek(0)
                file.write(bytes([byte[0] ^ 1]))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return True

    def times(self) -> tuple[int, float]:
        """Return the number of computed steps, and the seconds between the processes."""
        starts = list[tuple[float, float]]()
        executed = 0
        for path in self._logs.glob("steps-*"):
            log = path.read_bytes()
            count = len(log) // STAMP.size
            if count:
                executed += count
                starts.append((STAMP.unpack_from(log)[0], STAMP.unpack_from(log, (count - 1) * STAMP.size)[0]))
        starts.sort()
        down = sum(later[0] - one[1] for one, later in pairwise(starts))
        return executed, down

    def close(self) -> None:
        """End the remaining processes."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
            self._process.kill()
            self._process.wait()
        self._said.close()

    def last_words(self) -> str:
        """Return the end of the output."""
        self._said.flush()
        return " ".join((self._logs / "said").read_text().splitlines()[-2:])[-300:]


def supervised(harness: "Harness", mean: float, patience: float, faults: tuple[str, ...]) -> Disturbed:
    """Train under a supervisor, with faults of every kind in turn at random times."""
    draw, result, began = random.Random(12), Disturbed(), time.monotonic()  # noqa: S311  reproducible choices, not secrets
    waiting = list[str]()
    due = None
    try:
        harness.start()
        while time.monotonic() - began < patience:
            time.sleep(0.1)
            code = harness.code
            if code == 0:
                result.ended = True
                break
            if code == 128 + signal.SIGTERM:  # as if the scheduler returned the machine
                harness.start()
            elif code is not None:
                result.why = f"the supervisor exited with {code}: {harness.last_words()}"
                break
            elif due is None:  # the time counts from the first step
                due = time.monotonic() + mean * draw.uniform(0.5, 1.5) if harness.pid() else None
            elif time.monotonic() >= due:
                waiting = waiting or draw.sample(faults, len(faults))
                if harness.harm(waiting[-1]):
                    result.faults.append(waiting.pop())
                    due = None
                    time.sleep(1.0)  # until the killed process is gone
        else:
            result.why = f"not finished within {patience:.0f} s: {harness.last_words()}"
        result.seconds = time.monotonic() - began
        result.executed, result.down = harness.times()
    finally:
        harness.close()
    return result


def rate() -> float:
    """Return the steps per second of an undisturbed run on this machine."""

    def work() -> float:
        model, optimizer, data = build()
        began = time.monotonic()
        for _ in range(500):
            batch = data[torch.randperm(512)[:32]]
            optimizer.zero_grad()
            (model(batch).squeeze(1) - batch.prod(1)).square().mean().backward()
            optimizer.step()
            time.sleep(0.0013)  # including the overhead of a run
        return 500 / (time.monotonic() - began)

    found = answer(work)
    return found if isinstance(found, float) else 400.0


def run_soak(
    folder: Path,
    seconds: float = 600.0,
    mean: float = MEAN,
    *,
    by_fork: int = STEPS_BY_FORK,
    patience: float = 900.0,
) -> list[Row]:
    """Return the rows of P20.

    Args:
        folder: working folder.
        seconds: approximate training time of the run under the supervisor.
        mean: mean seconds between two faults.
        by_fork: steps of the run that is restarted by fork; 0 to leave it out.
        patience: seconds after which that run is given up.
    """
    folder.mkdir(parents=True, exist_ok=True)
    torch.optim.Adam([nn.Parameter(torch.zeros(1))])  # torch's lazy imports happen once here, not after every fork
    rows = forked_rows(folder, by_fork, mean, patience) if by_fork else []
    return [*rows, *(supervised_rows(folder, seconds, mean) if seconds else [])]


def forked_rows(folder: Path, steps: int, mean: float, patience: float) -> list[Row]:
    """Test a run that is restarted by fork after signals."""
    clean = forked(training(folder / "clean", steps))
    result = disturb(lambda: forked(training(folder / "forked", steps)), mean, patience)
    same = twin_equals(clean, steps, folder / "clean", folder / "forked")
    what = f"{steps:,} steps with a signal about every {mean:g} s ({', '.join(one.name for one in SIGNALS)}), by fork"
    return rows_of_run(what, result, steps, same)


def supervised_rows(folder: Path, seconds: float, mean: float) -> list[Row]:
    """Test a run that is restarted as new processes by the supervisor, after faults of every kind."""
    logs = folder / "logs"
    logs.mkdir()
    steps = max(int(seconds * rate() * 0.8), 500)
    with small_disk(folder / "disk", "256m") as why:
        faults = tuple(fault for fault in FAULTS if not why or fault != "full disk")
        clean = forked(training(folder / "undisturbed", steps))
        result = supervised(Harness(folder / "disk", logs, steps), mean, 3 * seconds + 60, faults)
        same = twin_equals(clean, steps, folder / "undisturbed", folder / "disk" / "run")
        gaps = answer(lambda: missing_rows(folder / "disk" / "run", steps))
    left = f"; no full disk: {why}" if why else ""
    shown = f"{steps:,} steps under a supervisor with a fault about every {mean:g} s ({', '.join(faults)}{left})"
    same = same or (f"steps {gaps[:3]} missing in the journal, or twice" if gaps else "")
    return rows_of_run(shown, result, steps, same)


def twin_equals(clean: Child, steps: int, one: Path, other: Path) -> str:
    """Return how two runs differ; empty if they are equal."""
    clean.listen(steps * STAMP.size, 1800)
    code = clean.end()
    if code:
        return f"the undisturbed run exited with {code}"
    hashes = [answer(lambda place=place: weights(place)) for place in (one, other)]
    raised = [found["raised"] for found in hashes if isinstance(found, dict)]
    return (raised[0] if raised else "") or ("" if hashes[0] == hashes[1] else "other weights, moments or random state")


def rows_of_run(what: str, result: Disturbed, steps: int, different: str) -> list[Row]:
    """Return the rows of P20 of a disturbed run: its end, and the cost of the faults."""
    share = (1 - result.down / max(result.seconds, 1e-9)) * steps / max(result.executed, 1)
    each = result.down / max(len(result.faults), 1)
    counts = ", ".join(f"{result.faults.count(name)} {name}" for name in dict.fromkeys(result.faults))
    ended = f"ended after {len(result.faults)} faults" if result.ended else "did not end"
    why = result.why or ("" if result.faults else "no fault came: too few steps")
    good = result.ended and not different and bool(result.faults)
    return [
        judged(
            *("P20", what, "ends; journal, weights, moments and random state equal to the undisturbed run's"),
            f"{ended} ({counts}), {different or 'bit-equal'}; {result.seconds:.0f} s",
            good=good,
            why=why,
        ),
        judged(
            *("P20", f"what that costs: {what.partition(' (')[0]}", f"goodput >= {GOODPUT:.0%}"),
            f"goodput {share:.1%}, {each:.1f} s from the last step before a fault to the next one",
            good=result.ended and share >= GOODPUT and bool(result.faults),
            why=why,
        ),
    ]


def supervise(folder: str, steps: str, logs: str) -> int:
    """Run as the supervisor."""
    command = [sys.executable, __file__, "train", folder, steps, logs]
    supervisor = Supervisor(
        lambda _: command, announce=lambda line: print(line, flush=True), pause=0.0, per_hour=10_000
    )
    return supervisor.run()


def train_alone(folder: str, steps: str, logs: str) -> None:
    """Run as the training, and write the time of every step to a file of this process."""
    torch.set_num_threads(1)
    log = os.open(Path(logs) / f"steps-{os.getpid()}-{time.monotonic_ns()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    training(Path(folder), int(steps), HANG_TIMEOUT)(lambda text: os.write(log, text))


if __name__ == "__main__":
    if sys.argv[1] == "supervise":
        sys.exit(supervise(*sys.argv[2:]))
    train_alone(*sys.argv[2:])
