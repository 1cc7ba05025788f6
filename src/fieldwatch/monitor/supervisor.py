"""A parent that starts a training, watches its signs of life, names what killed it, and starts it again."""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, Self, final

import orjson
import psutil

from fieldwatch.monitor.black_box import Heartbeat, read_black_box
from fieldwatch.monitor.causes import STOPS, Death, cause_of_beat, cause_of_status, killed_for_memory, oom_kills
from fieldwatch.monitor.post_mortem import (
    CRASH,
    last_checkpoint,
    last_stacks,
    read_post_mortems,
    resume_command,
    write_post_mortem,
)
from fieldwatch.monitor.processes import told
from fieldwatch.monitor.supervised import Supervised

GAVE_UP: Final = 4
"""Exit code when the training died again and again without a new step."""
ATTEMPTS: Final = "attempts.jsonl"
GRACE: Final = 5.0
"""Seconds past its own timeout that a process has to write its stacks and end itself."""
_LOOK: Final = 0.1
_PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None, use_errno=True)

Command = Callable[[Path | None], Sequence[str]]
"""The command line of a start: the first one, given None, or one that goes on with the run of that folder."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start of a training, when it is over.

    Attributes:
        attempt: which one, from 1.
        pid: its process.
        started: ISO 8601 in UTC.
        seconds: how long it lived.
        status: its exit code, or minus the signal that ended it.
        cause: one word; see `Cause`.
        detail: one sentence.
        step: the step it died in; None if it never came to one.
        last_checkpoint: the step to go on from; None if there is none.
        post_mortem: its crash folder within the run folder; None where there is none.
    """

    attempt: int
    pid: int
    started: str
    seconds: float
    status: int
    cause: str
    detail: str
    step: int | None
    last_checkpoint: int | None
    post_mortem: str | None


@final
class Supervisor:
    """Starts a training and, after a death that is not its own decision, starts it again from the last checkpoint.

    A run that diverged, that was interrupted, or whose input is bad is not started again. SIGINT, SIGTERM, SIGHUP and
    SIGUSR1 are passed on; the training is a process group of its own, so that ctrl-C reaches it once. If the supervisor
    is killed, the training gets SIGTERM: it finishes its step, saves and ends.

    Args:
        command: what to start.
        tell: gets one line about every death, every restart and the end.
        restarts: after so many in a row without a new step it gives up.
        pause: seconds before the first restart that follows no new step; doubled for each further one.
        environment: what the training gets besides this process's own.
    """

    def __init__(
        self,
        command: Command,
        *,
        tell: Callable[[str], None],
        restarts: int = 3,
        pause: float = 1.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command, self._tell, self._restarts, self._pause = command, tell, restarts, pause
        self._environment = environment or {}
        self.attempts: list[Start] = []
        self.folder: Path | None = None
        self._child: Child | None = None
        self._stop: int = 0
        self._patience = 1.0

    def run(self) -> int:
        """Train to the end.

        Returns:
            The exit code of the last start; 128 + the signal if it was stopped; 4 after giving up.
        """
        barren, furthest = 0, -2
        with Forwarding(self._forward):
            while True:
                status, death = self._attempt()
                last = self.attempts[-1]
                # a start that never came to a run is repeated only if a signal ended it: all else would come again
                if not death.retried or self._stop or (self.folder is None and last.status >= 0):
                    return self._end(status, death)
                reached = max(last.step if last.step is not None else -1, last.last_checkpoint or -1)
                barren = 0 if reached > furthest else barren + 1
                furthest = max(furthest, reached)
                if barren >= self._restarts:
                    return self._give_up()
                self._patience *= 2.0 if death.cause in ("hang", "stopped") else 1.0
                self._tell(f"{_told(last)}; starting again from {_from(last)}")
                if not self._wait(self._pause * 2 ** (barren - 1) if barren else 0.0):
                    return 128 + self._stop

    def _attempt(self) -> tuple[int, Death]:
        number = len(self.attempts) + 1
        before = self.attempts[-1] if self.attempts else None
        child = Child(self._command(self.folder), number, before, self._patience, self._environment)
        self._child = child
        status = child.wait()
        self._child = None
        self.folder = child.folder or self.folder
        death = child.name_death(status, self._stop)
        self.attempts.append(child.attempt(number, status, death))
        self._record()
        return status, death

    def _record(self) -> None:
        """Write the attempts into the run folder, once one of them went wrong."""
        if self.folder is None or all(attempt.cause == "finished" for attempt in self.attempts):
            return
        lines = [orjson.dumps(asdict(attempt)) + b"\n" for attempt in self.attempts]
        with suppress(OSError):  # a full disk: what is printed says it too
            (self.folder / CRASH).mkdir(exist_ok=True)
            (self.folder / CRASH / ATTEMPTS).write_bytes(b"".join(lines))

    def _end(self, status: int, death: Death) -> int:
        if status < 0 and death.cause == "interrupted":
            return 128 - status
        if death.cause not in ("finished", "interrupted", "bad-input"):
            self._tell(f"{_told(self.attempts[-1])}; it is not started again")
        elif len(self.attempts) > 1:
            self._tell(f"attempt {len(self.attempts)}: {death.detail}")
        return status if status >= 0 else GAVE_UP

    def _give_up(self) -> int:
        last = self.attempts[-1]
        self._tell(f"{_told(last)}; given up: {self._restarts} restarts brought no new step")
        for attempt in self.attempts:
            self._tell(f"  {_told(attempt)}" + (f": {attempt.post_mortem}" if attempt.post_mortem else ""))
        if self.folder is not None:
            self._tell(f"the attempts are in {self.folder / CRASH / ATTEMPTS}")
            self._tell(f"after mending the cause: {resume_command(self.folder)}")
        return GAVE_UP

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        if number in STOPS:
            self._stop = number
        if self._child is not None:
            self._child.send(number)

    def _wait(self, seconds: float) -> bool:
        """Wait before a restart; False if a signal came meanwhile."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._stop:
            time.sleep(min(_LOOK, max(until - time.monotonic(), 0.0)))
        return not self._stop


@final
class Child:
    """One start of a training, while it lives.

    Args:
        command: its command line.
        number: which start it is, from 1.
        before: the one before it.
        patience: how many times longer than usual everything may take.
        environment: what it gets besides this process's own.
    """

    def __init__(
        self,
        command: Sequence[str],
        number: int,
        before: Start | None,
        patience: float,
        environment: Mapping[str, str],
    ) -> None:
        self._channel, theirs = os.pipe()
        os.set_blocking(self._channel, False)
        cause = f"{before.cause}: {before.detail}" if before else ""
        me = os.getpid()
        said = Supervised(supervisor=me, attempt=number, cause=cause, patience=patience, channel=theirs)
        self._oom_before, self._began = oom_kills(), time.monotonic()
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._process = subprocess.Popen(  # noqa: S603  the user's own command line
            list(command),
            env={**os.environ, **environment, **said.environment()},
            pass_fds=(theirs,),
            process_group=0,
            preexec_fn=lambda: _end_with(me),  # noqa: PLW1509  this process has one thread, and nobody else can do it
        )
        os.close(theirs)
        self.folder: Path | None = None
        self._told = b""
        self._idle, self._last_beat, self._looked = 0.0, 0.0, time.monotonic()
        self._ended_for = ""

    def send(self, number: int) -> None:
        """Pass a signal on to the training itself, not to its workers."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def wait(self) -> int:
        """Wait for its end, which comes by force if it shows no sign of life; its workers end with it.

        Returns:
            Its exit code, or minus the signal that ended it.
        """
        while True:
            try:
                status = self._process.wait(_LOOK)
            except subprocess.TimeoutExpired:
                self._listen()
                self._look()
                continue
            self._listen()
            os.close(self._channel)
            with suppress(ProcessLookupError, PermissionError):  # a worker that is left would keep the GPU's memory
                os.killpg(self._process.pid, signal.SIGKILL)
            return status

    def beat(self) -> Heartbeat | None:
        """Its black box; None while it has none."""
        beat = read_black_box(self.folder) if self.folder is not None else None
        return beat if beat is not None and beat.pid == self._process.pid else None

    def name_death(self, status: int, stop: int) -> Death:
        """Name what ended it, from the exit status, its black box, its stacks and what the system counts."""
        if self._ended_for == "stopped":
            return Death(cause="stopped", detail="stopped by SIGSTOP or SIGTSTP, and not continued within its timeout")
        if self._ended_for:
            return Death(cause="hang", detail=self._ended_for)
        if status < 0:
            return self._name_signal(-status, stop)
        beat = self.beat()
        if beat is None:
            return cause_of_status(status)
        if beat.ending == "running" and status == 1 and "Timeout (" in last_stacks(self.folder or Path(), beat.pid):
            return Death(cause="hang", detail=_silence(time.monotonic() - beat.beat, beat))
        return cause_of_beat(beat, status)

    def attempt(self, number: int, status: int, death: Death) -> Start:
        """What there is to say about it now that it is over; a crash folder is written if it could not do so itself."""
        beat, folder = self.beat(), self.folder
        place: str | None = None
        if beat is not None and folder is not None and death.cause != "finished":
            place = self._place(folder, beat, death)
        return Start(
            attempt=number,
            pid=self._process.pid,
            started=self._started,
            seconds=round(time.monotonic() - self._began, 3),
            status=status,
            cause=death.cause,
            detail=death.detail,
            step=beat.step if beat is not None and beat.step >= 0 else None,
            last_checkpoint=last_checkpoint(folder, beat) if folder is not None else None,
            post_mortem=place,
        )

    def _place(self, folder: Path, beat: Heartbeat, death: Death) -> str | None:
        if beat.ending == "running":
            with suppress(OSError):  # a full disk
                return str(write_post_mortem(folder, death, beat).relative_to(folder))
        mine = [found["place"] for found in read_post_mortems(folder) if found.get("pid") == beat.pid]
        return mine[-1] if mine else None

    def _name_signal(self, number: int, stop: int) -> Death:
        if number == signal.SIGKILL and killed_for_memory(self._process.pid, self._oom_before):
            return Death(cause="oom-killer", detail="killed by the kernel's out-of-memory killer (SIGKILL)")
        if stop and number == signal.SIGKILL:
            return Death(cause="interrupted", detail="killed while it was being stopped")
        return cause_of_status(-number)

    def _listen(self) -> None:
        with suppress(BlockingIOError):
            self._told += os.read(self._channel, 65536)
        *lines, self._told = self._told.split(b"\n")
        if lines:
            self.folder = Path(os.fsdecode(lines[-1]))

    def _look(self) -> None:
        """End it if it has shown no sign of life for too long, by time in which this process ran itself."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, 10 * _LOOK), now
        beat = self.beat()
        if beat is None:
            return
        self._idle = self._idle + passed if beat.beat == self._last_beat else 0.0
        self._last_beat = beat.beat
        if self._idle <= beat.timeout + GRACE:
            return
        asleep = told(psutil.Process(self._process.pid).status) == psutil.STATUS_STOPPED
        self._ended_for = "stopped" if asleep else _silence(self._idle, beat)
        if beat.ending == "running":
            self.send(signal.SIGUSR2)  # the stacks; it listens as long as its black box says that it runs
            self.send(signal.SIGCONT)
            time.sleep(10 * _LOOK)
        self.send(signal.SIGKILL)


class Forwarding:
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


def _end_with(parent: int) -> None:
    """In the child, before its program begins: if the parent dies, it gets SIGTERM."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGTERM)


def _silence(seconds: float, beat: Heartbeat) -> str:
    return f"no sign of life for {seconds:.0f} s in step {beat.step} ({beat.phase})"


def _told(attempt: Start) -> str:
    where = "before its first step" if attempt.step is None else f"in step {attempt.step}"
    return f"attempt {attempt.attempt} died {where}: {attempt.cause}: {attempt.detail}"


def _from(attempt: Start) -> str:
    return "the beginning" if attempt.last_checkpoint is None else f"step {attempt.last_checkpoint}"
