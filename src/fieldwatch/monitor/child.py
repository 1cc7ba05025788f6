"""One start of a training under a supervisor, while it lives."""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, final

import psutil

from fieldwatch.monitor.black_box import Heartbeat, read_black_box
from fieldwatch.monitor.causes import Death, cause_of_beat, cause_of_status, killed_for_memory, oom_kills
from fieldwatch.monitor.post_mortem import last_checkpoint, last_stacks, read_post_mortems, write_post_mortem
from fieldwatch.monitor.processes import ask_psutil
from fieldwatch.monitor.supervised import ExitReason, SupervisorLink, read_channel

GRACE: Final = 5.0
"""Seconds past its own timeout that a process has to write its stacks and end itself."""
POLL_SECONDS: Final = 0.1
"""Seconds between two looks at it."""
_PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, kw_only=True)
class Attempt:
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
class TrainingProcess:
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
        before: Attempt | None,
        patience: float,
        environment: Mapping[str, str],
    ) -> None:
        self._channel, write_end = os.pipe()
        os.set_blocking(self._channel, False)
        cause = f"{before.cause}: {before.detail}" if before else ""
        me = os.getpid()
        link = SupervisorLink(supervisor=me, attempt=number, cause=cause, patience=patience, channel=write_end)
        self._oom_before = oom_kills()
        self._began = time.monotonic()
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._process = subprocess.Popen(  # noqa: S603  the user's own command line
            list(command),
            env={**os.environ, **environment, **link.environment()},
            pass_fds=(write_end,),
            # A group of its own: ctrl-C reaches the supervisor alone, which passes it on once.
            process_group=0,
            preexec_fn=lambda: _end_with(me),  # noqa: PLW1509  this process has one thread, and nobody else can do it
        )
        # The child holds the only other end of the pipe, which so closes when it dies.
        os.close(write_end)
        self.folder: Path | None = None
        self.reason: ExitReason | None = None
        self._unread = b""
        self._idle = 0.0
        self._last_beat = 0.0
        self._last_check = time.monotonic()
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
                status = self._process.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                self._read_messages()
                self._end_if_hung()
                continue
            self._read_messages()
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
        # A signal outranks what the process said before: it may have been killed while it ended in order.
        if status < 0:
            return self._name_signal(-status, stop)
        return self.reason or self._name_status(status)

    def _name_status(self, status: int) -> Death:
        """Name the end of a process that said nothing through the channel."""
        beat = self.beat()
        if beat is None:
            return cause_of_status(status)
        # The watchdog writes the stacks of all threads and then exits with 1.
        if beat.ending == "running" and status == 1 and "Timeout (" in last_stacks(self.folder or Path(), beat.pid):
            return Death(cause="hang", detail=_silence(time.monotonic() - beat.beat, beat))
        return cause_of_beat(beat, status)

    def summarize(self, number: int, status: int, death: Death) -> Attempt:
        """What there is to say about it now that it is over; a crash folder is written if it could not do so itself."""
        beat = self.beat()
        folder = self.folder
        crash_folder: str | None = None
        if beat is not None and folder is not None and death.cause != "finished":
            crash_folder = self._crash_folder(folder, beat, death)
        return Attempt(
            attempt=number,
            pid=self._process.pid,
            started=self._started,
            seconds=round(time.monotonic() - self._began, 3),
            status=status,
            cause=death.cause,
            detail=death.detail,
            step=beat.step if beat is not None and beat.step >= 0 else None,
            last_checkpoint=last_checkpoint(folder, beat) if folder is not None else None,
            post_mortem=crash_folder,
        )

    def _crash_folder(self, folder: Path, beat: Heartbeat, death: Death) -> str | None:
        if beat.ending == "running":
            with suppress(OSError):  # a full disk
                return str(write_post_mortem(folder, death, beat).relative_to(folder))
        places = [report["place"] for report in read_post_mortems(folder) if report.get("pid") == beat.pid]
        return places[-1] if places else None

    def _name_signal(self, number: int, stop: int) -> Death:
        if number == signal.SIGKILL and killed_for_memory(self._process.pid, self._oom_before):
            return Death(cause="oom-killer", detail="killed by the kernel's out-of-memory killer (SIGKILL)")
        if stop and number == signal.SIGKILL:
            return Death(cause="interrupted", detail="killed while it was being stopped")
        return cause_of_status(-number)

    def _read_messages(self) -> None:
        """Take what the process wrote into the channel."""
        with suppress(BlockingIOError):  # nothing more for now
            while new := os.read(self._channel, 65536):
                self._unread += new
        # The last piece may be half a line: it waits for its rest.
        *lines, self._unread = self._unread.split(b"\n")
        folder, reason = read_channel(lines)
        self.folder = folder or self.folder
        self.reason = reason or self.reason

    def _end_if_hung(self) -> None:
        """End it if it has shown no sign of life for too long, by time in which this process ran itself."""
        now = time.monotonic()
        # Bounded: after a suspend of the machine the child has been asleep as well, and did not hang.
        passed = min(now - self._last_check, 10 * POLL_SECONDS)
        self._last_check = now
        beat = self.beat()
        if beat is None:
            return
        self._idle = self._idle + passed if beat.beat == self._last_beat else 0.0
        self._last_beat = beat.beat
        # Its own watchdog acts first; this is for a process that can no longer run Python.
        if self._idle <= beat.timeout + GRACE:
            return
        asleep = ask_psutil(psutil.Process(self._process.pid).status) == psutil.STATUS_STOPPED
        self._ended_for = "stopped" if asleep else _silence(self._idle, beat)
        if beat.ending == "running":
            self.send(signal.SIGUSR2)  # the stacks; it listens as long as its black box says that it runs
            self.send(signal.SIGCONT)
            time.sleep(10 * POLL_SECONDS)
        self.send(signal.SIGKILL)


def _end_with(parent: int) -> None:
    """In the child, before its program begins: if the parent dies, it gets SIGTERM."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # The parent may have died before prctl took effect.
    if os.getppid() != parent:
        os._exit(128 + signal.SIGTERM)


def _silence(seconds: float, beat: Heartbeat) -> str:
    return f"no sign of life for {seconds:.0f} s in step {beat.step} ({beat.phase})"
