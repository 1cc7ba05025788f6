"""The training process under a supervisor, and the summary of each of its starts."""

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

from fieldwatch.base import duration, end_with_parent
from fieldwatch.monitor.black_box import Heartbeat, read_black_box
from fieldwatch.monitor.causes import Death, cause_of_beat, cause_of_status, killed_for_memory, oom_kills
from fieldwatch.monitor.post_mortem import last_checkpoint, last_stacks, read_post_mortems, write_post_mortem
from fieldwatch.monitor.processes import ask_psutil
from fieldwatch.monitor.supervised import ExitReason, SupervisorLink, read_channel

GRACE: Final = 5.0
"""Seconds after its timeout that a process has to write its stack traces and end itself."""
POLL_SECONDS: Final = 0.1
"""Interval at which the process is polled, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Summary of one start of a training.

    Attributes:
        attempt: number of the start, from 1.
        pid: process ID.
        started: start time, ISO 8601 in UTC.
        seconds: duration in seconds.
        status: exit code, or minus the number of the signal that ended the process.
        cause: cause of the end, one word; see `Cause`.
        detail: description of the end, one sentence.
        step: step in which the process ended; None if it reached none.
        last_checkpoint: step to resume from; None if there is none.
        post_mortem: crash folder, relative to the run folder; None if there is none.
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
    """A running training process.

    Args:
        command: command line.
        number: number of the start, from 1.
        before: summary of the previous start; None for the first.
        patience: factor by which all timeouts are extended.
        environment: environment variables in addition to those of this process.
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
        # Reads must not block the loop that checks the heartbeat.
        os.set_blocking(self._channel, False)
        cause = f"{before.cause}: {before.detail}" if before else ""
        me = os.getpid()
        link = SupervisorLink(supervisor=me, attempt=number, cause=cause, patience=patience, channel=write_end)
        # Taken before the start: only an increase can concern the child.
        self._oom_before = oom_kills()
        self._began = time.monotonic()
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._process = subprocess.Popen(  # noqa: S603  the user's own command line
            list(command),
            env={**os.environ, **environment, **link.environment()},
            pass_fds=(write_end,),
            # A separate process group, so that ctrl-C reaches only the supervisor, which forwards it once.
            process_group=0,
            preexec_fn=lambda: end_with_parent(me),  # noqa: PLW1509  safe because this process has only one thread
        )
        # The child holds the only write end of the pipe, so the pipe closes when it dies.
        os.close(write_end)
        self.folder: Path | None = None
        self.reason: ExitReason | None = None
        self._unread = b""
        self._idle = 0.0
        self._last_beat = 0.0
        self._last_check = time.monotonic()
        self._ended_for = ""

    def send(self, number: int) -> None:
        """Send a signal to the training process, but not to its workers."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def wait(self) -> int:
        """Wait for the process to end, and kill it if it hangs; its workers are killed as well.

        Returns:
            The exit code, or minus the number of the signal that ended the process.
        """
        while True:
            try:
                # Polled, so that the channel and the heartbeat are checked in between.
                status = self._process.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                self._read_messages()
                self._end_if_hung()
                continue
            self._read_messages()
            os.close(self._channel)
            # A surviving worker would keep the GPU's memory.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            return status

    def beat(self) -> Heartbeat | None:
        """Return the black box of the process; None if it has none yet."""
        # The file may still be that of an earlier process.
        beat = read_black_box(self.folder) if self.folder is not None else None
        return beat if beat is not None and beat.pid == self._process.pid else None

    def name_death(self, status: int, stop: int) -> Death:
        """Return why the process ended, from its exit status, black box, stack traces and the kernel's counters.

        Args:
            status: exit code, or minus the number of the signal.
            stop: number of the stop signal that the supervisor received; 0 for none.
        """
        if self._ended_for == "stopped":
            return Death(cause="stopped", detail="stopped by SIGSTOP or SIGTSTP, and not continued within its timeout")
        if self._ended_for:
            return Death(cause="hang", detail=self._ended_for)
        # A signal takes precedence over a reported reason: the process may have been killed during an orderly end.
        if status < 0:
            return self._name_signal(-status, stop)
        return self.reason or self._name_status(status)

    def _name_status(self, status: int) -> Death:
        """Return why a process ended that reported nothing through the channel."""
        beat = self.beat()
        if beat is None:
            return cause_of_status(status)
        # The watchdog writes the stacks of all threads and then exits with 1.
        if beat.ending == "running" and status == 1 and "Timeout (" in last_stacks(self.folder or Path(), beat.pid):
            return Death(cause="hang", detail=_silence(time.monotonic() - beat.beat, beat))
        return cause_of_beat(beat, status)

    def summarize(self, number: int, status: int, death: Death) -> Attempt:
        """Return the summary of the ended process; writes a crash folder if the process could not do so itself."""
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
            # The disk may be full.
            with suppress(OSError):
                return str(write_post_mortem(folder, death, beat).relative_to(folder))
        folders = [report["place"] for report in read_post_mortems(folder) if report.get("pid") == beat.pid]
        return folders[-1] if folders else None

    def _name_signal(self, number: int, stop: int) -> Death:
        if number == signal.SIGKILL and killed_for_memory(self._process.pid, self._oom_before):
            return Death(cause="oom-killer", detail="killed by the kernel's out-of-memory killer (SIGKILL)")
        # The user or a job scheduler killed it after its grace period.
        if stop and number == signal.SIGKILL:
            return Death(cause="interrupted", detail="killed while it was being stopped")
        return cause_of_status(-number)

    def _read_messages(self) -> None:
        """Read the messages of the process from the channel."""
        # The pipe does not block: BlockingIOError means that there is nothing more to read for now.
        with suppress(BlockingIOError):
            while new := os.read(self._channel, 65536):
                self._unread += new
        # The last piece may be an incomplete line, which is kept until the rest arrives.
        *lines, self._unread = self._unread.split(b"\n")
        folder, reason = read_channel(lines)
        self.folder = folder or self.folder
        self.reason = reason or self.reason

    def _end_if_hung(self) -> None:
        """Kill the process if its last heartbeat is too old, counting only time in which this process ran itself."""
        now = time.monotonic()
        # Bounded, because after a suspend of the machine the child was suspended as well and did not hang.
        passed = min(now - self._last_check, 10 * POLL_SECONDS)
        self._last_check = now
        beat = self.beat()
        if beat is None:
            return
        # Any new heartbeat resets the count.
        self._idle = self._idle + passed if beat.beat == self._last_beat else 0.0
        self._last_beat = beat.beat
        # The watchdog of the process acts first; this is for a process that can no longer run Python code.
        if self._idle <= beat.timeout + GRACE:
            return
        asleep = ask_psutil(psutil.Process(self._process.pid).status) == psutil.STATUS_STOPPED
        self._ended_for = "stopped" if asleep else _silence(self._idle, beat)
        if beat.ending == "running":
            # SIGUSR2 makes the process write its stack traces, SIGCONT wakes it if it is stopped.
            self.send(signal.SIGUSR2)
            self.send(signal.SIGCONT)
            time.sleep(10 * POLL_SECONDS)
        self.send(signal.SIGKILL)


def _silence(seconds: float, beat: Heartbeat) -> str:
    return f"no heartbeat for {duration(seconds)} in step {beat.step} ({beat.phase})"
