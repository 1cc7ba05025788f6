"""A parent that starts a training, watches its signs of life, names what killed it, and starts it again."""

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

from fieldwatch.base import InputError, output_path, write_file
from fieldwatch.monitor.causes import STOPS, Death
from fieldwatch.monitor.child import POLL_SECONDS, Attempt, TrainingProcess
from fieldwatch.monitor.input_paths import InputPaths
from fieldwatch.monitor.post_mortem import CRASH, resume_command
from fieldwatch.monitor.restarts import RestartLimiter
from fieldwatch.monitor.run_state import state_of

PER_HOUR: Final = 10
"""Restarts within an hour after which a training is given up, unless the user says otherwise."""
GAVE_UP: Final = 4
"""Exit code when the training died again and again."""
ATTEMPTS: Final = "attempts.jsonl"
REPORT: Final = "given_up.json"

MakeCommand = Callable[[Path | None], Sequence[str]]
"""The command line of a start: the first one, given None, or one that goes on with the run of that folder."""


@final
class Supervisor:
    """Starts a training and, after a death that is not its own decision, starts it again from the last checkpoint.

    A run that diverged, that was interrupted, or whose input was refused is not started again. A cause that passes (a
    full disk, an input that is not mounted, memory or a GPU that another process has) is waited for. Restarts are
    limited, and the pause before them grows, see :class:`RestartLimiter`. SIGINT, SIGTERM, SIGHUP and SIGUSR1 are
    passed on; the training is a process group of its own, so that ctrl-C reaches it once. If the supervisor is killed,
    the training gets SIGTERM: it finishes its step, saves and ends.

    Args:
        command: what to start.
        announce: gets one line about every death, every restart and the end.
        restarts: after so many in a row without a new step it gives up; causes that pass do not count.
        per_hour: after so many within an hour it gives up, even if each got further.
        pause: seconds before the first restart; doubled for each further one within an hour, up to a minute.
        environment: what the training gets besides this process's own.
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
        """Train to the end.

        Returns:
            The exit code of the last start; 128 + the signal if it was stopped; 4 after giving up.
        """
        # Below -1, the value of an attempt that reached no step: the first death then counts as progress.
        furthest = -2
        with SignalForwarding(self._forward):
            while True:
                status, death = self._attempt()
                last = self.attempts[-1]
                if self._stop or not self._may_pass(status, death):
                    return self._end(status, death)
                reached = max(last.step if last.step is not None else -1, last.last_checkpoint or -1)
                passes = death.passes(at_start=last.step is None)
                why_not = self._restarts.record_death(progress=reached > furthest, passes=passes)
                furthest = max(furthest, reached)
                if why_not:
                    return self._give_up(why_not)
                # The hang may have been a slow machine: everything may take longer next time.
                self._patience *= 2.0 if death.cause in ("hang", "stopped") else 1.0
                pause = self._restarts.next_pause()
                again = f"starting again from {_restart_point(last)} in {pause:.3g} s"
                count = f"restart {self._restarts.recent} of at most {self._restarts.per_hour} within an hour"
                advice = "; press ctrl-C if the path is wrong" if death.cause == "data" else ""
                self._announce(f"{_describe(last)}; {again} ({count}){advice}")
                if not self._wait(pause):
                    return 128 + self._stop

    def _may_pass(self, status: int, death: Death) -> bool:
        """Whether starting anew may help; before there is a run, most of what went wrong would do so again."""
        if not death.retried:
            return False
        # Before there is a run folder only causes outside the training are worth another start.
        early = death.passes(at_start=True) or (death.cause == "left" and self._gave_reason)
        return self.folder is not None or status < 0 or early

    def _attempt(self) -> tuple[int, Death]:
        number = len(self.attempts) + 1
        before = self.attempts[-1] if self.attempts else None
        command = self._command(self.folder)
        # Made once, from the first command: the paths that were there then may be missing later.
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
        """Write the attempts into the run folder, once one of them went wrong."""
        if self.folder is None or all(attempt.cause == "finished" for attempt in self.attempts):
            return
        lines = [orjson.dumps(asdict(attempt)) + b"\n" for attempt in self.attempts]
        with suppress(OSError, InputError):  # a full disk, or a link: what is printed says it too
            write_file(output_path(self.folder, CRASH, ATTEMPTS), b"".join(lines))

    def _end(self, status: int, death: Death) -> int:
        if status < 0 and death.cause == "interrupted":
            return 128 - status
        if death.cause not in ("finished", "interrupted", "bad-input"):
            self._announce(f"{_describe(self.attempts[-1])}; it is not started again")
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
            self._announce(f"the attempts are in {files[0]}, the report is {files[1]}")
            self._announce(f"the run stands: {state_of(self.folder)}")
            self._announce(f"after mending the cause: {resume_command(self.folder)}")
        return GAVE_UP

    def _write_report(self, folder: Path, why: str) -> None:
        """Write ``crash/given_up.json``; a disk that takes nothing keeps what was printed."""
        report: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "why": why,
            "state": state_of(folder).word,
            "attempts": [asdict(attempt) for attempt in self.attempts],
            "resume": resume_command(folder),
        }
        with suppress(OSError, InputError):  # a full disk, or a link
            write_file(output_path(folder, CRASH, REPORT), orjson.dumps(report, option=orjson.OPT_INDENT_2))

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        if number in STOPS:
            self._stop = number
        if self._child is not None:
            self._child.send(number)

    def _wait(self, seconds: float) -> bool:
        """Wait before a restart; False if a signal came meanwhile."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._stop:
            time.sleep(min(POLL_SECONDS, max(until - time.monotonic(), 0.0)))
        return not self._stop


class SignalForwarding:
    """A context manager under which signals go to somebody else; the handlers from before return on exit.

    Args:
        handler: gets them.
    """

    def __init__(self, handler: Callable[[int, FrameType | None], None]) -> None:
        self._handler = handler

    def __enter__(self) -> Self:
        """Begin."""
        self._before = {number: signal.signal(number, self._handler) for number in STOPS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Put the handlers back."""
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _describe(attempt: Attempt) -> str:
    where = "before its first step" if attempt.step is None else f"in step {attempt.step}"
    return f"attempt {attempt.attempt} died {where}: {attempt.cause}: {attempt.detail}"


def _restart_point(attempt: Attempt) -> str:
    return "the beginning" if attempt.last_checkpoint is None else f"step {attempt.last_checkpoint}"
