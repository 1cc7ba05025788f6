"""Tries to break each promise about a run and reports which ones hold.

    make torture                                  # everything, under 20 minutes on two cores; N=1000 for the nightly
    python benchmarks/torture --only kill,damage  # some parts
    python benchmarks/torture --count 20 --only kill --json
    python benchmarks/torture --take FILE...      # write the page from the output of earlier ``--json`` runs
    python benchmarks/torture --mutants           # break copies of the source on purpose: do the rows notice?
    python benchmarks/torture --mutants hash,older  # only mutants whose names contain one of these words

Every part runs in its own process and in a folder that is deleted afterwards; its mounts are unmounted. A part that
cannot run on this machine says so. The exit code is 1 if a promise does not hold or a planted break is not noticed.
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

import mutants
import table
from planted import MUTANTS
from rows import Row, judged, not_run, rows_of

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))  # parts are imported as ``torture.<module>`` and as modules of this folder


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the torture: a function of a module in this folder.

    Attributes:
        module: name of the module; it may not exist yet.
        function: takes a folder, and a count if ``counted`` is set; returns rows.
        promises: the promises that it tests.
        counted: the count that the function receives: the number of kills (``all``), a tenth of it (``tenth``), five
            times it (``five``), or the seconds of the soak (``seconds``); empty for none.
    """

    module: str
    function: str
    promises: tuple[str, ...]
    counted: str = ""


PARTS = {
    "kill": Part(module="kill", function="run_kills", promises=("P1", "P19"), counted="all"),
    "syscalls": Part(module="syscalls", function="run_syscalls", promises=("P1", "P2", "P7")),
    "start": Part(module="start_calls", function="run_start", promises=("P2",)),
    "power": Part(module="power", function="run_power", promises=("P2",), counted="tenth"),
    "logs": Part(module="logs", function="run_logs", promises=("P3",), counted="five"),
    "damage": Part(module="damage", function="run_damage", promises=("P3",)),
    "disk": Part(module="disk", function="run_disk", promises=("P7",)),
    "writers": Part(module="writers", function="run_writers", promises=("P15",)),
    "signals": Part(module="signals", function="run_signals", promises=("P10",), counted="all"),
    "faults": Part(module="faults", function="run_catalogue", promises=("P11", "P12", "P16")),
    "injections": Part(module="injections", function="run_injections", promises=("P8",)),
    "memory": Part(module="memory", function="run_memory_faults", promises=("P13", "P14")),
    "resume": Part(module="resume", function="run_resume_matrix", promises=("P4",)),
    "loaders": Part(module="loaders", function="run_loaders", promises=("P4",)),
    "states": Part(module="states", function="run_states", promises=("P4",)),
    "optimizers": Part(module="optimizers", function="run_optimizers", promises=("P8",)),
    "spikes": Part(module="spikes", function="run_spikes", promises=("P9",)),
    "validation": Part(module="validation", function="run_validation", promises=("P14",)),
    "hostile": Part(module="hostile", function="run_hostile", promises=("P17",)),
    "retention": Part(module="retention", function="run_retention", promises=("P18",)),
    "histories": Part(module="histories", function="run_histories", promises=("P19",)),
    "stall": Part(module="stall", function="run_stall", promises=("P5",)),
    "intervals": Part(module="intervals", function="run_intervals", promises=("P6",)),
    "soak": Part(module="soak", function="run_soak", promises=("P20",), counted="seconds"),
}
ALONE = ("stall", "intervals", "soak")
"""Parts that measure time and therefore run alone."""
LONGEST = sorted(PARTS, key=lambda name: name not in ("logs", "signals", "faults", "resume", "kill"))
"""Order in which parts start when two run at a time."""
PATIENCE = 900
PATIENCE_EACH = 3
"""Seconds after which a part counts as hung, plus this many for each kill."""


def run_here(name: str, asked: argparse.Namespace) -> list[Row]:
    """Run one part in this process."""
    part = PARTS[name]
    if importlib.util.find_spec(f"torture.{part.module}") is None:
        why = f"benchmarks/torture/{part.module}.py does not exist"
        return [not_run(promise, f"the part {name}", table.PROMISES[promise], why) for promise in part.promises]
    function: Callable[..., list[Row]] = getattr(importlib.import_module(f"torture.{part.module}"), part.function)
    counts = {"all": asked.count, "tenth": max(1, asked.count // 10), "five": 5 * asked.count}
    counts["seconds"] = asked.soak_seconds
    return rows_of(function(asked.folder, *([counts[part.counted]] if part.counted else [])))


def run_apart(name: str, asked: argparse.Namespace, folder: Path) -> list[Row]:
    """Run one part in its own process; every process that it started ends with it."""
    sizes = ["--count", str(asked.count), "--soak-seconds", str(asked.soak_seconds)]
    command = [sys.executable, str(HERE), "--part", name, *sizes, "--folder", str(folder / name)]
    (folder / name).mkdir()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder / name)}
    said = folder / f"{name}.stderr"
    with (
        said.open("w") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True, env=environment
        ) as process,
    ):
        patience = PATIENCE + PATIENCE_EACH * asked.count + 3 * asked.soak_seconds
        try:
            output = process.communicate(timeout=patience)[0]
            why = ""
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # so that its finally clauses unmount
            output = ""
            why = f"it did not finish within {patience} s"
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    mutants.unmount_below(folder / name)
    if process.returncode == 0 and output and not why:
        return rows_of(json.loads(output.splitlines()[-1]))
    print(said.read_text()[-3000:], file=sys.stderr)
    why = why or f"it exited with {process.returncode}: {said.read_text().strip().splitlines()[-1:]}"
    wanted = "an answer"
    return [
        judged(promise, f"the part {name}", wanted, "none", good=False, why=why) for promise in PARTS[name].promises
    ]


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="number of kills and signals of each kind")
    parser.add_argument(
        "--jobs", type=int, default=min(2, os.cpu_count() or 1), help="number of parts that run at a time"
    )
    parser.add_argument("--only", default=",".join(PARTS), help=f"comma-separated parts to run: {', '.join(PARTS)}")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--folder", type=Path, help="working folder; by default a temporary one")
    parser.add_argument("--take", type=Path, nargs="+", help="write the page from these JSON files")
    parser.add_argument("--soak-seconds", type=int, default=600, help="seconds of the soak with all faults")
    parser.add_argument(
        "--mutants", nargs="?", const="", metavar="WORDS", help="plant breaks; WORDS select some by name"
    )
    parser.add_argument("--trial", help=argparse.SUPPRESS)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    unknown = set(asked.only.split(",")) - PARTS.keys()
    if unknown:
        parser.error(f"--only {','.join(sorted(unknown))}: no such part; choose from {', '.join(PARTS)}")
    return asked


def torture(asked: argparse.Namespace) -> tuple[list[Row], str]:
    """Run the selected parts; return their rows and a description of the machine."""
    names = asked.only.split(",")
    with tempfile.TemporaryDirectory(prefix="torture-", dir=asked.folder) as place:
        facts = f"{table.machine(Path(place))}; {asked.count} kills and signals of each kind"

        def run(name: str) -> list[Row]:
            began = time.monotonic()
            rows = run_apart(name, asked, Path(place))
            print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
            return rows

        beside = sorted((name for name in names if name not in ALONE), key=LONGEST.index)
        with ThreadPoolExecutor(asked.jobs) as pool:
            parts = list(pool.map(run, beside))
        rows = [row for part in (*parts, *map(run, [name for name in names if name in ALONE])) for row in part]
    left = [name for name in PARTS if name not in names]
    return table.filled_up(rows, f"not selected: {', '.join(left)}" if left else "no part covers it"), facts


def plant(asked: argparse.Namespace) -> int:
    """Plant breaks, print which rows noticed them, and write the page if all mutants were run."""
    words = [word for word in asked.mutants.split(",") if word]
    chosen = [one for one in MUTANTS if not words or any(word in one.name for word in words)]
    if not chosen:
        print(f"no mutant has {asked.mutants!r} in its name; choose from {', '.join(one.name for one in MUTANTS)}")
        return 2
    with tempfile.TemporaryDirectory(prefix="mutants-", dir=asked.folder) as place:
        facts = table.machine(Path(place))
        began = time.monotonic()
        results = mutants.run_mutants(
            chosen, Path(place), jobs=asked.jobs, tell=lambda line: print(line, file=sys.stderr)
        )
        minutes = (time.monotonic() - began) / 60
    print(mutants.text(results))
    if not words:
        head = f"`make mutants`: {facts}; {minutes:.0f} minutes"
        table.put("mutants", mutants.markdown(results, table.part("torture"), head))
    return int(any(result.missed for result in results))


def main() -> int:
    """Run the command line, print the results, and write the page."""
    asked = arguments()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # ends the started processes, too
    if asked.mutants is not None:
        return plant(asked)
    if asked.part or asked.trial:
        import torch  # noqa: PLC0415  takes seconds, and only parts need it

        torch.set_num_threads(1)
        rows = mutants.run_trial(asked.trial, asked.folder) if asked.trial else run_here(asked.part, asked)
        print(json.dumps([asdict(row) for row in rows]))
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
