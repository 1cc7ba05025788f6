"""The cost of a run besides its training, and of many runs: bytes, startup and scheduling. For docs/scale.md.

Usage: python benchmarks/scale.py [--quick] [--part storage|scheduling] [--ray local|off]

Each pipeline trains a tiny scene twice, with two numbers of steps. The difference gives bytes and seconds per step, the
rest is the fixed cost of a run. The size of one checkpoint is listed. Then many empty scenes are scheduled, to measure
the cost of scheduling.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fieldwatch.many import (
    Driver,
    Executor,
    Ledger,
    NoRay,
    PlannedScene,
    ProcessExecutor,
    RayExecutor,
    capacity_here,
    read_run,
)

COMMON: Final = ("--device=cpu", "--threads=1")
TINY: Final = {
    "video": (
        (
            "--rows=2 --columns=2 --teacher=descriptor --batch=2 --between-weight=0 --grid-cells 4 2 --grid-widths 8 8 "
            "--grid-channels 4 2 --grid-periods 1 2 --grid-static 4 0 --grid-blocks 1 1 --grid-kernel=3"
        ),
        ("--epochs=2", "--epochs=8"),
    ),
    "splats": (
        "--views=6 --held-out=3 --growth-cap=1500 --turntable=0",
        ("--schedule-scale=0.002", "--schedule-scale=0.008"),
    ),
    "normals": (
        "--views=4 --size=32 --held-out=4 --mesh-resolution=32 --turntable=0",
        ("--steps=10", "--steps=40"),
    ),
}
RECORD: Final = ("journal.jsonl", "events.jsonl", "memory.jsonl", "log.txt", "tensorboard")


def main() -> int:
    """Measure, and print three tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one pipeline, few scenes")
    parser.add_argument("--ray", choices=("local", "off"), default="local")
    parser.add_argument("--part", choices=("all", "storage", "scheduling"), default="all")
    chosen = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="fw-scale-") as folder:
        if chosen.part != "scheduling":
            print_storage(Path(folder), quick=chosen.quick)
        if chosen.part != "storage":
            print_scheduling(Path(folder), quick=chosen.quick, ray=chosen.ray == "local")
    return 0


def print_storage(place: Path, *, quick: bool) -> None:
    """Measure the startup of runs and the size of their files."""
    programs = {
        "Python": "pass",
        "torch": "import torch",
        "a pipeline": "import fieldwatch.recon.commands.splats.job",
    }
    print("start of a process: " + ", ".join(f"{start_up(p):.2f} s with {name}" for name, p in programs.items()))
    print("\n| pipeline | steps | s | s/step | record B/step | files | products B | one checkpoint B |")
    print("|---|---|---|---|---|---|---|---|")
    for pipeline in list(TINY)[: 1 if quick else 3]:
        print(storage_row(pipeline, place))


def print_scheduling(place: Path, *, quick: bool, ray: bool) -> None:
    """Measure the scheduling of empty scenes."""
    print("\n| empty scenes | executor | total s | s each | scenes/s |")
    print("|---|---|---|---|---|")
    for count in (10,) if quick else (10, 100, 400):
        print(scheduling_row(count, place / f"noop{count}", ray=ray))


def start_up(program: str) -> float:
    """Return the seconds of a Python process for this code, the better of two."""
    return min(timed([sys.executable, "-c", program]) for _ in range(2))


def timed(line: Sequence[str]) -> float:
    """Return the seconds of a process."""
    began = time.perf_counter()
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def storage_row(pipeline: str, place: Path) -> str:
    """Train twice, and separate the cost per step from the fixed cost."""
    flags, lengths = TINY[pipeline]
    folders = []
    seconds = []
    for length in lengths:
        folders.append(place / f"{pipeline}{length}")
        words = ["train", pipeline, *COMMON, *flags.split(), length, "--out", str(folders[-1])]
        began = time.perf_counter()
        ended = subprocess.run(
            [sys.executable, "-m", "fieldwatch", *words], capture_output=True, text=True, check=False
        )
        if ended.returncode not in (0, 1):
            sys.exit(f"{' '.join(words)} exited with {ended.returncode}: {ended.stderr[-2000:]}")
        seconds.append(time.perf_counter() - began)
    short, long = (read_run(folder, ()).steps or 0 for folder in folders)
    record = [sum(size(folder / name) for name in RECORD) for folder in folders]
    per_step = (record[1] - record[0]) / (long - short)
    checkpoint = size(max((folders[1] / "checkpoints").glob("*[0-9]")))
    fixed = size(folders[1]) - record[1] - size(folders[1] / "checkpoints")
    speed = (seconds[1] - seconds[0]) / (long - short)
    files = sum(path.is_file() for path in folders[1].rglob("*"))
    return (
        f"| {pipeline} | {long} | {seconds[1]:.1f} | {speed:.3f} | {per_step:,.0f} | {files} | {fixed:,} | "
        f"{checkpoint:,} |"
    )


def size(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder."""
    return path.stat().st_size if path.is_file() else sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


def scheduling_row(count: int, out: Path, *, ray: bool) -> str:
    """Schedule this many empty scenes, two at a time."""
    executor: Executor
    try:
        executor = RayExecutor(None, 2) if ray else ProcessExecutor(capacity_here(2, 0, 2**40))
    except NoRay as error:
        return f"| {count} | Ray | {error} | - | - |"
    scenes = [PlannedScene(name=f"s{number}", pipeline="video", flags={}) for number in range(count)]
    with Ledger(out) as ledger:
        driver = Driver(scenes, out, executor, ledger, place=Path.cwd(), program=("-I", "-S", "-c", "pass"))
        began = time.perf_counter()
        driver.run(lambda: False, lambda _: None)
        seconds = time.perf_counter() - began
    if driver.exit_code():
        sys.exit("an empty scene failed: see " + str(driver.statuses[0].attempts))
    name = "Ray" if ray else "processes"
    return f"| {count} | {name} | {seconds:.1f} | {seconds / count:.3f} | {count / seconds:.1f} |"


if __name__ == "__main__":
    sys.exit(main())
