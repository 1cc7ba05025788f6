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

from fieldwatch.monitor.causes import Death, as_cause, last_words

Given = ParamSpec("Given")
Result = TypeVar("Result")

VARIABLE: Final = "FIELDWATCH_SUPERVISED"
_LONGEST: Final = 4000
"""Characters of a message that are passed on: a pipe takes 64 KiB before its writer has to wait."""


@dataclass(frozen=True, kw_only=True)
class Supervised:
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

    def say_folder(self, folder: Path) -> None:
        """Tell the supervisor which run this is; without one that listens, nothing happens."""
        self._say(folder=str(folder.absolute()))

    def say_end(self, words: "LastWords") -> None:
        """Tell the supervisor why this process ends; without one that listens, nothing happens."""
        self._say(cause=words.cause, detail=words.detail[:_LONGEST], missing=words.missing)

    def _say(self, **facts: Any) -> None:
        with suppress(OSError):
            os.write(
                self.channel, json.dumps(facts).encode() + b"\n"
            )  # any path: JSON by json escapes what is no UTF-8


@dataclass(frozen=True, kw_only=True)
class LastWords(Death):
    """Why a process says that it ends.

    Attributes:
        missing: whether a file or folder was not there.
    """

    missing: bool = False


def supervised() -> Supervised | None:
    """How this process was started, if by a supervisor: its own child, not a grandchild that inherited the variable."""
    told = os.environ.get(VARIABLE)
    if not told:
        return None
    try:
        found = Supervised(**orjson.loads(told))
    except (orjson.JSONDecodeError, TypeError):
        return None
    return found if found.supervisor == os.getppid() else None


def say_end(error: BaseException, *, refused: bool = False) -> None:
    """Tell the supervisor, if there is one, what ends this process.

    Args:
        error: the exception that ends it.
        refused: whether it is an error of the user's input whatever its class: the command line said so.
    """
    parent = supervised()
    if parent is not None:
        death, missing = last_words(error, refused=refused)
        parent.say_end(LastWords(cause=death.cause, detail=death.detail, missing=missing))


def says_why_it_fails(method: Callable[Given, Result]) -> Callable[Given, Result]:
    """Have a method tell the supervisor what it raises: before a run has its black box nothing else would keep that."""

    @functools.wraps(method)
    def told(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        try:
            return method(*args, **kwargs)
        except BaseException as error:
            say_end(error)
            raise

    return told


def read_channel(lines: list[bytes]) -> tuple[Path | None, LastWords | None]:
    """Read whole lines of the channel: the last run folder and the last words; None for what was not said."""
    folder = None
    words = None
    for line in lines:
        try:
            said = json.loads(line)
        except ValueError:
            continue
        told = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
        if isinstance(told.get("folder"), str):
            folder = Path(told["folder"])
        cause = as_cause(told.get("cause"))
        if cause is not None:
            words = LastWords(cause=cause, detail=str(told.get("detail", "")), missing=told.get("missing") is True)
    return folder, words
