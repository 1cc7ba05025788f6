"""Measure numbers of the decision pages 0003 to 0005; with ``--lines 1dd8b72``, count the lines of page 0059.

The commit of ``--lines`` must be in the history of this clone.
"""

import argparse
import math
import subprocess
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from tensorboard.backend.event_processing import data_ingester, event_accumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from fieldwatch.measure import DeviceRing, Heading
from fieldwatch.record import Block, Journal, read_history

STEPS = 30_000
METRICS = 24
SPIKES = range(500, STEPS, 1000)
REPOSITORY = Path(__file__).parents[2]
OTHER_LANGUAGES = {".c", ".h", ".js", ".css", ".html"}
PARTS = ("src/fieldwatch", "tests", "benchmarks")
MOVED = {"data", "geometry", "losses", "mesh", "pipelines", "render"}
"""Rooms that were moved into recon since the earliest commit that is compared."""


def median_microseconds(call: Callable[[], object], repeats: int = 2000) -> float:
    """Return the median time of a call in microseconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e6 * float(np.median(times))


def spikes_that_tensorboard_keeps(folder: Path) -> None:
    """Write a tag with 30 one-step spikes, and read it with the limits of TensorBoard's server."""
    writer = EventFileWriter(str(folder))
    for step in range(STEPS):
        value = Summary.Value(tag="Loss/total", simple_value=1.0 if step in SPIKES else 0.1)
        writer.add_event(Event(step=step, wall_time=float(step), summary=Summary(value=[value])))
    writer.close()
    points = data_ingester.DEFAULT_TENSOR_SIZE_GUIDANCE["scalars"]
    reader = event_accumulator.EventAccumulator(str(folder), size_guidance={"scalars": points})
    reader.Reload()
    kept = {event.step for event in reader.Scalars("Loss/total")}
    print(f"0003 TensorBoard keeps {len(kept)} of {STEPS} steps, {len(kept & set(SPIKES))} of {len(SPIKES)} spikes")


def journal_cost(folder: Path) -> None:
    """Write 30,000 rows of 24 float32 metrics in blocks of 32, and read them back."""
    values = np.random.default_rng(0).normal(size=(STEPS, METRICS)).astype(np.float32).astype(np.float64)
    names = tuple(f"Loss/component_{k}" for k in range(METRICS))
    start = time.perf_counter()
    with Journal(folder) as journal:
        for first in range(0, STEPS, 32):
            part = values[first : first + 32]
            steps = np.arange(first, first + len(part))
            journal.append(
                Block(axis="step", columns=names, steps=steps, seconds=steps * 0.01, positions=steps, values=part)
            )
    written = time.perf_counter() - start
    size = sum(file.stat().st_size for file in folder.iterdir())
    start = time.perf_counter()
    history = read_history(folder)
    read = time.perf_counter() - start
    same = all(np.array_equal(history[name].values, values[:, k]) for k, name in enumerate(names))
    print(
        f"0003 journal: {1e6 * written / STEPS:.0f} us and {size / STEPS:.0f} bytes per row, "
        f"{size / 1e6:.1f} MB in all, read in {read:.1f} s, every value equal: {same}"
    )


def step_with_nan(refused: float) -> tuple[bool, bool, float]:
    """Take an ordinary step of fused Adam, then one with NaN gradients.

    Args:
        refused: value of ``found_inf`` in the second step.

    Returns:
        Whether the weights are finite, whether the moments are finite, and the number of counted steps.
    """
    weight = torch.nn.Parameter(torch.ones(1000))
    optimizer = torch.optim.Adam([weight], fused=True)
    for gradient, flag in ((1.0, 0.0), (math.nan, refused)):
        weight.grad = torch.full_like(weight, gradient)
        optimizer.grad_scale = None
        optimizer.found_inf = torch.tensor(flag)
        optimizer.step()
    state = optimizer.state[weight]
    moments = bool(torch.isfinite(state["exp_avg"]).all() and torch.isfinite(state["exp_avg_sq"]).all())
    return bool(torch.isfinite(weight).all()), moments, float(state["step"])


def ring_cost() -> None:
    """Compare recording 24 device scalars with reading each of them on the host."""
    scalars = {f"Loss/component_{k}": torch.rand(()) for k in range(METRICS)}
    ring = DeviceRing(torch.device("cpu"))

    def write() -> None:
        ring.write(Heading("step", 0, 0, 0.0), scalars, {})
        if ring.due():
            ring.take()

    def read() -> list[float]:
        return [value.item() for value in scalars.values()]

    print(f"0005 ring: {median_microseconds(write):.0f} us per step for {METRICS} values, including transfers")
    print(f"0005 one .item() per value, on the CPU, where none waits: {median_microseconds(read):.0f} us")


def lines_per_room(root: Path) -> dict[str, Counter[str]]:
    """Return the lines of Python and of other languages by room: packages of fieldwatch, tests, benchmarks."""
    found: dict[str, Counter[str]] = {}
    for part in PARTS:
        for file in sorted((root / part).rglob("*")):
            language = "Python" if file.suffix == ".py" else "other" if file.suffix in OTHER_LANGUAGES else ""
            inside = file.relative_to(root / part).parts[:-1]
            # A library that is stored with the page is not ours to count.
            if not language or "vendor" in inside or "__pycache__" in inside:
                continue
            if inside and inside[0] in MOVED:
                inside = ("recon", *inside)
            depth = 2 if inside[:1] == ("recon",) else 1
            room = "/".join(inside[:depth]) or "fieldwatch" if part == PARTS[0] else part
            found.setdefault(room, Counter())[language] += len(file.read_bytes().splitlines())
    return found


def print_lines(commit: str) -> None:
    """Print the lines of each room at a commit and now."""
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder, "old.tar")
        line = ["git", "-C", str(REPOSITORY), "archive", "-o", str(archive), commit, *PARTS]
        subprocess.run(line, check=True)  # noqa: S603  the commit is an argument of its own
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="data")
        before = lines_per_room(Path(folder))
    now = lines_per_room(REPOSITORY)
    print(f"| room | {commit} | now | other languages, {commit} | now |\n|---|---|---|---|---|")
    everything = sorted(before.keys() | now.keys(), key=lambda room: (room in PARTS, room))
    sums: list[Counter[str]] = [Counter(), Counter()]
    for room in everything:
        counts = [before.get(room, Counter()), now.get(room, Counter())]
        print(line_of(room, counts))
        for total, count in zip(sums, counts, strict=True):
            total.update(count if room not in PARTS else {})
    print(line_of("src/fieldwatch", sums))


def line_of(room: str, counts: list[Counter[str]]) -> str:
    """Return a line of the table; a room without lines has empty cells."""
    cells = [f"{count[language]:,}" if count[language] else "" for language in ("Python", "other") for count in counts]
    return f"| {room} | {' | '.join(cells)} |"


def main() -> None:
    """Print what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", metavar="COMMIT", help="count the lines per room at a commit and now")
    commit = parser.parse_args().lines
    if commit is None:
        measure_all()
    else:
        print_lines(commit)


def measure_all() -> None:
    """Print all measurements, each with the number of its page."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        spikes_that_tensorboard_keeps(Path(folder, "events"))
        journal_cost(Path(folder, "journal"))
    for refused in (0.0, 1.0):
        weights, moments, steps = step_with_nan(refused)
        print(f"0004 found_inf={refused:.0f}: finite weights {weights}, finite moments {moments}, counted {steps:.0f}")
    ring_cost()


if __name__ == "__main__":
    main()
