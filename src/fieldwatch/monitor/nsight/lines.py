"""Command lines of Nsight Systems, and their environment variables."""

import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from fieldwatch.base import InputError

SESSION: Final = "FIELDWATCH_NSYS_SESSION"
"""Environment variable with the name of the session, for a command launched to be recorded on request."""
STEPS: Final = "FIELDWATCH_PROFILE_STEPS"
"""Environment variable that makes a run enable the profiler for steps ``FIRST:LAST`` (0-based, inclusive)."""
ON_FINDING: Final = "FIELDWATCH_PROFILE_ON_FINDING"
"""Environment variable that, if ``1``, makes a run enable the profiler at the first finding worse than a note."""
TRACE: Final = ("--trace=cuda,nvtx,osrt", "--cuda-memory-usage=true")
REPORTS: Final = ("cuda_gpu_kern_sum", "cuda_gpu_mem_size_sum", "nvtx_sum")
USUAL_PLACES: Final = ("/opt/nvidia/nsight-systems/*/bin/nsys", "/usr/local/cuda*/bin/nsys")
_KEEP_CODE: Final = 'trap : INT TERM; "$@"; code=$?; echo "$code" > "$0"; exit "$code"'
"""Shell program that runs its arguments and writes their exit code to the file $0; the command handles signals."""


def find_nsys() -> str | None:
    """Return the path of nsys, from PATH or else from the newest usual installation; None if there is none."""
    # Sorted, so that the last one is the newest version.
    installed = [path for place in USUAL_PLACES for path in sorted(Path("/").glob(place.removeprefix("/")))]
    return shutil.which("nsys") or (str(installed[-1]) if installed else None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Capture:
    """Part of a command to record; the whole command by default.

    Attributes:
        steps: first and last step to record (0-based, inclusive).
        on_finding: whether to record from the first finding that is worse than a note.
        session: name of the session in which recording waits for a request.

    Raises:
        InputError: if the steps are not a range, or more than one option is set.
    """

    steps: tuple[int, int] | None = None
    on_finding: bool = False
    session: str = ""

    def __post_init__(self) -> None:
        """Validate the options."""
        if self.steps is not None and not 0 <= self.steps[0] <= self.steps[1]:
            raise InputError(f"steps {self.steps[0]} to {self.steps[1]}: expected FIRST LAST with 0 <= FIRST <= LAST")
        if sum((self.steps is not None, self.on_finding, bool(self.session))) > 1:
            raise InputError("steps, a finding and a request are three ways to select what is recorded: choose one")

    def variables(self) -> dict[str, str]:
        """Return the environment variables for the command."""
        if self.steps is not None:
            return {STEPS: f"{self.steps[0]}:{self.steps[1]}"}
        if self.on_finding:
            return {ON_FINDING: "1"}
        return {SESSION: self.session} if self.session else {}

    @property
    def ranged(self) -> bool:
        """Whether the command itself starts and stops the recording."""
        return self.steps is not None or self.on_finding


def training_line(nsys: str, capture: Capture, report: Path, code_file: Path, command: Sequence[str]) -> list[str]:
    """Return the command line that starts a command under nsys.

    Args:
        nsys: path of nsys.
        capture: part of the command to record.
        report: path of the report without ``.nsys-rep``; unused on request, because each request has its own.
        code_file: file for the exit code of the command, because nsys does not guarantee to return it.
        command: program and arguments.
    """
    wrapped = ["/bin/sh", "-c", _KEEP_CODE, str(code_file), *command]
    # nsys launch accepts neither --output nor --sample: they belong to nsys start.
    if capture.session:
        return [nsys, "launch", f"--session-new={capture.session}", *TRACE, *wrapped]
    # --kill=none lets the command continue after the range.
    limits = ("--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--kill=none") if capture.ranged else ()
    return [nsys, "profile", f"--output={report}", *TRACE, *limits, *wrapped]


def start_line(nsys: str, session: str, report: Path) -> list[str]:
    """Return the command line that starts recording in a waiting session."""
    return [nsys, "start", f"--session={session}", f"--output={report}"]


def stop_line(nsys: str, session: str) -> list[str]:
    """Return the command line that stops recording and writes the report; the command continues."""
    return [nsys, "stop", f"--session={session}"]


def device_line(nsys: str, seconds: float, report: Path) -> list[str]:
    """Return the command line that records the counters of all GPUs for some seconds, for all processes.

    It requires a Turing GPU or newer, and permission to read counters (NVreg_RestrictProfilingToAdminUsers=0, or root).
    """
    nothing_else = "--trace=none", "--sample=none", "--cpuctxsw=none"
    return [nsys, "profile", f"--output={report}", *nothing_else, "--gpu-metrics-devices=all", "sleep", f"{seconds:g}"]


def stats_line(nsys: str, report: Path) -> list[str]:
    """Return the command line that prints the statistics of a report as CSV."""
    return [nsys, "stats", f"--report={','.join(REPORTS)}", "--format=csv", "--force-export=true", str(report)]


def report_file(report: Path) -> Path:
    """Return the file that nsys writes for an ``--output`` option."""
    # with_name instead of with_suffix, because the name may contain dots.
    return report.with_name(f"{report.name}.nsys-rep")


def whose(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for ``nsys start`` and ``stop``, which find a session by the TMPDIR of the command."""
    same = {name: environment[name] for name in ("TMPDIR",) if name in environment}
    return {**os.environ, **same}
