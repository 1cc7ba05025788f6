"""Evaluate the result of an attempt: whether the scene is done, whether a retry is worthwhile, and the cause."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from fieldwatch.many.run_folder import has_warnings
from fieldwatch.many.task import ATTEMPT_LINE, ProcessExit, SceneTask
from fieldwatch.monitor import STOPS, Death, InputPaths, cause_of_status, signal_name, state_of

State = Literal[
    "waiting", "queued", "running", "healthy", "warnings", "findings", "refused", "diverged", "crashed", "stopped"
]
"""State of a scene. An attempt ends in one of the last seven states."""

DONE: Final = frozenset({"healthy", "warnings", "findings"})
FAILED: Final = frozenset({"refused", "diverged", "crashed"})
FAILED_CODE: Final = 3
"""Exit code of a training run that diverged or failed."""
# A training that is stopped by signal N saves a checkpoint and then exits with code 128 + N.
_STOP_CODES: Final = frozenset(128 + number for number in STOPS)
_LAST_BYTES: Final = 1 << 14


@dataclass(frozen=True, kw_only=True)
class SceneAttempt:
    """A finished attempt to train a scene.

    Attributes:
        number: 1-based number of the attempt, over all driver runs.
        state: resulting state.
        cause: reason why it did not finish; empty if it did.
        code: exit code, negative for a signal; None if unknown.
        seconds: duration in seconds.
        first: step at which it started or resumed; None if it did not get that far.
        reached: number of completed steps at its end; None if there were none.
    """

    number: int
    state: State
    cause: str = ""
    code: int | None = None
    seconds: float = 0.0
    first: int | None = None
    reached: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the attempt as plain JSON values."""
        return asdict(self)


def judge(task: SceneTask, ended: ProcessExit, began: float, paths: InputPaths) -> tuple[State, Death]:
    """Return the state that results from an attempt, and the cause of its end as classified by the supervisor.

    Args:
        task: task of the attempt.
        ended: result of the process.
        began: start time of the attempt, in seconds since 1970.
        paths: input paths in the command, with their state before the attempt.
    """
    # The order of the checks matters: a stop request explains any exit code except that of a finished run.
    finished = Death(cause="finished", detail="")
    if ended.code == 0:
        return ("warnings" if has_warnings(task.folder) else "healthy"), finished
    # Exit code 1 is ambiguous: a run that finished with findings, or a Python error. The recorded state decides.
    if ended.code == 1 and state_of(task.folder).word == "finished":
        return "findings", finished
    if ended.stop_reason == "stop":
        # These exit codes are expected after a stop; for any other, report the cause.
        expected = ended.code in (*_STOP_CODES, None)
        detail = "" if expected else _cause(task, ended, began, paths).detail
        return "stopped", Death(cause="interrupted", detail=detail)
    death = _cause(task, ended, began, paths)
    if death.cause == "bad-input":
        return "refused", death
    if ended.code == FAILED_CODE and state_of(task.folder).word == "diverged":
        error = _crash_report(task.folder, began) or _last_line(task.console)
        return "diverged", Death(cause="diverged", detail=error)
    return "crashed", death


def _cause(task: SceneTask, ended: ProcessExit, began: float, paths: InputPaths) -> Death:
    """Return the cause (one word) and detail (one line) of the end of an unfinished attempt."""
    if ended.stop_reason == "timeout":
        return Death(cause="hang", detail=f"exceeded its timeout of {task.timeout:g} s")
    if ended.code is None:
        return Death(cause="killed", detail=ended.cause or "its exit status is unknown")
    if ended.code < 0:
        more = f": {ended.cause}" if ended.cause else ""
        return Death(cause=cause_of_status(ended.code).cause, detail=f"killed by {signal_name(-ended.code)}{more}")
    if ended.code - 128 in STOPS:
        detail = f"stopped by an external {signal_name(ended.code - 128)}; it saved a checkpoint"
        return Death(cause="interrupted", detail=detail)
    return _cause_of_code(task, ended, began, paths)


def _cause_of_code(task: SceneTask, ended: ProcessExit, began: float, paths: InputPaths) -> Death:
    """Return the cause for an exit code: the reason reported to the launcher, else the crash report or output."""
    if ended.reason is not None:
        judged = paths.reclassify(ended.reason)
        if judged.cause == "bad-input":
            return judged
        return Death(cause=judged.cause, detail=f"exit code {ended.code}: {judged.detail}")
    error = _crash_report(task.folder, began) or _last_line(task.console)
    return Death(cause="left", detail=f"exit code {ended.code}: {error}")


def _crash_report(folder: Path, began: float) -> str:
    """Return the error in the last crash report written since ``began``; an empty string if there is none."""
    # Allow one second of slack, because file systems round times.
    reports = [path for path in folder.glob("crash/*/crash.json") if path.stat().st_mtime >= began - 1]
    if not reports:
        return ""
    try:
        report = orjson.loads(max(reports).read_bytes())
    except orjson.JSONDecodeError:
        return ""
    return str(report.get("error", "")) if isinstance(report, dict) else ""


def _last_line(console: Path) -> str:
    """Return the last line that the process printed."""
    try:
        with console.open("rb") as file:
            # Read only the end, since console files may be large.
            file.seek(max(0, file.seek(0, 2) - _LAST_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return "it printed nothing"
    last = next((line.strip() for line in reversed(lines) if line.strip()), ATTEMPT_LINE)
    return "it printed nothing" if last.startswith(ATTEMPT_LINE) else last
