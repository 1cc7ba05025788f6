"""``fieldwatch nsys snapshot PID``: some seconds of a command that runs under Nsight Systems."""

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
"""Seconds that nsys may take to write its report after the command ended."""


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
    place = report_place(chosen.out)
    report = report_file(place)
    if chosen.device:
        _call(device_line(nsys, chosen.seconds, place), environment)
    else:
        _record(nsys, process, environment, chosen.seconds, place)
    if not report.exists():
        raise BadInput(f"nsys ended without an error but wrote no {report}: is there room on the disk?")
    tables = () if chosen.device else statistics(nsys, report)
    if chosen.json:
        print_json({"pid": chosen.pid, "report": report, "statistics": [asdict(table) for table in tables]})
        return 0
    if not chosen.device:
        print_statistics(Terminal(highlight=False), tables)
    print_paths(Terminal(highlight=False), {"report": report, "timeline": f"nsys-ui {report}"})
    return 0


def prepared(process: psutil.Process) -> Mapping[str, str]:
    """Return the environment of a process, or of one that it started, that waits in a session of nsys for a request.

    Raises:
        BadInput: there is none, or it is another user's process.
    """
    try:
        family = [process, *process.children(recursive=True)]
        environments = [environment for one in family if SESSION in (environment := one.environ())]
    except psutil.Error as error:
        raise BadInput(
            f"process {process.pid} cannot be looked into ({error}): run this as its user, or root"
        ) from error
    if not environments:
        raise BadInput(
            f"process {process.pid} was not started with `fieldwatch nsys train --on-request`, and Nsight Systems "
            "cannot attach to the CUDA calls of a running process. Stop it (a fieldwatch run saves itself), go on with "
            "`fieldwatch nsys train --on-request -- fieldwatch resume RUN` and ask again; or give --device for the "
            "counters of the whole device"
        )
    return environments[0]


def _process(pid: int) -> psutil.Process:
    try:
        return psutil.Process(pid)
    except (psutil.Error, ValueError, OverflowError) as error:
        raise BadInput(f"there is no process {pid}: `fieldwatch gpu --once` lists those that use a GPU") from error


def _record(nsys: str, process: psutil.Process, environment: Mapping[str, str], seconds: float, place: Path) -> None:
    session = environment[SESSION]
    _call(start_line(nsys, session, place), environment)
    try:
        process.wait(seconds)
    except (psutil.TimeoutExpired, KeyboardInterrupt):  # as long as was wanted, or enough was seen
        _call(stop_line(nsys, session), environment)
        return
    end = time.monotonic() + WRITING  # the command ended: nsys stops and writes by itself
    while not report_file(place).exists() and time.monotonic() < end:
        time.sleep(0.1)


def _call(line: Sequence[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(line, env=whose(environment), capture_output=True, text=True, check=False)  # noqa: S603  a line of ours, no shell
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip()
        raise BadInput(f"`nsys {line[1]}` failed with exit code {done.returncode}: {output or 'it said nothing'}")
