"""Command lines of Nsight Systems, and the environment they are called in."""

import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from fieldwatch.base import InputError

SESSION: Final = "FIELDWATCH_NSYS_SESSION"
"""Environment variable of a command that nsys launched on request: the name of its session."""
STEPS: Final = "FIELDWATCH_PROFILE_STEPS"
"""Environment variable that asks a run to switch the profiler on for steps ``FIRST:LAST`` (0-based, inclusive)."""
ON_FINDING: Final = "FIELDWATCH_PROFILE_ON_FINDING"
"""Environment variable, ``1``: asks a run to switch the profiler on when a rule finds something worse than a note."""
TRACE: Final = ("--trace=cuda,nvtx,osrt", "--cuda-memory-usage=true")
REPORTS: Final = ("cuda_gpu_kern_sum", "cuda_gpu_mem_size_sum", "nvtx_sum")
USUAL_PLACES: Final = ("/opt/nvidia/nsight-systems/*/bin/nsys", "/usr/local/cuda*/bin/nsys")
_KEEP_CODE: Final = 'trap : INT TERM; "$@"; code=$?; echo "$code" > "$0"; exit "$code"'
"""Shell program: runs its arguments and keeps their exit code in file $0; signals are left to the command."""


def find_nsys() -> str | None:
    """Return the path of nsys: on PATH, or the newest where its installers put it; None if there is none."""
    installed = [path for place in USUAL_PLACES for path in sorted(Path("/").glob(place.removeprefix("/")))]
    return shutil.which("nsys") or (str(installed[-1]) if installed else None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Capture:
    """Which part of a command is recorded; the whole of it if nothing is chosen.

    Attributes:
        steps: first and last step (0-based, inclusive).
        on_finding: from the first finding that is worse than a note.
        session: name of the session in which recording waits for a request.

    Raises:
        InputError: the steps make no range, or more than one way was chosen.
    """

    steps: tuple[int, int] | None = None
    on_finding: bool = False
    session: str = ""

    def __post_init__(self) -> None:
        """Check that one way was chosen."""
        if self.steps is not None and not 0 <= self.steps[0] <= self.steps[1]:
            raise InputError(f"steps {self.steps[0]} to {self.steps[1]}: wanted FIRST LAST with 0 <= FIRST <= LAST")
        if sum((self.steps is not None, self.on_finding, bool(self.session))) > 1:
            raise InputError("steps, a finding and a request are three ways to choose what is recorded: choose one")

    def variables(self) -> dict[str, str]:
        """Return the environment variables that tell the command."""
        if self.steps is not None:
            return {STEPS: f"{self.steps[0]}:{self.steps[1]}"}
        if self.on_finding:
            return {ON_FINDING: "1"}
        return {SESSION: self.session} if self.session else {}

    @property
    def ranged(self) -> bool:
        """Whether the command itself switches recording on and off."""
        return self.steps is not None or self.on_finding


def training_line(nsys: str, capture: Capture, report: Path, code_file: Path, command: Sequence[str]) -> list[str]:
    """Return the line that starts a command under nsys.

    Args:
        nsys: path of nsys.
        capture: what is recorded.
        report: where, without ``.nsys-rep``; unused on request, where each request has its own.
        code_file: where the command's exit code is kept, as nsys does not promise to pass it on.
        command: program and arguments.
    """
    wrapped = ["/bin/sh", "-c", _KEEP_CODE, str(code_file), *command]
    if capture.session:  # nsys launch takes neither --output nor --sample: they belong to nsys start
        return [nsys, "launch", f"--session-new={capture.session}", *TRACE, *wrapped]
    limits = ("--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--kill=none") if capture.ranged else ()
    return [nsys, "profile", f"--output={report}", *TRACE, *limits, *wrapped]


def start_line(nsys: str, session: str, report: Path) -> list[str]:
    """Return the line that begins recording in a session that waits for it."""
    return [nsys, "start", f"--session={session}", f"--output={report}"]


def stop_line(nsys: str, session: str) -> list[str]:
    """Return the line that ends recording and writes the report; the command goes on."""
    return [nsys, "stop", f"--session={session}"]


def device_line(nsys: str, seconds: float, report: Path) -> list[str]:
    """Return the line that records the counters of all GPUs for some seconds, whoever uses them.

    It wants a Turing GPU or newer, and the right to read counters (NVreg_RestrictProfilingToAdminUsers=0, or root).
    """
    nothing_else = "--trace=none", "--sample=none", "--cpuctxsw=none"
    return [nsys, "profile", f"--output={report}", *nothing_else, "--gpu-metrics-devices=all", "sleep", f"{seconds:g}"]


def stats_line(nsys: str, report: Path) -> list[str]:
    """Return the line that prints the statistics of a report as CSV."""
    return [nsys, "stats", f"--report={','.join(REPORTS)}", "--format=csv", "--force-export=true", str(report)]


def report_file(report: Path) -> Path:
    """Return the file that nsys writes for an ``--output``."""
    return report.with_name(f"{report.name}.nsys-rep")


def whose(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for ``nsys start`` and ``stop``: they find a session by the command's own TMPDIR."""
    same = {name: environment[name] for name in ("TMPDIR",) if name in environment}
    return {**os.environ, **same}
