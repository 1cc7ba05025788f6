"""Runs a ``fieldwatch`` command in a child process, for commands made of several others."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

import orjson

from fieldwatch.base import end_with_parent

_FORWARDED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """End of a command.

    Attributes:
        code: exit code; 128 + the signal if one ended the process.
        outcome: what the command printed with ``--json``; empty if it printed nothing.
        stopped_by: signal that this process received meanwhile and forwarded; 0 for none.
    """

    code: int
    outcome: dict[str, Any]
    stopped_by: int


def run_command(words: Sequence[str]) -> CommandResult:
    """Run a command until it ends; its progress and its messages go to this process's standard error.

    SIGINT, SIGTERM and SIGHUP are forwarded, so that the command can save. If this process is killed, the command
    receives SIGTERM.

    Args:
        words: words after ``fieldwatch``, with ``--json``.
    """
    me = os.getpid()
    with (
        subprocess.Popen(  # noqa: S603  our own program, no shell
            [sys.executable, "-m", "fieldwatch", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # A process group of its own, so that Ctrl-C reaches it once: forwarded by this process.
            process_group=0,
            preexec_fn=lambda: end_with_parent(me),  # noqa: PLW1509  safe because this process has only one thread
        ) as process,
        _forwarding_signals(process) as received,
    ):
        printed, _ = process.communicate()
    code = process.returncode
    return CommandResult(
        code=code if code >= 0 else 128 - code,
        outcome=_json_of(printed),
        stopped_by=received[0] if received else 0,
    )


@contextmanager
def _forwarding_signals(process: "subprocess.Popen[bytes]") -> Iterator[list[int]]:
    """Forward signals to a process; yields the list of those received."""
    received: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        process.send_signal(number)

    # A signal that is ignored, such as SIGHUP under nohup, stays ignored.
    handled = [number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, forward) for number in handled}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _json_of(printed: bytes) -> dict[str, Any]:
    """Return the JSON object that a command printed; empty if it ended before it printed one."""
    try:
        return orjson.loads(printed)
    except orjson.JSONDecodeError:
        return {}
