"""What the end of a try means: is the scene done, is it worth another try, and why."""

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
"""How a scene stands; a try ends in one of the last seven."""

DONE: Final = frozenset({"healthy", "warnings", "findings"})
FAILED: Final = frozenset({"refused", "diverged", "crashed"})
FAILED_CODE: Final = 3
"""Exit code of a training that diverged or failed."""
_TOLD_TO_END: Final = frozenset(128 + number for number in STOPS)
_LAST_BYTES: Final = 1 << 14


@dataclass(frozen=True, kw_only=True)
class SceneAttempt:
    """One try of a scene, as it ended.

    Attributes:
        number: from 1, over all starts of the driver.
        state: what it came to.
        cause: why, where it did not finish.
        code: exit code, negative for a signal; None where nobody lived to see it.
        seconds: how long it took.
        first: step that it began or went on at; None where it never came that far.
        reached: steps done when it ended; None where none was.
    """

    number: int
    state: State
    cause: str = ""
    code: int | None = None
    seconds: float = 0.0
    first: int | None = None
    reached: int | None = None

    def as_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


def judge(task: SceneTask, ended: ProcessExit, began: float, paths: InputPaths) -> tuple[State, Death]:
    """What a try came to, and why, by the causes that a supervisor names.

    Args:
        task: what was asked for.
        ended: how it ended.
        began: when, in seconds since 1970.
        paths: the inputs that the command names, as they were before the try.
    """
    finished = Death(cause="finished", detail="")
    if ended.code == 0:
        return ("warnings" if has_warnings(task.folder) else "healthy"), finished
    if ended.code == 1 and state_of(task.folder).word == "finished":
        return "findings", finished
    if ended.stop_reason == "stop":
        # The expected ways to end after a stop; any other one has a cause worth naming.
        quiet = ended.code in (*_TOLD_TO_END, None)
        return "stopped", Death(cause="interrupted", detail="" if quiet else _cause(task, ended, began, paths).detail)
    death = _cause(task, ended, began, paths)
    if death.cause == "bad-input":
        return "refused", death
    if ended.code == FAILED_CODE and state_of(task.folder).word == "diverged":
        error = _crash_report(task.folder, began) or _last_words(task.console)
        return "diverged", Death(cause="diverged", detail=error)
    return "crashed", death


def _cause(task: SceneTask, ended: ProcessExit, began: float, paths: InputPaths) -> Death:
    """Why a process ended that did not finish: one word, and one line."""
    if ended.stop_reason == "timeout":
        return Death(cause="hang", detail=f"took longer than its timeout of {task.timeout:g} s")
    if ended.code is None:
        return Death(cause="killed", detail=ended.cause or "nobody lived to see how it ended")
    if ended.code < 0:
        more = f": {ended.cause}" if ended.cause else ""
        return Death(cause=cause_of_status(ended.code).cause, detail=f"killed by {signal_name(-ended.code)}{more}")
    if ended.code - 128 in STOPS:
        detail = f"told to end by {signal_name(ended.code - 128)} from elsewhere; it saved"
        return Death(cause="interrupted", detail=detail)
    return _cause_of_code(task, ended, began, paths)


def _cause_of_code(task: SceneTask, ended: ProcessExit, began: float, paths: InputPaths) -> Death:
    """Why a process ended with an exit code of its own: what it said to its launcher, else what it wrote or printed."""
    if ended.reason is not None:
        judged = paths.reclassify(ended.reason)
        if judged.cause == "bad-input":
            return judged
        return Death(cause=judged.cause, detail=f"exit code {ended.code}: {judged.detail}")
    error = _crash_report(task.folder, began) or _last_words(task.console)
    return Death(cause="left", detail=f"exit code {ended.code}: {error}")


def _crash_report(folder: Path, began: float) -> str:
    """The error in the crash report that was written since then; empty without one."""
    # One second of slack: file systems round times.
    reports = [path for path in folder.glob("crash/*/crash.json") if path.stat().st_mtime >= began - 1]
    if not reports:
        return ""
    try:
        report = orjson.loads(max(reports).read_bytes())
    except orjson.JSONDecodeError:
        return ""
    return str(report.get("error", "")) if isinstance(report, dict) else ""


def _last_words(console: Path) -> str:
    """The last line that the process printed."""
    try:
        with console.open("rb") as file:
            # Only the end: consoles grow without bound.
            file.seek(max(0, file.seek(0, 2) - _LAST_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return "it printed nothing"
    last = next((line.strip() for line in reversed(lines) if line.strip()), ATTEMPT_LINE)
    return "it printed nothing" if last.startswith(ATTEMPT_LINE) else last
