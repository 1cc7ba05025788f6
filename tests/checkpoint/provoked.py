"""Real accidents, in a process of their own: ``python provoked.py FOLDER ACCIDENT...`` prints what came of each.

The process forks, so it never does tensor work that would start threads; it is a script, not a test.
"""

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from fieldwatch import Outputs, Run, Saving
from fieldwatch.checkpoint import BackgroundWorker, CheckpointError, Checkpoints, FolderLock, HostBuffers, Retention
from fieldwatch.record import read_events, read_history

CALLS = (
    "open",
    "mkdir",
    "posix_fallocate",
    "write",
    "fsync",
    "rename",
    "unlink",
    "rmdir",
    "scandir",
    "preadv",
    "ftruncate",
)
ORIGINAL = {name: getattr(os, name) for name in CALLS}
ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EACCES")


def filled(step, size=30_000):
    return {"x": torch.full((size,), float(step)), "y": torch.full((size,), step), "n": torch.tensor(step)}


def memory_folder():
    """Create a folder in which syncing is free, for tests that depend only on the order of calls."""
    shared = Path("/dev/shm")  # noqa: S108 - a folder of random name is made in it
    return Path(tempfile.mkdtemp(prefix="fieldwatch-", dir=shared if shared.is_dir() else None))


def found(folder):
    """Restore the last checkpoint, and check that it is consistent."""
    items = filled(0)
    restored = Checkpoints(folder).restore(items)
    whole = all(bool(tensor.eq(restored.step).all()) for tensor in items.values())
    return restored.step, whole and not restored.fell_back


def forked(work):
    """Run ``work(acknowledge)`` in a child; yield its pid and the pipe on which it acknowledges steps."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        work(lambda step: ORIGINAL["write"](writer, step.to_bytes(8, "little")))
        os._exit(0)
    os.close(writer)
    return child, reader


def acknowledged(reader):
    with os.fdopen(reader, "rb") as pipe:
        steps = pipe.read()
    return int.from_bytes(steps[-8:], "little") if steps else 0


def saving_for_ever(folder, start):
    def work(acknowledge):
        checkpoints = Checkpoints(folder, keep=Retention(last=1))
        for step in range(start + 1, 1_000_000):
            checkpoints.save(step, filled(step))
            acknowledge(step)

    return work


def saving_behind(folder, start):
    """The same with snapshots and a background thread: the state changes again while it is written."""

    def work(acknowledge):
        checkpoints = Checkpoints(folder, keep=Retention(last=1))
        buffers = HostBuffers(lambda: 2**40)
        saver = BackgroundWorker()
        items = filled(start)

        def write(draft):
            checkpoints.write(draft, threads=1)
            acknowledge(draft.step)

        for step in range(start + 1, 1_000_000):
            for tensor in items.values():
                tensor.fill_(step)
            saver.wait()
            draft = checkpoints.take(step, items, buffers.copy_arrays)
            saver.begin(lambda draft=draft: write(draft))
            for tensor in items.values():
                tensor.fill_(-1)  # what a torn snapshot would show

    return work


def kill_behind(folder, kills=15):
    """Kill -9 a process whose thread writes snapshots, at random times."""
    return kill_loop(folder, kills, saving_behind)


def kill_runs(folder, kills=4):
    """Kill -9 whole runs at random times: state, rows and events on the disk must fit what was acknowledged."""
    draw = np.random.default_rng(8)
    results = []
    for _ in range(kills):
        child, reader = forked(lambda acknowledge: run_for_ever(folder, acknowledge))
        os.read(reader, 8)
        time.sleep(draw.uniform(0.02, 0.4))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        promised = max(event["step"] for event in read_events(folder) if event["kind"] == "checkpoint") + 1
        checkpoints = Checkpoints(folder / "checkpoints")
        step = checkpoints.steps()[-1]
        stored = checkpoints.read()  # which checks every hash
        rows = read_history(folder)["Loss/total"].steps.tolist()
        whole = rows[:step] == list(range(step)) and all(bool(stored[name].eq(step).all()) for name in filled(0))
        results.append({"promised": promised, "step": step, "whole": whole})
    return results


def run_for_ever(folder, acknowledge):
    items = filled(0)
    with Run(folder, saving=Saving(every=1, keep=Retention(last=1)), outputs=Outputs(sinks=(), rules=())) as run:
        run.track(**items)
        start = run.resume() or 0
        for step in run.steps(1_000_000):
            for tensor in items.values():
                tensor.fill_(step.index + 1)
            step.record({"Loss/total": float(step.index)})
            if step.index == start + 3:
                acknowledge(step.index)


def kill_loop(folder, kills=25, saving=saving_for_ever):
    """Kill -9 a process that saves in a loop, at random times; every time the last acknowledged step must be there."""
    draw = np.random.default_rng(7)
    last = 0
    results = []
    for _ in range(kills):
        child, reader = forked(saving(folder, last))
        began = time.monotonic()
        first = int.from_bytes(os.read(reader, 8), "little")
        time.sleep(
            draw.uniform(0, 2) * (time.monotonic() - began)
        )  # somewhere in the next saves, however slow they are
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        promised = max(acknowledged(reader), first)
        step, whole = found(folder)
        results.append({"promised": promised, "step": step, "whole": whole})
        last = step
    return results


class Tripwire:
    """Counts system calls and lets one of them fail."""

    def __init__(self, at, accident):
        self.count = 0
        self.at = at
        self.accident = accident
        self.names = []
        for name in CALLS:
            setattr(os, name, self.wrapped(name))

    def wrapped(self, name):
        def call(*args, **kwargs):
            self.count += 1
            self.names.append(name)
            if self.count == self.at:
                self.accident(name, args)
            return ORIGINAL[name](*args, **kwargs)

        return call

    def remove(self):
        for name, call in ORIGINAL.items():
            setattr(os, name, call)


def killed(name, args):
    if name == "write":
        ORIGINAL["write"](args[0], memoryview(args[1])[: len(args[1]) // 2])
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_every_call(_):
    """Kill -9 one save (which also deletes an older one) before each of its calls, with half of a write done."""
    folder = memory_folder()
    results = []
    at = 0
    over = False
    while not over:
        at += 1
        place = folder / str(at)
        Checkpoints(place).save(1, filled(1))

        def work(acknowledge, at=at, place=place):
            Tripwire(at, killed)
            Checkpoints(place, keep=Retention(last=1)).save(2, filled(2))
            acknowledge(2)

        child, reader = forked(work)
        over = os.waitpid(child, 0)[1] == 0
        promised = acknowledged(reader) or 1
        step, whole = found(place)
        Checkpoints(place, keep=Retention(last=1)).save(3, filled(3))
        left = sorted(path.name for path in place.iterdir())
        results.append({"promised": promised, "step": step, "whole": whole, "left": left})
    shutil.rmtree(folder)
    return results


def error_at_every_call(_):
    """Let every system call of a save fail in turn; only CheckpointError may be raised, and the old one is kept."""
    folder = memory_folder()
    results = []
    while not results or results[-1]["reached"]:
        at = len(results) + 1
        results.append(one_error(folder / str(at), ERRORS[at % len(ERRORS)], at))
    shutil.rmtree(folder)
    return results


def one_error(place, code, at):
    def fails(_name, _args):
        raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))

    checkpoints = Checkpoints(place, keep=Retention(last=1))
    checkpoints.save(1, filled(1, 2000))
    wire = Tripwire(at, fails)
    error = ""
    promised = 1
    try:
        checkpoints.save(2, filled(2, 2000))
        promised = 2
    except CheckpointError as raised:
        error = str(raised)
    finally:
        wire.remove()
    items = filled(0, 2000)
    step = Checkpoints(place).restore(items).step
    checkpoints.save(3, filled(3, 2000))
    left = sorted(path.name for path in place.iterdir())
    call = wire.names[at - 1] if wire.count >= at else ""
    return {
        "code": code,
        "call": call,
        "error": error,
        "promised": promised,
        "step": step,
        "reached": bool(call),
        "left": left,
    }


def file_size_limit(folder):
    """Save more than the process may write into one file, with a temporary file size limit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    checkpoints = Checkpoints(folder)
    checkpoints.save(1, filled(1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))
    result = attempt(checkpoints, folder) | {"again": Checkpoints(folder).save(3, filled(3, 1000)).name}
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    return result


def full_disk(folder):
    """Save more than fits on the disk."""
    checkpoints = Checkpoints(folder)
    checkpoints.save(1, filled(1))
    wire = Tripwire(0, None)
    result = attempt(checkpoints, folder)
    wire.remove()
    return result | {"written": wire.names.count("write"), "again": checkpoints.save(3, filled(3)).name}


def read_only(folder):
    """Save to, and fall back on, a read-only disk."""
    checkpoints = Checkpoints(folder)
    checkpoints.save(1, filled(1))
    mount = folder.parent
    subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
    result = attempt(checkpoints, folder)
    subprocess.run(["mount", "-o", "remount,rw", str(mount)], check=True)
    broken = checkpoints.save(2, filled(2)) / "tensors.safetensors"
    broken.write_bytes(bytes(broken.stat().st_size))
    subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
    restored = Checkpoints(folder).restore(filled(0))
    (incident,) = restored.fell_back
    return result | {"fell_back_to": restored.step, "damaged_at": incident.path.name, "reason": incident.reason}


def unreadable(folder):
    """Restore a checkpoint whose file may not be opened."""
    (Checkpoints(folder).save(1, filled(1)) / "tensors.safetensors").chmod(0)
    try:
        found(folder)
    except CheckpointError as error:
        return {"error": str(error)}
    return {"error": ""}


def attempt(checkpoints, folder):
    try:
        checkpoints.save(2, filled(2, 1_000_000))
    except CheckpointError as error:
        cause = getattr(error.__cause__, "errno", None)
        return {
            "error": str(error),
            "errno": cause,
            "step": found(folder)[0],
            "left": sorted(path.name for path in folder.iterdir()),
        }
    return {"error": "", "errno": None}


def recorded_order(folder):
    """Record the calls of one save that deletes an older one, with the paths they work on."""
    checkpoints = Checkpoints(folder, keep=Retention(last=1))
    checkpoints.save(1, filled(1))
    results = []

    class Recorder(Tripwire):
        def wrapped(self, name):
            def call(*args, **kwargs):
                place = (
                    str(Path(f"/proc/self/fd/{args[0]}").readlink()) if isinstance(args[0], int) else os.fspath(args[0])
                )
                results.append([name, place, *(os.fspath(one) for one in args[1:2] if name == "rename")])
                return ORIGINAL[name](*args, **kwargs)

            return call

    recorder = Recorder(0, None)
    checkpoints.save(2, filled(2))
    recorder.remove()
    return results


def one_save(folder):
    """Save once more, under strace."""
    checkpoints = Checkpoints(folder, keep=Retention(last=1))
    checkpoints.save(1, filled(1))
    Path(folder, "begin").mkdir()
    checkpoints.save(2, filled(2))
    return []


def hold(folder):
    """Lock a folder until killed, with a forked worker that survives."""
    with FolderLock(folder):
        worker = os.fork()
        if not worker:
            time.sleep(5)
            os._exit(0)
        sys.stdout.write(json.dumps({"pid": os.getpid(), "worker": worker}) + "\n")
        sys.stdout.flush()
        time.sleep(30)
    return []


ACCIDENTS = (
    *(
        kill_loop,
        kill_behind,
        kill_runs,
        kill_at_every_call,
        error_at_every_call,
        file_size_limit,
        full_disk,
        read_only,
        unreadable,
    ),
    *(recorded_order, one_save, hold),
)

if __name__ == "__main__":
    torch.set_num_threads(1)
    known = {one.__name__: one for one in ACCIDENTS}
    sys.stdout.write(json.dumps({name: known[name](Path(sys.argv[1]) / name) for name in sys.argv[2:]}))
