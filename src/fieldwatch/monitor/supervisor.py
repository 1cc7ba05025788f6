"""A parent process that starts a training, monitors its heartbeat, diagnoses its death and restarts it."""

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, Self, final

import orjson

from fieldwatch.base import InputError, duration, output_path, write_file
from fieldwatch.monitor.causes import STOPS, Death
from fieldwatch.monitor.child import POLL_SECONDS, Attempt, TrainingProcess
from fieldwatch.monitor.input_paths import InputPaths
from fieldwatch.monitor.post_mortem import CRASH, resume_command
from fieldwatch.monitor.restarts import PER_HOUR, RestartLimiter
from fieldwatch.monitor.run_state import state_of

GAVE_UP: Final = 4
"""Exit code if the training died repeatedly and is not restarted any more."""
ATTEMPTS: Final = "attempts.jsonl"
REPORT: Final = "given_up.json"

MakeCommand = Callable[[Path | None], Sequence[str]]
"""Returns the command line of a start: of the first one if given None, else one that resumes the run in the folder."""


@final
class Supervisor:
    """Starts a training, and restarts it from the last checkpoint after an unexpected death.

    A run that diverged, was interrupted, or whose input was refused is not restarted. Causes that pass by themselves (a
    full disk, an input that has disappeared, memory or a GPU in use by another process) are waited for. Restarts are
    limited, and the pause before them grows, see :class:`RestartLimiter`. SIGINT, SIGTERM, SIGHUP and SIGUSR1 are
    forwarded; the training has a separate process group, so that ctrl-C reaches it once. If the supervisor is killed,
    the training receives SIGTERM: it finishes its step, saves and ends.

    Args:
        command: function that returns the command line.
        announce: function that receives one line about every death, every restart and the end.
        restarts: maximum number of consecutive restarts without a new step; causes that pass do not count.
        per_hour: maximum number of restarts within an hour, even if each makes progress.
        pause: seconds before the first restart; doubled for each further one within an hour, up to a minute.
        environment: environment variables of the training, in addition to those of this process.
    """

    def __init__(  # noqa: PLR0913  each is one decision about restarts
        self,
        command: MakeCommand,
        *,
        announce: Callable[[str], None],
        restarts: int = 3,
        per_hour: int = PER_HOUR,
        pause: float = 1.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = command
        self._announce = announce
        self._restarts = RestartLimiter(in_a_row=restarts, per_hour=per_hour, pause=pause)
        self._paths: InputPaths | None = None
        self._gave_reason = False
        self._environment = environment or {}
        self.attempts: list[Attempt] = []
        self.folder: Path | None = None
        self._child: TrainingProcess | None = None
        self._stop: int = 0
        self._patience = 1.0

    def run(self) -> int:
        """Run the training until it ends.

        Returns:
            The exit code of the last start; 128 + the signal if it was stopped; 4 if the restarts are exhausted.
        """
        # Below -1, the value of an attempt that reached no step, so that the first death counts as progress.
        furthest = -2
        # Installed around all starts: a signal during a pause ends the waiting.
        with SignalForwarding(self._forward):
            while True:
                status, death = self._attempt()
                last = self.attempts[-1]
                if self._stop or not self._may_pass(status, death):
                    return self._end(status, death)
                # A new checkpoint counts as progress, too.
                reached = max(last.step if last.step is not None else -1, last.last_checkpoint or -1)
                passes = death.passes(at_start=last.step is None)
                why_not = self._restarts.record_death(progress=reached > furthest, passes=passes)
                furthest = max(furthest, reached)
                if why_not:
                    return self._give_up(why_not)
                # The hang may have been a slow machine: extend all timeouts.
                self._patience *= 2.0 if death.cause in ("hang", "stopped") else 1.0
                pause = self._restarts.next_pause()
                again = f"restarting from {_restart_point(last)} in {duration(pause)}"
                count = f"restart {self._restarts.recent} of at most {self._restarts.per_hour} within an hour"
                self._announce(f"{_describe(last)}; {again} ({count})")
                if not self._wait(pause):
                    return 128 + self._stop

    def _may_pass(self, status: int, death: Death) -> bool:
        """Return whether a restart may help."""
        if not death.retried:
            return False
        # Before there is a run folder, only causes outside the training are worth a restart: others would recur.
        early = death.passes(at_start=True) or (death.cause == "left" and self._gave_reason)
        return self.folder is not None or status < 0 or early

    def _attempt(self) -> tuple[int, Death]:
        number = len(self.attempts) + 1
        before = self.attempts[-1] if self.attempts else None
        command = self._command(self.folder)
        # Created once, from the first command, because paths that existed then may be missing later.
        self._paths = paths = self._paths or InputPaths(command)
        paths.refresh()
        child = TrainingProcess(command, number, before, self._patience, self._environment)
        self._child = child
        status = child.wait()
        self._child = None
        self.folder = child.folder or self.folder
        if self.folder is not None:
            paths.add_config(self.folder)
        self._gave_reason = child.reason is not None
        death = paths.reclassify(child.name_death(status, self._stop))
        self.attempts.append(child.summarize(number, status, death))
        self._record()
        return status, death

    def _record(self) -> None:
        """Write the attempts into the run folder, unless all of them finished."""
        if self.folder is None or all(attempt.cause == "finished" for attempt in self.attempts):
            return
        lines = [orjson.dumps(asdict(attempt)) + b"\n" for attempt in self.attempts]
        # The disk may be full, or the path a link; the attempts are also printed.
        with suppress(OSError, InputError):
            write_file(output_path(self.folder, CRASH, ATTEMPTS), b"".join(lines))

    def _end(self, status: int, death: Death) -> int:
        # Shell convention for a process that was ended by a signal.
        if status < 0 and death.cause == "interrupted":
            return 128 - status
        if death.cause not in ("finished", "interrupted", "bad-input"):
            self._announce(f"{_describe(self.attempts[-1])}; it is not restarted")
        elif len(self.attempts) > 1:
            self._announce(f"attempt {len(self.attempts)}: {death.detail}")
        return status if status >= 0 else GAVE_UP

    def _give_up(self, why: str) -> int:
        last = self.attempts[-1]
        self._announce(f"{_describe(last)}; given up: {why}")
        for attempt in self.attempts:
            self._announce(f"  {_describe(attempt)}" + (f": {attempt.post_mortem}" if attempt.post_mortem else ""))
        if self.folder is not None:
            self._write_report(self.folder, why)
            files = self.folder / CRASH / ATTEMPTS, self.folder / CRASH / REPORT
            self._announce(f"the attempts are in {files[0]}, the report is in {files[1]}")
            self._announce(f"state of the run: {state_of(self.folder)}")
            self._announce(f"to resume after fixing the cause: {resume_command(self.folder)}")
        return GAVE_UP

    def _write_report(self, folder: Path, why: str) -> None:
        """Write ``crash/given_up.json``."""
        report: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "why": why,
            "state": state_of(folder).word,
            "attempts": [asdict(attempt) for attempt in self.attempts],
            "resume": resume_command(folder),
        }
        # The disk may be full, or the path a link; the same information is printed.
        with suppress(OSError, InputError):
            write_file(output_path(folder, CRASH, REPORT), orjson.dumps(report, option=orjson.OPT_INDENT_2))

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        if number in STOPS:
            self._stop = number
        # None between two starts.
        if self._child is not None:
            self._child.send(number)

    def _wait(self, seconds: float) -> bool:
        """Wait before a restart; return False if a stop signal arrived meanwhile."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._stop:
            time.sleep(min(POLL_SECONDS, max(until - time.monotonic(), 0.0)))
        return not self._stop


class SignalForwarding:
    """A context manager that installs a handler for stop signals, and restores the previous handlers on exit.

    Args:
        handler: handler of the signals.
    """

    def __init__(self, handler: Callable[[int, FrameType | None], None]) -> None:
        self._handler = handler

    def __enter__(self) -> Self:
        """Install the handler."""
        self._before = {number: signal.signal(number, self._handler) for number in STOPS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Restore the previous handlers."""
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _describe(attempt: Attempt) -> str:
    where = "before its first step" if attempt.step is None else f"in step {attempt.step}"
    return f"attempt {attempt.attempt} died {where}: {attempt.cause}: {attempt.detail}"


def _restart_point(attempt: Attempt) -> str:
    return "the beginning" if attempt.last_checkpoint is None else f"step {attempt.last_checkpoint}"
