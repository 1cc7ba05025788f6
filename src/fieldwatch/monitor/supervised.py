"""The channel between a training and the parent that started it: its run folder, and why it ended."""

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
"""Characters of a message that are passed on: a pipe takes 64 KiB before its writer has to wait."""


@dataclass(frozen=True, kw_only=True)
class SupervisorLink:
    """A start under a supervisor.

    Attributes:
        supervisor: its pid.
        attempt: which start it is, from 1; 0 where the parent only listens.
        cause: what ended the one before; empty at the first.
        patience: how many times longer than usual everything may take: after a hang that may have been none, it grows.
        channel: descriptor of the pipe into which the process writes its run folder and its last words.
        ends_hangs: whether the process ends itself after a hang, so that the parent can start it again.
    """

    supervisor: int
    attempt: int
    cause: str = ""
    patience: float = 1.0
    channel: int
    ends_hangs: bool = True

    def environment(self) -> dict[str, str]:
        """What the process is given."""
        return {VARIABLE: orjson.dumps(asdict(self)).decode()}

    def report_folder(self, folder: Path) -> None:
        """Tell the supervisor which run this is; without one that listens, nothing happens."""
        self._write(folder=str(folder.absolute()))

    def report_exit(self, reason: "ExitReason") -> None:
        """Tell the supervisor why this process ends; without one that listens, nothing happens."""
        self._write(cause=reason.cause, detail=reason.detail[:_LONGEST], missing=reason.missing)

    def _write(self, **facts: Any) -> None:
        with suppress(OSError):
            os.write(
                self.channel, json.dumps(facts).encode() + b"\n"
            )  # any path: JSON by json escapes what is no UTF-8


@dataclass(frozen=True, kw_only=True)
class ExitReason(Death):
    """Why a process says that it ends.

    Attributes:
        missing: whether a file or folder was not there.
    """

    missing: bool = False


def supervisor_link() -> SupervisorLink | None:
    """How this process was started, if by a supervisor: its own child, not a grandchild that inherited the variable."""
    stored = os.environ.get(VARIABLE)
    if not stored:
        return None
    try:
        link = SupervisorLink(**orjson.loads(stored))
    except (orjson.JSONDecodeError, TypeError):
        return None
    # The variable is inherited by grandchildren, such as data workers, which must not report for the training.
    return link if link.supervisor == os.getppid() else None


def report_exit(error: BaseException, *, refused: bool = False) -> None:
    """Tell the supervisor, if there is one, what ends this process.

    Args:
        error: the exception that ends it.
        refused: whether it is an error of the user's input whatever its class: the command line said so.
    """
    parent = supervisor_link()
    if parent is not None:
        death, missing = exit_cause(error, refused=refused)
        parent.report_exit(ExitReason(cause=death.cause, detail=death.detail, missing=missing))


def reports_failure(method: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Have a method tell the supervisor what it raises: before a run has its black box nothing else would keep that."""

    @functools.wraps(method)
    def reporting(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return method(*args, **kwargs)
        except BaseException as error:
            report_exit(error)
            raise

    return reporting


def read_channel(lines: list[bytes]) -> tuple[Path | None, ExitReason | None]:
    """Read whole lines of the channel: the last run folder and the last words; None for what was not said."""
    folder = None
    reason = None
    for line in lines:
        try:
            message = json.loads(line)
        except ValueError:
            continue
        facts = cast("dict[str, Any]", message) if isinstance(message, dict) else {}
        if isinstance(facts.get("folder"), str):
            folder = Path(facts["folder"])
        cause = as_cause(facts.get("cause"))
        if cause is not None:
            reason = ExitReason(cause=cause, detail=str(facts.get("detail", "")), missing=facts.get("missing") is True)
    return folder, reason
