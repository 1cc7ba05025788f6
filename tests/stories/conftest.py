"""What a user has: a folder of frames, one of photos with cameras, and the program."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fieldwatch.recon.data import solid_photos
from fieldwatch.recon.data.colmap import write_colmap

ROOT = Path(__file__).parents[2]
FORKS = Path(__file__).with_name("forks.py")
PR_SET_CHILD_SUBREAPER = 36
TINY = (
    "--rows 2 --columns 2 --data-split 7_7_8 --teacher descriptor --batch 2 --between-weight 0 --lr 0.005 "
    "--beta2 0.999 --grid-cells 4 2 --grid-widths 8 8 --grid-channels 4 2 --grid-periods 1 2 --grid-static 4 0 "
    "--grid-blocks 1 1 --grid-kernel 3"
).split()

SMALL = "--device cpu --threads 1 --turntable 0 --held-out 4".split()


def draw_frames(folder, count=16, height=32, width=64):
    folder.mkdir(parents=True)
    y, x = np.mgrid[0:height, 0:width] / height
    for i in range(count):
        waves = np.stack([np.sin(6 * x + i / 3), np.cos(5 * y - i / 4), np.sin(4 * (x + y) + i / 5)], axis=-1)
        Image.fromarray(np.round(127.5 + 110 * waves).astype(np.uint8)).save(folder / f"{i:04d}.png")
    return folder


@pytest.fixture(scope="session")
def frames(tmp_path_factory):
    return draw_frames(tmp_path_factory.mktemp("clip") / "frames")


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """A COLMAP folder: eight small photos of the built-in scene, and its points."""
    folder = tmp_path_factory.mktemp("photos") / "scene"
    write_colmap(folder, solid_photos(views=8, size=24, points=80, samples=1))
    return folder


@pytest.fixture
def tiny():
    """Options that make a training of seconds."""
    return TINY


@pytest.fixture
def small():
    """Options of a splats training on few cores that makes no films."""
    return SMALL


def surroundings():
    """Environment of a program that is started."""
    return os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}


@pytest.fixture
def start_anew():
    """Start the program as a process that shares nothing with another, not even its heap."""

    def begin(*arguments):
        command = [sys.executable, "-m", "fieldwatch", *map(str, arguments)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=surroundings())

    return begin


class Server:
    """The processes that fork: one for scripts, one for the program."""

    def __init__(self) -> None:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        theirs = [there.fileno() for _, there in pairs]
        command = [sys.executable, str(FORKS), *map(str, theirs)]
        self._process = subprocess.Popen(command, pass_fds=theirs, env=surroundings())
        for _, there in pairs:
            there.close()
        self._scripts, self._programs = (here for here, _ in pairs)

    def start(self, words: Sequence[str], environment: dict[str, str], folder: Path | None = None) -> "Forked":
        """Run ``python WORDS``; a process that runs ``-m fieldwatch`` has imported it already."""
        out, err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")  # noqa: SIM115  `Forked` closes them
        order = {"words": words, "environment": environment, "folder": str(folder or Path.cwd())}
        orders = self._programs if words[:2] == ["-m", "fieldwatch"] else self._scripts
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # whose parent ends is now a child of this process
        socket.send_fds(orders, [json.dumps(order).encode()], [out.fileno(), err.fileno()])
        pid = int(orders.recv(100) or 0)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        assert pid, "the process that forks has ended"
        return Forked(pid, out, err)

    def close(self) -> None:
        """End them."""
        self._programs.close()
        self._scripts.close()
        self._process.wait(10)


class Forked:
    """A running program: as much of ``subprocess.Popen`` as the stories need."""

    def __init__(self, pid: int, out, err) -> None:
        self.pid = pid
        self.returncode = None
        self._files = (out, err)

    def poll(self) -> int | None:
        """Return how it ended, None while it runs."""
        if self.returncode is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode

    def wait(self, timeout: float = 240) -> int:
        """Wait until it ends."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout)
            time.sleep(0.005)
        return code

    def communicate(self, timeout: float = 240) -> tuple[str, str]:
        """Wait until it ends and return what it printed and what it complained of."""
        self.wait(timeout)
        texts = []
        for file in self._files:
            file.seek(0)
            texts.append(file.read())
            file.close()
        return texts[0], texts[1]

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


@pytest.fixture(scope="session")
def forks():
    """The process that forks, for as long as this one tests."""
    server = Server()
    yield server
    server.close()


@pytest.fixture
def start(forks):
    """Start the program as a process of its own, by a fork of one that has imported it."""
    return lambda *arguments: forks.start(["-m", "fieldwatch", *map(str, arguments)], surroundings())


@pytest.fixture
def python(forks):
    """Run ``python WORDS`` to its end, as a fork that has imported torch and nothing of ours: what came of it."""

    def run(*words, folder=None, environment=None):
        words = [*map(str, words)]
        process = forks.start(words, surroundings() if environment is None else environment, folder)
        out, err = process.communicate(timeout=240)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    return run


@pytest.fixture
def finish(start):
    """Run the program to its end and return exit code, output and errors."""

    def run(*arguments):
        process = start(*arguments)
        out, err = process.communicate(timeout=240)
        return process.returncode, out, err

    return run
