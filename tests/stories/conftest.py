"""What a user has: a folder of frames, one of photos with cameras, and the program."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from fieldwatch.recon.data import solid_photos
from fieldwatch.recon.data.colmap import write_colmap
from ports import joined

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


@pytest.fixture
def run_two(start, surroundings):
    """Run a command in two processes that torch.distributed joins; return what they printed and their exit codes."""

    def run(*words):
        both = [start(*words, environment=surroundings | rank) for rank in joined(2)]
        ends = [process.communicate() for process in both]
        return "".join(map("".join, ends)), [process.returncode for process in both]

    return run


@pytest.fixture
def start_anew(surroundings):
    """Start the program as a process that shares nothing with another, not even its heap."""

    def begin(*arguments):
        command = [sys.executable, "-m", "fieldwatch", *map(str, arguments)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=surroundings)

    return begin
