"""Full disk: report it, delay writes, and wait for free space."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, final, runtime_checkable

from fieldwatch.base import DiskFullError, duration, lacks_space
from fieldwatch.checkpoint import CheckpointError
from fieldwatch.record.disk import DISK_FREED, DISK_FULL, FullDiskPause, WriteBacklog

POLL_SECONDS: Final = 0.25
"""Seconds between two checks of a full disk while no row arrives."""
ROOM_PATIENCE: Final = 600.0
"""Seconds that a run waits for free space for a required save: the final one, or an explicitly requested one."""
_PAUSE: Final = 0.2

Answer = TypeVar("Answer")


@runtime_checkable
class StopAsked(Protocol):
    """Interface of an object that knows about pending signals, such as a run's :class:`StopPoint`."""

    @property
    def overdue(self) -> bool:
        """Whether a signal arrived, and its patience has expired."""
        ...


@final
class FullDiskReporter:
    """Reports when the disk becomes full, and when it has space again, with an event and a line on stderr.

    Args:
        folder: run folder.
        waiting: backlog of delayed writes.
        record: function that records an event; called on the writer thread.
    """

    def __init__(self, folder: Path, waiting: WriteBacklog, record: Callable[[dict[str, Any]], None]) -> None:
        self._folder = folder
        self._waiting = waiting
        self._record = record
        self._reported: tuple[FullDiskPause, int] | None = None

    @property
    def idle(self) -> bool:
        """Whether there is nothing to report and no delayed write."""
        return self._reported is None and self._waiting.pause is None

    def poll(self, step: int) -> float | None:
        """Retry the delayed writes, and report changes.

        Args:
            step: latest recorded step.

        Returns:
            Seconds until the next call; None while the disk has space.
        """
        pause = self._waiting.pause
        if pause is not None and self._reported is None:
            # The backlog begins a new pause at the next full disk, so keep the reported one.
            self._reported = pause, step
            self._report_full(step)
        # Report before the retry, so that the two events enclose the pause.
        self._waiting.retry()
        if self._reported is not None and self._reported[0].over:
            self._report_freed(*self._reported, last=step)
            self._reported = None
        return None if self.idle else POLL_SECONDS

    def report(self, kind: str, step: int, *, message: str, **facts: Any) -> None:
        """Record an event, and print its message on stderr."""
        self._record({"kind": kind, "step": step, "message": message, **facts})
        print_error(f"fieldwatch: {message}")

    def close(self, step: int) -> None:
        """Retry the delayed writes a last time, release the reserve, and report lost rows."""
        # Rows that cannot be written now are reported as lost below.
        with suppress(DiskFullError):
            self.poll(step)
        rows, nbytes = self._waiting.close()
        # The event about the freed disk is one more write, which may be delayed as well.
        if self._reported is not None and not nbytes:
            self._report_freed(*self._reported, last=step)
            rows, nbytes = self._waiting.close()
        if nbytes:
            print_error(
                f"fieldwatch: the disk of {self._folder} is full: {rows} rows ({nbytes:,} bytes of the record in all) "
                "could not be written and are lost; the last checkpoint, from which the run resumes, does not need them"
            )

    def _report_full(self, step: int) -> None:
        message = f"the disk of {self._folder} is full: training continues, rows are written once there is space"
        self.report(DISK_FULL, step, message=message)

    def _report_freed(self, pause: FullDiskPause, first: int, *, last: int) -> None:
        facts = {"first": first, "last": last, "full_seconds": round(pause.seconds, 3), "rows": pause.rows, "lost": 0}
        facts |= {"writes": pause.writes, "nbytes": pause.nbytes, "dropped": pause.dropped}
        span = f"from step {first} to {last} ({duration(pause.seconds)})"
        message = f"the disk was full {span}: {pause.rows} rows waited, 0 lost"
        if pause.dropped:
            message += f"; {pause.dropped} images, histograms or other optional files were dropped"
        self.report(DISK_FREED, last, message=message, **facts)


def retry_while_disk_full(
    work: Callable[[], Answer], *, what: str, stop: StopAsked, alive: Callable[[], None], patience: float | None = None
) -> Answer:
    """Call a function repeatedly until the disk has enough space for it.

    Args:
        work: function to call. If it raises an error caused by a full disk, it must be possible to call it again.
        what: name of the work, for stderr.
        stop: pending signals; an overdue one ends the wait.
        alive: function that sends a heartbeat to the watchdog.
        patience: maximum wait in seconds; None for :data:`ROOM_PATIENCE`.

    Returns:
        The result of ``work``.

    Raises:
        CheckpointError, OSError: the last error of ``work``, once the wait is over or for any other cause.
    """
    until = time.monotonic() + (ROOM_PATIENCE if patience is None else patience)
    reported = False
    while True:
        try:
            return work()
        except (CheckpointError, OSError) as error:
            # An overdue signal ends the wait, since the scheduler is about to kill the process.
            if not lacks_space(error) or stop.overdue or time.monotonic() >= until:
                raise
            if not reported:
                left = until - time.monotonic()
                print_error(
                    f"fieldwatch: the disk is full: {what} waits for free space for up to {duration(round(left))}"
                )
                reported = True
        # A run that waits for space does not hang.
        alive()
        time.sleep(_PAUSE)


def print_error(text: str) -> None:
    """Print a line on stderr; ignore errors, since stderr may be a file on the full disk."""
    with suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
