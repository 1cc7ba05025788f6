"""Plants fifteen faults in supervised trainings and checks the reported cause, the stacks and the restart.

``python benchmarks/torture/faults.py`` runs all faults; names as arguments select some. The OOM killer needs a control
group of its own with a memory limit: set FIELDWATCH_TORTURE_CGROUP to its folder.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import default_hang
from rows import Row, judged, not_run

from fieldwatch.monitor import BLACK_BOX, GAVE_UP, STACKS, Attempt, Supervisor, read_post_mortems

TOY = Path(__file__).with_name("toy_training.py")
GROUP = "FIELDWATCH_TORTURE_CGROUP"
AT = 12
TIMEOUT = 2.0
LATE = 5.0
LIMIT = 1 << 30
CRAWLS = 5
PAUSE = 0.1
"""Restarts per hour for the crash that advances each time (the default is 10), and seconds before the first one."""
SUPERVISE = """
import json, sys
from fieldwatch.monitor import Supervisor
command = json.loads(sys.argv[1])
supervisor = Supervisor(lambda folder: command, announce=lambda line: None, pause=0.0)
code = supervisor.run()
first = supervisor.attempts[0]
print(json.dumps([code, first.cause, first.step, len(supervisor.attempts)]))
"""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault of the catalogue.

    Attributes:
        name: name in the toy training.
        cause: cause that must be reported.
        code: exit code expected of the supervisor; None if the run continues and finishes.
        stacks: whether the crash folder must contain stacks.
    """

    name: str
    cause: str
    code: int | None = None
    stacks: bool = True


CATALOGUE = (
    Fault(name="exception", cause="exception"),
    Fault(name="cuda", cause="cuda"),
    Fault(name="memory", cause="memory"),
    Fault(name="disk", cause="disk"),
    Fault(name="diverged", cause="diverged", code=3),
    Fault(name="SIGTERM", cause="interrupted", code=143, stacks=False),
    Fault(name="SIGKILL", cause="killed", stacks=False),
    Fault(name="segfault", cause="segfault"),
    Fault(name="abort", cause="abort"),
    Fault(name="bus error", cause="bus-error"),
    Fault(name="hang, interpreter held", cause="hang"),
    Fault(name="hang, lock", cause="hang"),
    Fault(name="hang, dead worker", cause="hang"),
    Fault(name="SIGSTOP", cause="stopped"),
    Fault(name="OOM killer", cause="oom-killer", stacks=False),
)


@dataclass(kw_only=True)
class Result:
    """Outcome of one fault.

    Attributes:
        fault: the planted fault.
        wrong: deviations from what is wanted; empty if there are none.
        skipped: why the fault was not tried; empty if it was.
        seconds: time from the last heartbeat until the stacks were on the disk; None without stacks.
        said: the supervisor's lines.
    """

    fault: Fault
    wrong: list[str] = field(default_factory=list)
    skipped: str = ""
    seconds: float | None = None
    said: list[str] = field(default_factory=list)


def catalogue(folder: Path, names: Sequence[str] = ()) -> list[Result]:
    """Plant all faults, or the named ones, each in its own run folder."""
    chosen = [fault for fault in CATALOGUE if not names or fault.name in names]
    return [_plant(fault, folder / fault.name.replace(", ", "_").replace(" ", "_")) for fault in chosen]


def run_catalogue(folder: Path) -> list[Row]:
    """Return the rows of P11, P12 and P16."""
    return [*run_faults(folder), *run_default_hang(folder), *run_crash_loop(folder)]


def run_default_hang(folder: Path) -> list[Row]:
    """Return the row of P12 about the default timeout."""
    return [hang_by_default(folder / "default_hang")]


def run_crash_loop(folder: Path) -> list[Row]:
    """Return the rows of P16."""
    return [crash_loop(folder / "crash_loop"), crawling_crash(folder / "crawling_crash")]


def run_faults(folder: Path, names: Sequence[str] = ()) -> list[Row]:
    """Return the rows of P11 and P12 for all faults, or for the named ones."""
    results = catalogue(folder, names)
    tried = [result for result in results if not result.skipped]
    right = [result for result in tried if not result.wrong]
    wrong = [f"{result.fault.name}: {', '.join(result.wrong)}" for result in tried if result.wrong]
    skipped = [result for result in results if result.skipped]
    hangs = [result.seconds for result in tried if result.seconds is not None]
    late = max(hangs, default=float("inf")) - TIMEOUT
    rows = [
        judged(
            *(
                "P11",
                "faults planted in a supervised training: report of cause, step, checkpoint, stacks, resume command",
            ),
            *("all reported correctly", f"{len(right)} of {len(tried)} reported correctly"),
            good=bool(tried) and not wrong,
            why="; ".join(wrong),
        ),
        judged(
            *("P12", "hangs (interpreter held, lock, dead worker): all stacks on the disk after the timeout"),
            *(f"<= {LATE:.0f} s", f"{late:.1f} s at most, of {len(hangs)}"),
            good=bool(hangs) and late <= LATE,
        ),
    ]
    return [*rows, *(not_run("P11", f"fault: {one.fault.name}", "named right", one.skipped) for one in skipped)]


def crash_loop(folder: Path) -> Row:
    """Test a training that crashes at the same step at every start."""
    code, said, starts = supervise(toy(folder, "exception", "--every-start"))
    report = "\n".join(said)
    good = code == GAVE_UP and len(starts) == 4 and "given up" in report and "fieldwatch resume" in report
    what = "the same crash at every start: restarts stop, with a report"
    return judged(
        "P16",
        what,
        "3 restarts, code 4",
        f"{len(starts) - 1} restarts, code {code}",
        good=good,
        why="" if good else report,
    )


def hang_by_default(folder: Path) -> Row:
    """Test a training that hangs after some steps under the default timeout."""
    cause, seconds = default_hang.noticed_after(folder)
    limit = default_hang.DOCUMENTED + default_hang.LATE
    what = "a hang after 30 steps under the default timeout (20 usual steps, at least a minute): stacks"
    good = cause == "hang" and seconds <= limit
    return judged("P12", what, f"<= {limit:.0f} s", f"{seconds:.1f} s", good=good, why="" if good else cause)


def crawling_crash(folder: Path) -> Row:
    """Test a training that crashes at every start, one step later each time: the limit per hour must stop it."""
    starts = count(AT)

    def command(_: Path | None) -> list[str]:
        return [*toy(folder, "exception", "--every-start", "--steps", "99"), "--at", str(next(starts))]

    said: list[str] = []
    supervisor = Supervisor(command, announce=said.append, per_hour=CRAWLS, pause=PAUSE)
    began = time.monotonic()
    code = supervisor.run()
    waited = time.monotonic() - began - sum(start.seconds for start in supervisor.attempts)
    steps = [start.step for start in supervisor.attempts]
    pauses = PAUSE * (2**CRAWLS - 1)
    good = (
        code == GAVE_UP
        and steps == list(range(AT, AT + CRAWLS + 1))
        and waited >= pauses
        and (folder / "crash" / "given_up.json").is_file()
        and any("within an hour" in line for line in said)
    )
    return judged(
        "P16",
        f"a crash that gets one step further each time, at most {CRAWLS} restarts an hour: limited, paused, report",
        f"{CRAWLS} restarts, >= {pauses:.1f} s of pauses, code 4",
        f"{len(steps) - 1} restarts, {waited:.1f} s, code {code}",
        good=good,
        why="" if good else "\n".join(said),
    )


def toy(folder: Path, fault: str, *more: str) -> list[str]:
    """Return the command line of a toy training."""
    return [sys.executable, str(TOY), str(folder), "--fault", fault, "--at", str(AT), "--timeout", str(TIMEOUT), *more]


def supervise(command: Sequence[str]) -> tuple[int, list[str], list[Attempt]]:
    """Run a command under a supervisor; return its exit code, its lines, and every start."""
    said: list[str] = []
    supervisor = Supervisor(lambda _: command, announce=said.append, pause=0.0)
    return supervisor.run(), said, supervisor.attempts


def _plant(fault: Fault, folder: Path) -> Result:
    folder.parent.mkdir(parents=True, exist_ok=True)
    if fault.name == "OOM killer":
        return _plant_in_group(fault, folder)
    code, said, starts = supervise(toy(folder, fault.name))
    result = Result(fault=fault, said=said)
    first = starts[0]
    _expect(result, "cause", first.cause, fault.cause)
    _expect(result, "step", first.step, AT)
    _expect(result, "last checkpoint", (first.last_checkpoint or 0) >= 5, wanted=True)
    _expect(result, "starts", len(starts), 1 if fault.code else 2)
    good_codes = (0, 1) if fault.code is None else (fault.code, 1, 3)
    _expect(result, f"exit code {code}", code in good_codes, wanted=True)
    _check_record(result, folder, first)
    if fault.cause == "hang":
        result.seconds = _until_stacks(folder)
    return result


def _check_record(result: Result, folder: Path, first: Attempt) -> None:
    """Check that the crash folder, or the note of an interruption, has everything that is wanted."""
    fault = result.fault
    if fault.cause == "interrupted":
        report = json.loads((folder / BLACK_BOX / "end.json").read_text())
    else:
        found = [report for report in read_post_mortems(folder) if report.get("pid") == first.pid]
        _expect(result, "crash folders", len(found), 1)
        report = found[0] if found else {}
        stacks = folder / str(report.get("place")) / STACKS
        if fault.stacks:
            _expect(result, "stacks", stacks.is_file() and "toy_training.py" in stacks.read_text(), wanted=True)
    _expect(result, "cause on disk", report.get("cause"), fault.cause)
    _expect(result, "step on disk", report.get("step"), AT)
    _expect(result, "resume command", "fieldwatch resume" in str(report.get("resume")), wanted=True)


def _until_stacks(folder: Path) -> float:
    """Return the seconds from the last heartbeat until the stacks were in the crash folder; infinity without stacks."""
    report = read_post_mortems(folder)[0]
    stacks = folder / str(report["place"]) / STACKS
    if not stacks.is_file():
        return float("inf")
    made = stacks.stat().st_mtime
    return made - datetime.fromisoformat(str(report["last_sign_of_life"])).timestamp()


def _plant_in_group(fault: Fault, folder: Path) -> Result:
    """Run under a supervisor in a control group with little memory."""
    group = os.environ.get(GROUP)
    if not group:
        return Result(fault=fault, skipped=f"no control group: set {GROUP} to the folder of one that may be used")
    place = Path(group)
    limit = next((p for p in (place / "memory.max", place / "memory.limit_in_bytes") if p.exists()), None)
    if limit is None:
        return Result(fault=fault, skipped=f"{group} has no memory controller")
    limit.write_text(str(LIMIT))

    def join() -> None:
        (place / "cgroup.procs").write_text(str(os.getpid()))

    command = [sys.executable, "-c", SUPERVISE, json.dumps(toy(folder, fault.name))]
    done = subprocess.run(command, preexec_fn=join, capture_output=True, text=True, check=False)
    result = Result(fault=fault)
    if done.returncode:
        result.wrong.append(f"the supervisor exited with {done.returncode}: {done.stderr[-300:]}")
        return result
    _, cause, step, starts = json.loads(done.stdout.splitlines()[-1])
    _expect(result, "cause", cause, fault.cause)
    _expect(result, "step", step, AT)
    _expect(result, "starts", starts, 2)
    return result


def _expect(result: Result, what: str, came: Any, wanted: Any) -> None:
    if came != wanted:
        result.wrong.append(f"{what}: expected {wanted!r}, got {came!r}")


def main(names: Sequence[str]) -> int:
    """Print one line per fault, and the rows."""
    with tempfile.TemporaryDirectory() as place:
        if names:
            for result in catalogue(Path(place), names):
                found = result.skipped or ", ".join(result.wrong) or "right"
                print(f"{result.fault.name:24} {found}", *result.said, sep="\n    ")
            return 0
        for row in run_catalogue(Path(place)):
            print(f"{row.promise:4} {row.verdict:14} {row.found:28} {row.what}  {row.why}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
