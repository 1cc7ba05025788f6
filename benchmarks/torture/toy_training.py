"""A tiny training that fails at one step, for the catalogue of faults: in the first start only, or in every start."""

import argparse
import ctypes
import errno
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn

from fieldwatch import Diverged, Guard, Outputs, Run, Saving, Terms
from fieldwatch.monitor import supervisor_link

FOREVER = 1000


def segfault() -> None:
    """Read from an invalid address."""
    ctypes.string_at(0)


def bus_error() -> None:
    """Read from a mapped file that was truncated meanwhile."""
    path = Path(f"cut-{os.getpid()}")
    path.write_bytes(bytes(8192))
    with path.open("r+b") as file:
        page = mmap.mmap(file.fileno(), 8192)
        path.unlink()
        file.truncate(0)
        page[4096]


def hold_the_interpreter() -> None:
    """Wait in native code that holds the GIL."""
    ctypes.PyDLL(None).sleep(FOREVER)


def wait_for_a_lock() -> None:
    """Wait for a lock that is never released."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def wait_for_a_worker() -> None:
    """Wait for a batch from a worker that was killed."""
    out, into = os.pipe()
    worker = os.fork()
    if worker == 0:
        signal.pause()
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
    os.read(out, 1)
    os.close(into)


def fill_the_memory() -> None:
    """Allocate memory until the process is killed."""
    taken = []
    while True:
        taken.append(bytearray(os.urandom(1 << 20) * 64))


def stop() -> None:
    """Get stopped from outside, and never continued."""
    os.kill(os.getpid(), signal.SIGSTOP)


def fail(error: BaseException) -> Callable[[], None]:
    """Raise this error."""

    def raise_it() -> None:
        raise error

    return raise_it


def send(number: int) -> Callable[[], None]:
    """Send itself a signal."""
    return lambda: os.kill(os.getpid(), number)


FAULTS: Mapping[str, Callable[[], None]] = {
    "exception": fail(ValueError("a batch came with shape (3,), wanted (4,)")),
    "cuda": fail(RuntimeError("CUDA error: an illegal memory access was encountered")),
    "memory": fail(MemoryError("Unable to allocate 12.0 GiB")),
    "disk": fail(OSError(errno.ENOSPC, "No space left on device")),
    "diverged": fail(Diverged("10 updates in a row were refused", 5)),
    "SIGTERM": send(signal.SIGTERM),
    "SIGKILL": send(signal.SIGKILL),
    "segfault": segfault,
    "abort": os.abort,
    "bus error": bus_error,
    "OOM killer": fill_the_memory,
    "hang, interpreter held": hold_the_interpreter,
    "hang, lock": wait_for_a_lock,
    "hang, dead worker": wait_for_a_worker,
    "SIGSTOP": stop,
}


def train(folder: Path, fault: str, *, at: int, steps: int, harm: bool, timeout: float) -> None:  # noqa: PLR0913  one argument per flag
    """Fit a line, with a checkpoint after every 5th step."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with Run(
        folder, saving=Saving(every=5), guard=Guard(hang_timeout=timeout), outputs=Outputs(sinks=(), rules=())
    ) as run:
        run.track(model=model, optimizer=optimizer)
        run.resume()
        for step in run.steps(steps):
            inputs = torch.randn(8, 2)
            terms = Terms(fit=(1.0, (model(inputs).squeeze(1) - inputs.sum(1)).square().mean()))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            if step.index == at and harm:
                FAULTS[fault]()
            step.update(optimizer)
            time.sleep(0.001)


def main() -> None:
    """Parse the command line."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("folder", type=Path)
    reader.add_argument("--fault", default="exception", choices=sorted(FAULTS))
    reader.add_argument("--at", type=int, default=12)
    reader.add_argument("--steps", type=int, default=20)
    reader.add_argument("--every-start", action="store_true")
    reader.add_argument("--timeout", type=float, default=2.0)
    given = reader.parse_args()
    told = supervisor_link()
    harm = given.every_start or told is None or told.attempt == 1
    train(given.folder, given.fault, at=given.at, steps=given.steps, harm=harm, timeout=given.timeout)


if __name__ == "__main__":
    main()
