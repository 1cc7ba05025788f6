"""Reading a long run: fieldwatch's journal compared with TensorBoard's event files, with the same values in both.

    python benchmarks/reading.py           # 1,000,000 rows of 24 metrics; TensorBoard takes many minutes
    python benchmarks/reading.py --quick   # 20,000 rows, seconds
    python benchmarks/reading.py --json

One metric has a spike of a hundred thousand times its usual value at one step, and another is NaN at one step; a reader
should show both. TensorBoard's EventAccumulator runs twice: with its default limits (it keeps a random sample of 10,000
points of each curve, with a fixed seed; TensorBoard's own pages keep 1,000), and without limits, which takes so much
memory per point that it gets only the first tenth of the rows. Every reader runs in a separate process, and only the
reading is timed. The benchmark also measures the export to Parquet, and polling a run without new rows.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fieldwatch.record import Block, Journal, Manifest, follow, read_history
from fieldwatch.record.exports import export_record
from fieldwatch.record.sinks import TensorBoard

METRICS = tuple(f"Loss/component_{i:02d}" for i in range(24))
SPIKED = METRICS[3]
HOLED = METRICS[5]
SPIKE = 1e5
BLOCK = 500
SHARE = 10
"""Fraction of the rows that the reader without limits gets: 1 in this many."""
WAYS = {
    "ours": "fieldwatch, read_history",
    "default": "EventAccumulator, default limits",
    "unlimited": "EventAccumulator, no limits",
}


def spike_of(rows: int) -> int:
    """Step of the spike, in the first tenth, so that every reader has it."""
    return int(np.random.default_rng(9).integers(rows // SHARE // 2, rows // SHARE))


def write(place: Path, rows: int) -> None:
    """Write the journal, the event file, and the event file of the first rows."""
    rng = np.random.default_rng(0)
    spike = spike_of(rows)
    Manifest(config={"rows": rows}).write(place)
    (place / "default").mkdir()
    journal = Journal(place)
    whole = TensorBoard(place / "default")
    part = TensorBoard(place / "unlimited")
    for first in range(0, rows, BLOCK):
        steps = np.arange(first, min(first + BLOCK, rows))
        values = np.exp(0.1 * rng.standard_normal((len(steps), len(METRICS))) - 1e-6 * steps[:, None])
        values = values.astype(np.float32).astype(np.float64)
        values[steps == spike, METRICS.index(SPIKED)] = SPIKE
        values[steps == spike - 1, METRICS.index(HOLED)] = np.nan
        block = Block(axis="step", columns=METRICS, steps=steps, seconds=steps * 0.0213, positions=steps, values=values)
        journal.append(block)
        whole(block)
        part(block.before(rows // SHARE))
    for one in (journal, whole, part):
        one.close()


def read_ours(place: Path) -> tuple[Any, Callable[[str], tuple[list[int], list[float]]]]:
    """Read the journal; return the data, and a function from metric to steps and values."""
    history = read_history(place)
    return history, lambda name: (history[name].steps.tolist(), history[name].values.tolist())


def read_events(place: Path, guidance: dict[str, int] | None) -> tuple[Any, Callable[[str], Any]]:
    """Read the event file, in the same way."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415  2 s of start

    accumulator = EventAccumulator(str(place), size_guidance=guidance)
    accumulator.Reload()

    def series(name: str) -> tuple[list[int], list[float]]:
        found = accumulator.Scalars(name)
        return [event.step for event in found], [event.value for event in found]

    return accumulator, series


def read(way: str, place: Path, rows: int) -> dict[str, Any]:
    """Read in one way; return its cost and which values it shows."""
    spike = spike_of(rows)
    start = time.perf_counter()
    cpu = time.process_time()
    if way == "ours":
        kept, series = read_ours(place)
    else:
        kept, series = read_events(place / way, {"scalars": 0} if way == "unlimited" else None)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    steps, values = series(SPIKED)
    spikes = [step for step, value in zip(steps, values, strict=True) if value == SPIKE]
    holes = [step for step, value in zip(*series(HOLED), strict=True) if value != value]  # noqa: PLR0124  NaN
    del kept
    return {
        "way": way,
        "rows": rows // SHARE if way == "unlimited" else rows,
        "seconds": seconds,
        "cpu": cpu,
        "mebibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "points": len(steps),
        "spike": spikes == [spike],
        "nan": holes == [spike - 1],
    }


def also(place: Path, rows: int) -> dict[str, float]:
    """Measure the export and the polling."""
    start = time.perf_counter()
    written = export_record(place, "parquet", place / "parquet")
    parquet = time.perf_counter() - start
    follower = follow(place)
    follower.poll()
    start = time.perf_counter()
    looks = 200
    for _ in range(looks):
        follower.poll()
    look = (time.perf_counter() - start) / looks
    size = (place / "journal.jsonl").stat().st_size
    mebibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "rows": rows,
        "journal_bytes_per_row": size / rows,
        "parquet_seconds": parquet,
        "parquet_bytes_per_row": sum(written.files.values()) / rows,
        "parquet_minutes_of_1e7": parquet / rows * 1e7 / 60,
        "look_microseconds": 1e6 * look,
        "mebibytes": mebibytes,
    }


def measure(rows: int) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Write the run, and let every reader read it."""
    with tempfile.TemporaryDirectory(prefix="fw-reading-") as folder:
        place = Path(folder)
        write(place, rows)
        found = []
        for way in WAYS:
            line = [sys.executable, __file__, "--read", way, "--place", folder, "--rows", str(rows)]
            found.append(json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout))
        return found, also(place, rows)


def show(found: list[dict[str, Any]], more: dict[str, float]) -> None:
    """Print the table."""
    ours = found[0]["seconds"] / found[0]["rows"]
    spike = spike_of(found[0]["rows"])
    metrics = len(METRICS)
    print(f"| reader | rows of {metrics} metrics | s | us per row | relative | MiB | points per curve | spike | NaN |")
    print("|---|---|---|---|---|---|---|---|---|")
    for one in found:
        each = one["seconds"] / one["rows"]
        seen = " | ".join("shown" if one[what] else "**lost**" for what in ("spike", "nan"))
        print(
            f"| {WAYS[one['way']]} | {one['rows']:,} | {one['seconds']:.2f} | {1e6 * each:.1f} | {each / ours:.1f} "
            f"| {one['mebibytes']:.0f} | {one['points']:,} | {seen} |"
        )
    print(
        f"\nspike: a value of {SPIKE:,.0f} at one step ({spike:,}), others are near 1; "
        "NaN: one value of another metric, a step earlier"
    )
    print(
        f"journal: {more['journal_bytes_per_row']:.0f} B per row; to Parquet in {more['parquet_seconds']:.1f} s, ",
        end="",
    )
    print(f"{more['parquet_bytes_per_row']:.0f} B per row: 10^7 rows take {more['parquet_minutes_of_1e7']:.1f} min")
    print(f"polling a run without new rows: {more['look_microseconds']:.0f} us")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--read", choices=tuple(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(read(options.read, options.place, options.rows)))
        return
    found, more = measure(20_000 if options.quick else options.rows)
    if options.json:
        print(json.dumps({"readers": found, "more": more}))
        return
    show(found, more)


if __name__ == "__main__":
    main()
