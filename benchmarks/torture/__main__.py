"""Tries to break every promise about a run, and says which hold.

    make torture                                  # everything, under 20 minutes on two cores; N=1000 for the nightly
    python benchmarks/torture --only kill,damage  # some parts
    python benchmarks/torture --count 20 --only kill --json
    python benchmarks/torture --take FILE...      # write the page from what ``--json`` printed earlier

Every part runs in a process of its own, in a folder that is deleted afterwards; what it mounted is unmounted. A part
that cannot be run here says so. Exits with 1 when a promise does not hold.
"""

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import table
from rows import Row, judged, not_run, rows_of

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))  # the parts are found as ``torture.<module>``, and by their names beside this file


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the torture: a function of a module beside this one.

    Attributes:
        module: which; it may not be there yet.
        function: takes a folder, and a count where ``counted``; returns rows.
        promises: what it is about.
        counted: given the number of kills (``all``), a tenth of it (``tenth``), or nothing.
    """

    module: str
    function: str
    promises: tuple[str, ...]
    counted: str = ""


PARTS = {
    "kill": Part(module="kill", function="run_kills", promises=("P1", "P19"), counted="all"),
    "syscalls": Part(module="syscalls", function="run_syscalls", promises=("P1", "P2", "P7")),
    "power": Part(module="power", function="run_power", promises=("P2",), counted="tenth"),
    "damage": Part(module="damage", function="run_damage", promises=("P3",)),
    "disk": Part(module="disk", function="run_disk", promises=("P7",)),
    "writers": Part(module="writers", function="run_writers", promises=("P15",)),
    "signals": Part(module="signals", function="run_signals", promises=("P10",), counted="all"),
    "faults": Part(module="faults", function="run_catalogue", promises=("P11", "P12", "P16")),
    "injections": Part(module="injections", function="run_injections", promises=("P8", "P9")),
    "memory": Part(module="memory", function="run_memory_faults", promises=("P13",)),
    "resume": Part(module="resume", function="run_resume_matrix", promises=("P4",)),
    "suites": Part(
        module="suites", function="run_suites", promises=("P4", "P6", "P8", "P9", "P10", "P14", "P17", "P18")
    ),
    "stall": Part(module="stall", function="run_stall", promises=("P5",)),
    "soak": Part(module="soak", function="run_soak", promises=("P20",)),
}
ALONE = ("stall", "soak")
"""Parts that measure time, and have the machine for themselves."""
LONGEST = sorted(PARTS, key=lambda name: name not in ("signals", "faults", "suites", "resume", "kill"))
"""The order in which parts are begun when two run at a time."""
PATIENCE, PATIENCE_EACH = 900, 3
"""Seconds after which a part counts as hung, and so many more for each kill."""


def run_here(name: str, count: int, folder: Path) -> list[Row]:
    """Run one part in this process."""
    part = PARTS[name]
    if importlib.util.find_spec(f"torture.{part.module}") is None:
        why = f"benchmarks/torture/{part.module}.py does not exist"
        return [not_run(promise, f"the part {name}", table.PROMISES[promise], why) for promise in part.promises]
    function: Callable[..., list[Row]] = getattr(importlib.import_module(f"torture.{part.module}"), part.function)
    counts = {"all": (count,), "tenth": (max(1, count // 10),), "": ()}
    return rows_of(function(folder, *counts[part.counted]))


def run_apart(name: str, count: int, folder: Path) -> list[Row]:
    """Run one part in a process of its own; whatever it started ends with it."""
    command = [sys.executable, str(HERE), "--part", name, "--count", str(count), "--folder", str(folder / name)]
    (folder / name).mkdir()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder / name)}
    said = folder / f"{name}.stderr"
    with (
        said.open("w") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True, env=environment
        ) as process,
    ):
        patience = PATIENCE + PATIENCE_EACH * count
        try:
            output, why = process.communicate(timeout=patience)[0], ""
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # its finally clauses unmount
            output, why = "", f"it was not done after {patience} s"
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    unmount_below(folder / name)
    if process.returncode == 0 and output and not why:
        return rows_of(json.loads(output.splitlines()[-1]))
    print(said.read_text()[-3000:], file=sys.stderr)
    why = why or f"it ended with {process.returncode}: {said.read_text().strip().splitlines()[-1:]}"
    wanted = "an answer"
    return [
        judged(promise, f"the part {name}", wanted, "none", good=False, why=why) for promise in PARTS[name].promises
    ]


def unmount_below(folder: Path) -> None:
    """Unmount what a part that was killed has left below the folder."""
    mounts = Path("/proc/mounts")
    lines = mounts.read_text().splitlines() if mounts.exists() else []
    points = [line.split()[1] for line in lines if Path(line.split()[1]).is_relative_to(folder.resolve())]
    for point in reversed(points):
        subprocess.run(["umount", "--lazy", point], check=False)


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="kills and signals of each kind")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="parts at a time")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, with commas, of {', '.join(PARTS)}")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder if left out")
    parser.add_argument("--take", type=Path, nargs="+", help="write the page from these files")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    unknown = set(asked.only.split(",")) - PARTS.keys()
    if unknown:
        parser.error(f"--only {','.join(sorted(unknown))}: there is no such part, choose from {', '.join(PARTS)}")
    return asked


def torture(asked: argparse.Namespace) -> tuple[list[Row], str]:
    """Run the parts that were asked for; their rows, and the machine."""
    names = asked.only.split(",")
    with tempfile.TemporaryDirectory(prefix="torture-", dir=asked.folder) as place:
        facts = f"{table.machine(Path(place))}; {asked.count} kills and signals of each kind"

        def run(name: str) -> list[Row]:
            began = time.monotonic()
            rows = run_apart(name, asked.count, Path(place))
            print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
            return rows

        beside = sorted((name for name in names if name not in ALONE), key=LONGEST.index)
        with ThreadPoolExecutor(asked.jobs) as pool:
            parts = list(pool.map(run, beside))
        rows = [row for part in (*parts, *map(run, [name for name in names if name in ALONE])) for row in part]
    left = [name for name in PARTS if name not in names]
    return table.filled_up(rows, f"not asked for: {', '.join(left)}" if left else "no part covers it"), facts


def main() -> int:
    """Run, print, write."""
    asked = arguments()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # what was started ends, too
    if asked.part:
        import torch  # noqa: PLC0415  it takes seconds, and only a part needs it

        torch.set_num_threads(1)
        print(json.dumps([asdict(row) for row in run_here(asked.part, asked.count, asked.folder)]))
        return 0
    if asked.take:
        stored = [json.loads(path.read_text()) for path in asked.take]
        rows = rows_of(row for one in stored for row in one["rows"] if row["what"] != "nothing")
        rows, facts = table.filled_up(rows, "no part covers it"), stored[0]["machine"]
    else:
        rows, facts = torture(asked)
    print(json.dumps({"machine": facts, "rows": [asdict(row) for row in rows]}) if asked.json else table.text(rows))
    if asked.take or set(asked.only.split(",")) == set(PARTS):
        with contextlib.redirect_stdout(sys.stderr):
            table.put("torture", table.markdown(rows, f"`make torture N={asked.count}`: {facts}"))
    return int(any(row.verdict == "does not hold" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
