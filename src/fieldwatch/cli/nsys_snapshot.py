"""``fieldwatch nsys snapshot PID``: record some seconds of a command that runs under Nsight Systems."""

import math
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import tyro

from fieldwatch.cli.flag_help import read_flags
from fieldwatch.cli.nsys import print_statistics, report_place, required_nsys, statistics
from fieldwatch.cli.output import BadInput, print_json, print_paths
from fieldwatch.monitor.nsight import SESSION, device_line, report_file, start_line, stop_line, whose
from fieldwatch.record import Terminal

LONGEST = 3600.0
WRITING = 60.0
"""Longest time for nsys to write its report after the command has ended, seconds."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Record some seconds of a running command, and print the statistics.

    Example: fieldwatch nsys snapshot --seconds 30 12345

    The command must have been started with `fieldwatch nsys train --on-request -- COMMAND`: Nsight Systems cannot
    attach to the CUDA calls of a process that it did not start. The command continues afterwards. For any other
    process, --device records the counters of the whole device instead.
    """

    pid: tyro.conf.Positional[int]
    """Process id of the command, or of the `fieldwatch nsys train` that started it."""
    seconds: float = 30.0
    """Duration of the recording; Ctrl-C stops it earlier and keeps the report."""
    device: bool = False
    """Record counters of all GPUs (load, memory bandwidth) for all processes, without names of kernels."""
    out: Path | None = None
    """File of the report (.nsys-rep is added); by default nsight/<time>."""
    json: bool = False
    """Print the statistics as JSON."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(Arguments, prog="fieldwatch nsys snapshot", arguments=arguments)
    if not (math.isfinite(chosen.seconds) and 0 < chosen.seconds <= LONGEST):
        raise BadInput(f"--seconds {chosen.seconds:g}: expected more than 0 and at most {LONGEST:g} seconds, e.g. 30")
    process = _process(chosen.pid)
    nsys = required_nsys()
    environment = {} if chosen.device else prepared(process)
    stem = report_place(chosen.out)
    report = report_file(stem)
    if chosen.device:
        _call(device_line(nsys, chosen.seconds, stem), environment)
    else:
        _record(nsys, process, environment, chosen.seconds, stem)
    if not report.exists():
        raise BadInput(f"nsys ended without an error but wrote no {report}: check the free space of the disk")
    # Counters of the device contain no kernels: there are no statistics to print.
    tables = () if chosen.device else statistics(nsys, report)
    if chosen.json:
        print_json({"pid": chosen.pid, "report": report, "statistics": [asdict(table) for table in tables]})
        return 0
    if not chosen.device:
        print_statistics(Terminal(highlight=False), tables)
    print_paths(Terminal(highlight=False), {"report": report, "timeline": f"nsys-ui {report}"})
    return 0


def prepared(process: psutil.Process) -> Mapping[str, str]:
    """Return the environment of a process, or of its descendant, that runs in an nsys session waiting for a request.

    Raises:
        BadInput: there is no such process, or it belongs to another user.
    """
    try:
        # The user may name the parent (`fieldwatch nsys train`); the session is in its child's environment.
        family = [process, *process.children(recursive=True)]
        environments = [environment for member in family if SESSION in (environment := member.environ())]
    except psutil.Error as error:
        raise BadInput(
            f"cannot read the environment of process {process.pid} ({error}): run this command as its user, or as root"
        ) from error
    if not environments:
        raise BadInput(
            f"process {process.pid} was not started with `fieldwatch nsys train --on-request`, and Nsight Systems "
            "cannot attach to the CUDA calls of a running process. Stop it (a fieldwatch run saves first), continue "
            "with `fieldwatch nsys train --on-request -- fieldwatch resume RUN` and repeat this command; or use "
            "--device for the counters of the whole device"
        )
    return environments[0]


def _process(pid: int) -> psutil.Process:
    try:
        return psutil.Process(pid)
    except (psutil.Error, ValueError, OverflowError) as error:
        raise BadInput(f"there is no process {pid}: `fieldwatch gpu --once` lists those that use a GPU") from error


def _record(nsys: str, process: psutil.Process, environment: Mapping[str, str], seconds: float, stem: Path) -> None:
    # The session name was put into the environment by `fieldwatch nsys train --on-request`.
    session = environment[SESSION]
    _call(start_line(nsys, session, stem), environment)
    try:
        process.wait(seconds)
    except (psutil.TimeoutExpired, KeyboardInterrupt):
        # The duration is over, or the user stopped it early: both keep the report.
        _call(stop_line(nsys, session), environment)
        return
    # The command ended during the recording: nsys stops and writes the report without being asked.
    end = time.monotonic() + WRITING
    while not report_file(stem).exists() and time.monotonic() < end:
        time.sleep(0.1)


def _call(line: Sequence[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(line, env=whose(environment), capture_output=True, text=True, check=False)  # noqa: S603  our command line, no shell
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip()
        raise BadInput(f"`nsys {line[1]}` failed with exit code {done.returncode}: {output or 'no output'}")
