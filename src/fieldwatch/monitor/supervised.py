"""The channel through which a training reports its run folder and the reason of its end to its parent."""

import functools
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast

import orjson

from fieldwatch.monitor.causes import Death, as_cause, exit_cause

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

VARIABLE: Final = "FIELDWATCH_SUPERVISED"
_LONGEST: Final = 4000
"""Maximum number of characters of a message: a pipe holds 64 KiB before its writer blocks."""


@dataclass(frozen=True, kw_only=True)
class SupervisorLink:
    """Connection of a training process to its supervisor.

    Attributes:
        supervisor: process ID of the supervisor.
        attempt: number of the start, from 1; 0 if the parent only listens.
        cause: cause of the previous death; empty at the first start.
        patience: factor by which all timeouts are extended; it grows after each hang, which may have been a slow
            machine.
        channel: file descriptor of the pipe for the run folder and the reason of the end.
        ends_hangs: whether the process exits after a hang, so that the parent can restart it.
    """

    supervisor: int
    attempt: int
    cause: str = ""
    patience: float = 1.0
    channel: int
    ends_hangs: bool = True

    def environment(self) -> dict[str, str]:
        """Return the environment variables for the process."""
        return {VARIABLE: orjson.dumps(asdict(self)).decode()}

    def report_folder(self, folder: Path) -> None:
        """Report the run folder to the supervisor; errors are ignored."""
        self._write(folder=str(folder.absolute()))

    def report_exit(self, reason: "ExitReason") -> None:
        """Report the reason of the end to the supervisor; errors are ignored."""
        self._write(cause=reason.cause, detail=reason.detail[:_LONGEST], missing=reason.missing)

    def _write(self, **facts: Any) -> None:
        # json instead of orjson, because a path may contain bytes that are not UTF-8, which json escapes.
        with suppress(OSError):
            os.write(self.channel, json.dumps(facts).encode() + b"\n")


@dataclass(frozen=True, kw_only=True)
class ExitReason(Death):
    """Reason of the end, as reported by the process.

    Attributes:
        missing: whether a file or folder was missing.
    """

    missing: bool = False


def supervisor_link() -> SupervisorLink | None:
    """Return the link to the supervisor if it is the parent of this process; else None."""
    stored = os.environ.get(VARIABLE)
    if not stored:
        return None
    try:
        # TypeError: the variable was set by another version.
        link = SupervisorLink(**orjson.loads(stored))
    except (orjson.JSONDecodeError, TypeError):
        return None
    # Grandchildren, such as data workers, inherit the variable but must not report for the training.
    return link if link.supervisor == os.getppid() else None


def report_exit(error: BaseException, *, refused: bool = False) -> None:
    """Report to the supervisor, if there is one, why this process ends.

    Args:
        error: exception that ends the process.
        refused: whether the command line classified it as an error in the user's input, regardless of its type.
    """
    parent = supervisor_link()
    if parent is not None:
        death, missing = exit_cause(error, refused=refused)
        parent.report_exit(ExitReason(cause=death.cause, detail=death.detail, missing=missing))


def reports_failure(method: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a method so that its exceptions are reported to the supervisor, also before there is a black box."""

    @functools.wraps(method)
    def reporting(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return method(*args, **kwargs)
        except BaseException as error:
            report_exit(error)
            raise

    return reporting


def read_channel(lines: list[bytes]) -> tuple[Path | None, ExitReason | None]:
    """Return the last run folder and the last reason in complete lines of the channel; None if not reported."""
    folder = None
    reason = None
    for line in lines:
        try:
            message = json.loads(line)
        except ValueError:
            continue
        facts = cast("dict[str, Any]", message) if isinstance(message, dict) else {}
        if isinstance(facts.get("folder"), str):
            # The last message wins.
            folder = Path(facts["folder"])
        cause = as_cause(facts.get("cause"))
        if cause is not None:
            reason = ExitReason(cause=cause, detail=str(facts.get("detail", "")), missing=facts.get("missing") is True)
    return folder, reason
