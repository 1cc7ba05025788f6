"""Real accidents, run in a process of its own: ``python provoked.py ACCIDENT FOLDER [NUMBER]`` prints what came of them as JSON.

The process forks, so it never does tensor work that would start threads; it is a script, not a test.
"""

import errno
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from fieldwatch.checkpoint import CheckpointError, Checkpoints, OneWriter, Retention

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
    "readv",
    "ftruncate",
)
ORIGINAL = {name: getattr(os, name) for name in CALLS}
ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EACCES")


def filled(step, size=30_000):
    return {"x": torch.full((size,), float(step)), "y": torch.full((size,), step), "n": torch.tensor(step)}


def found(folder):
    """Restore the last one, and check that it is of one piece."""
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


def kill_loop(folder, kills):
    """Kill -9 a process that saves in a loop, at random times; every time the last acknowledged step must be there."""
    draw, last, results = random.Random(7), 0, []
    for _ in range(kills):
        child, reader = forked(saving_for_ever(folder, last))
        time.sleep(draw.uniform(0.004, 0.06))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        promised = max(acknowledged(reader), last)
        step, whole = found(folder) if promised else (0, True)
        results.append({"promised": promised, "step": step, "whole": whole})
        last = step
    return results


class Tripwire:
    """Counts calls into the operating system and lets one of them go wrong."""

    def __init__(self, at, accident):
        self.count, self.at, self.accident, self.names = 0, at, accident, []
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


def kill_at_every_call(folder, _):
    """Kill -9 one save (which also deletes an older one) before each of its calls, with half of a write done."""
    results, at, over = [], 0, False
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
    return results


def error_at_every_call(folder, _):
    """Let every call of a save fail with every error; only CheckpointError may come out, and the old one stays."""
    results = []
    for code in ERRORS:
        at, over = 0, False
        while not over:
            at += 1
            results.append(one_error(folder / f"{code}-{at}", code, at))
            over = not results[-1]["reached"]
    return results


def one_error(place, code, at):
    def fails(_name, _args):
        raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))

    checkpoints = Checkpoints(place, keep=Retention(last=1))
    checkpoints.save(1, filled(1, 2000))
    wire, error, promised = Tripwire(at, fails), "", 1
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


def file_size_limit(folder, _):
    """Save more than the process may write into one file."""
    checkpoints = Checkpoints(folder)
    checkpoints.save(1, filled(1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))
    return attempt(checkpoints, folder) | {"again": Checkpoints(folder).save(3, filled(3, 1000)).name}


def full_disk(folder, _):
    """Save more than the disk has room for."""
    checkpoints = Checkpoints(folder)
    checkpoints.save(1, filled(1))
    began = time.monotonic()
    result = attempt(checkpoints, folder)
    return result | {
        "seconds": time.monotonic() - began,
        "again": Checkpoints(folder, keep=Retention()).save(3, filled(3)).name,
    }


def read_only(folder, _):
    """Save to, and fall back on, a disk that cannot be written."""
    checkpoints = Checkpoints(folder)
    checkpoints.save(1, filled(1))
    mount = folder.parent
    subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
    result = attempt(checkpoints, folder)
    subprocess.run(["mount", "-o", "remount,rw", str(mount)], check=True)
    broken = checkpoints.save(2, filled(2)) / "tensors.bin"
    broken.write_bytes(bytes(broken.stat().st_size))
    subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
    restored = Checkpoints(folder).restore(filled(0))
    (incident,) = restored.fell_back
    return result | {"fell_back_to": restored.step, "damaged_at": incident.path.name, "reason": incident.reason}


def unreadable(folder, _):
    """Restore a checkpoint whose file may not be opened."""
    (Checkpoints(folder).save(1, filled(1)) / "tensors.bin").chmod(0)
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
        return {"error": str(error), "errno": cause, "step": found(folder)[0], "left": sorted(os.listdir(folder))}
    return {"error": "", "errno": None}


def recorded_order(folder, _):
    """Record the calls of one save that deletes an older one, with the paths they work on."""
    checkpoints = Checkpoints(folder, keep=Retention(last=1))
    checkpoints.save(1, filled(1))
    results = []

    class Recorder(Tripwire):
        def wrapped(self, name):
            def call(*args, **kwargs):
                place = os.readlink(f"/proc/self/fd/{args[0]}") if isinstance(args[0], int) else os.fspath(args[0])
                results.append([name, place, *(os.fspath(one) for one in args[1:2] if name == "rename")])
                return ORIGINAL[name](*args, **kwargs)

            return call

    recorder = Recorder(0, None)
    checkpoints.save(2, filled(2))
    recorder.remove()
    return results


def one_save(folder, _):
    """Save once more, for strace to look at."""
    checkpoints = Checkpoints(folder, keep=Retention(last=1))
    checkpoints.save(1, filled(1))
    Path(folder, "begin").mkdir()
    checkpoints.save(2, filled(2))
    return []


def hold(folder, _):
    """Hold a folder until killed, with a forked worker that lives on."""
    with OneWriter(folder):
        worker = os.fork()
        if not worker:
            time.sleep(5)
            os._exit(0)
        print(json.dumps({"pid": os.getpid(), "worker": worker}), flush=True)
        time.sleep(30)
    return []


ACCIDENTS = (
    *(kill_loop, kill_at_every_call, error_at_every_call, file_size_limit, full_disk, read_only, unreadable),
    *(recorded_order, one_save, hold),
)

if __name__ == "__main__":
    torch.set_num_threads(1)
    accident = {one.__name__: one for one in ACCIDENTS}[sys.argv[1]]
    print(json.dumps(accident(Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)))
