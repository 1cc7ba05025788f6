"""Power cuts: shows which parts of a save have reached the disk, by copying the disk while it is mounted.

The disk is an ext4 image on a loop device. Its file holds everything that the file system has issued to the device, and
nothing that is still in the page cache. A copy of the file is therefore the disk at that moment, and mounting the copy
replays the journal as after a cut. The test reveals data, names and journal entries that were never sent to the disk.
It cannot reveal a disk that loses its own write cache (a missing flush), or writes that a real disk would reorder. In
these respects it is milder than a real cut, and it is never harsher: while the copy is made, the saving process is
stopped, and only the file system itself can continue.
"""

import contextlib
import os
import random
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from forked import Child, forked
from kill import last_said, loaded, saving_for_ever
from methods import Method, Ours, filled
from plain import RenamedThenDelete
from rows import Row, judged, not_run

SIZE = 500_000
DISK = 64 << 20
LATER = 7.0
"""In seconds: ext4 commits its journal every 5 s, and writes data back only after 30 s."""
WANTED = "100 % at the acknowledged step"


def can_mount(folder: Path) -> str:
    """Return why no disk can be created here; empty if one can."""
    if os.geteuid() != 0:
        return "needs root, to mount a disk image"
    missing = [name for name in ("mkfs.ext4", "mount", "umount") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    try:
        with mounted(made(folder / "probe.img"), folder / "probe"):
            return ""
    except subprocess.CalledProcessError as error:
        return f"no loop device can be mounted here: {error.stderr.decode(errors='replace').strip()}"


def made(image: Path) -> Path:
    """Create an empty ext4 disk with the defaults."""
    image.parent.mkdir(parents=True, exist_ok=True)
    with image.open("wb") as file:
        file.truncate(DISK)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True, capture_output=True)
    return image


@contextlib.contextmanager
def mounted(image: Path, point: Path) -> Iterator[Path]:
    """Mount an image; unmount it and detach its loop device at the end, whatever happens."""
    point.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(point)], check=True, capture_output=True)
    try:
        yield point
    finally:
        if subprocess.run(["umount", str(point)], check=False, capture_output=True).returncode:
            time.sleep(1)
            subprocess.run(["umount", "--lazy", str(point)], check=True, capture_output=True)


def cut(image: Path, copy: Path) -> Path:
    """Copy the disk in its current state."""
    subprocess.run(["cp", "--sparse=always", "--reflink=never", str(image), str(copy)], check=True)
    return copy


def saved(method: Method, folder: Path, step: int, size: int) -> None:
    """Save in a child that then exits at once, so that its exit writes nothing back."""
    child = forked(lambda say: (method.save(folder, step, filled(step, size)), say(b"saved")))
    if not child.listen(5):
        raise RuntimeError(f"{method.name} could not save step {step} to {folder}: see its traceback above")
    child.end()


def found_after(method: Method, copy: Path, size: int = SIZE) -> dict[str, Any]:
    """Mount a disk that was cut off, and load."""
    with mounted(copy, copy.with_suffix(".mnt")) as point:
        return loaded(method, point / "run", size)


def outcome(found: dict[str, Any], acknowledged: int) -> str:
    """Return ``new`` (the acknowledged state), ``old`` (an earlier one), ``lost`` (loading raises) or ``wrong``."""
    if "raised" in found:
        return "lost"
    if not found["whole"]:
        return "wrong"
    return "new" if found["step"] >= acknowledged else "old"


def cuts(methods: Sequence[Method], folder: Path, size: int = SIZE) -> dict[str, tuple[str, str]]:
    """For each method, test a cut right after the acknowledgement and one 7 s later; all methods wait together."""
    results = dict[str, tuple[str, str]]()
    with contextlib.ExitStack() as disks:
        images = [made(folder / f"{number}.img") for number in range(len(methods))]
        points = [disks.enter_context(mounted(image, image.with_suffix(""))) for image in images]
        copies = list[tuple[Path, Path]]()
        for method, image, point in zip(methods, images, points, strict=True):
            (point / "run").mkdir()
            saved(method, point / "run", 1, size)
            subprocess.run(["sync", "-f", str(point)], check=True)
            at_once = image.with_suffix(".at_once")
            saved(method, point / "run", 2, size)
            cut(image, at_once)
            copies.append((at_once, image.with_suffix(".later")))
        time.sleep(LATER)
        for image, (_, later) in zip(images, copies, strict=True):
            cut(image, later)
        for method, (at_once, later) in zip(methods, copies, strict=True):
            found = [found_after(method, copy, size) for copy in (at_once, later)]
            results[method.name] = (outcome(found[0], 2), outcome(found[1], 2))
    return results


def heard(child: Child) -> int:
    """Return the last output of a stopped child."""
    while select.select([child.pipe], [], [], 0)[0]:
        child.heard += os.read(child.pipe, 65536)
    return last_said(child)


def random_cuts(folder: Path, count: int, seed: int = 10) -> list[str]:
    """Cut at random times while a process, stopped during each copy, saves in a loop and keeps only the last save."""
    draw, method, results = random.Random(seed), Ours(last=1), list[str]()  # noqa: S311  reproducible choices, not secrets
    image = made(folder / "random.img")
    with mounted(image, folder / "random") as point:
        (point / "run").mkdir()
        child = forked(saving_for_ever(method, point / "run", 0, SIZE))
        try:
            child.listen(8)
            for number in range(count):
                time.sleep(draw.uniform(0, 0.2))
                os.kill(child.pid, signal.SIGSTOP)
                os.waitpid(child.pid, os.WUNTRACED)
                copy = cut(image, folder / f"random-{number}.img")
                promised = heard(child)
                results.append(outcome(found_after(method, copy), promised))
                copy.unlink()
                os.kill(child.pid, signal.SIGCONT)
        finally:
            child.end(signal.SIGKILL)
    return results


def run_power(folder: Path, count: int = 20) -> list[Row]:
    """Return the rows of P2."""
    what = "power cut: ext4 image on a loop device, copied while mounted, journal replayed"
    why = can_mount(folder)
    if why:
        return [not_run("P2", what, WANTED, why)]
    ours = Ours(last=1)
    control = RenamedThenDelete()
    found = cuts([ours, control], folder / "cuts")
    at_random = random_cuts(folder / "random", count)
    now, later = found[ours.name]
    return [
        judged(
            "P2", f"{what}, 0 s and {LATER:.0f} s after", WANTED, f"{now}, {later}", good=(now, later) == ("new",) * 2
        ),
        judged(
            *("P2", f"{count} cuts at random times of a loop of saves, one kept", WANTED),
            f"{at_random.count('new')} of {count}",
            good=set(at_random) == {"new"},
            why=", ".join(sorted(set(at_random) - {"new"})),
        ),
        judged(
            *("P2", f"control: {control.name}, no fsync", "the cut is seen: old or lost"),
            ", ".join(found[control.name]),
            good="new" not in found[control.name][:1],
        ),
    ]
