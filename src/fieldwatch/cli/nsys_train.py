"""``fieldwatch nsys train -- COMMAND``: run a command under Nsight Systems, and print its statistics."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psutil
from rich.console import Console
from rich.text import Text

from fieldwatch.cli.flag_help import read_flags
from fieldwatch.cli.nsys import print_statistics, report_place, required_nsys, statistics
from fieldwatch.cli.output import BadInput, print_paths
from fieldwatch.monitor.nsight import Capture, report_file, training_line
from fieldwatch.record import Terminal

FOUND_NOTHING = 1


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Run a command under Nsight Systems, and exit with its exit code.

    Example: fieldwatch nsys train --steps 1000 1020 -- fieldwatch train NAME --data INPUT

    Without a flag everything is recorded, which makes large reports. --steps and --on-finding need a command that
    trains with fieldwatch, or calls cudaProfilerStart itself. With --on-request nothing is recorded until
    `fieldwatch nsys snapshot` requests it. Spans of a run appear as NVTX ranges.
    """

    steps: tuple[int, int] | None = None
    """Record only these steps: FIRST LAST (0-based, both included)."""
    on_finding: bool = False
    """Start recording at the first finding that is worse than a note."""
    on_request: bool = False
    """Record nothing until `fieldwatch nsys snapshot PID` requests it."""
    out: Path | None = None
    """File of the report (.nsys-rep is added); by default nsight/<time>."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    # Words after -- belong to the command, also its flags.
    words = list(arguments)
    border = words.index("--") if "--" in words else len(words)
    chosen = read_flags(Arguments, prog="fieldwatch nsys train", arguments=words[:border])
    command = words[border + 1 :]
    _check(command)
    session = f"fieldwatch-{os.getpid()}" if chosen.on_request else ""
    capture = Capture(steps=chosen.steps, on_finding=chosen.on_finding, session=session)
    nsys = required_nsys()
    console = Terminal(highlight=False, soft_wrap=True)
    # On request, the report is written by `fieldwatch nsys snapshot`, not by this command.
    if session:
        console.print(f"To record some seconds: fieldwatch nsys snapshot --seconds 30 {os.getpid()}")
        return _run(nsys, capture, Path(), command)
    report = report_place(chosen.out)
    code = _run(nsys, capture, report, command)
    return _report(console, nsys, capture, report_file(report), code)


def _check(command: Sequence[str]) -> None:
    if not command:
        raise BadInput("expected a command after --, got none: e.g. fieldwatch nsys train -- fieldwatch train NAME")
    if shutil.which(command[0]) is None:
        raise BadInput(f"there is no program {command[0]!r}: write the whole command after --, program first")


def _run(nsys: str, capture: Capture, report: Path, command: Sequence[str]) -> int:
    """Run the command under nsys; return its exit code, or that of nsys if the command was never started."""
    with tempfile.TemporaryDirectory() as folder:
        # nsys does not pass on the exit code of the command: a wrapper stores it in this file.
        code_file = Path(folder) / "code"
        line = training_line(nsys, capture, report, code_file, command)
        with subprocess.Popen(line, env={**os.environ, **capture.variables()}) as process:  # noqa: S603  no shell reads it
            # Handlers are restored afterwards, so that a second Ctrl-C ends this command.
            before = {number: signal.signal(number, _pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
            try:
                code = process.wait()
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)
        stored_code = code_file.read_text().strip() if code_file.exists() else ""
    # Popen reports death by a signal as a negative number; shells report it as 128 + signal.
    return int(stored_code) if stored_code else code if code >= 0 else 128 - code


def _pass_on(number: int, _: FrameType | None) -> None:
    """Forward a signal to the command, so that it saves and ends; nsys then ends by itself."""
    # The terminal sends Ctrl-C to the whole process group: the command has it already.
    if number == signal.SIGINT:
        return
    for child in psutil.Process().children(recursive=True):
        try:
            # Stopping nsys itself would lose the report.
            if not child.name().startswith(("nsys", "Qdstrm")):
                child.send_signal(number)
        except psutil.Error:
            # It ended in the meantime.
            continue


def _report(console: Console, nsys: str, capture: Capture, report: Path, code: int) -> int:
    if not report.exists():
        why = (
            "the command never started the profiler (the steps were not reached, or there was no finding)"
            if capture.ranged
            else "see the output of nsys above"
        )
        console.print(Text.assemble(("No report was written", "bold red"), f": {why}"))
        return code or FOUND_NOTHING
    print_statistics(Terminal(highlight=False), statistics(nsys, report))
    print_paths(console, {"report": report, "timeline": f"nsys-ui {report}"})
    return code
