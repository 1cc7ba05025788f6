"""How a run reports a full disk, and waits for room on it."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, final, runtime_checkable

from fieldwatch.base import DiskFullError, lacks_space
from fieldwatch.checkpoint import CheckpointError
from fieldwatch.record.disk import DISK_FREED, DISK_FULL, FullDiskPause, WriteBacklog

POLL_SECONDS: Final = 0.25
"""How often a full disk is looked at while no row comes."""
ROOM_PATIENCE: Final = 600.0
"""Seconds that a run waits for room for a save that it cannot do without: the last one, and one that was asked for."""
_PAUSE: Final = 0.2

Answer = TypeVar("Answer")


@runtime_checkable
class StopAsked(Protocol):
    """Knows of signals, as a run's :class:`StopPoint` does."""

    @property
    def overdue(self) -> bool:
        """Whether a signal came, and its patience is over."""
        ...


@final
class FullDiskReporter:
    """Reports when the disk becomes full, and when it is free again: by an event, and by a line on stderr.

    Args:
        folder: the run folder.
        waiting: what waits for room.
        record: takes an event in; on the record's thread.
    """

    def __init__(self, folder: Path, waiting: WriteBacklog, record: Callable[[dict[str, Any]], None]) -> None:
        self._folder = folder
        self._waiting = waiting
        self._record = record
        self._reported: tuple[FullDiskPause, int] | None = None

    @property
    def idle(self) -> bool:
        """Whether there is nothing to report and nothing that waits."""
        return self._reported is None and self._waiting.pause is None

    def poll(self, step: int) -> float | None:
        """Try to write what waits, and report what changed.

        Args:
            step: the newest one that was recorded.

        Returns:
            Seconds after which to look again; None while there is room.
        """
        pause = self._waiting.pause
        if pause is not None and self._reported is None:
            self._reported = pause, step
            self._report_full(step)
        self._waiting.retry()
        if self._reported is not None and self._reported[0].over:
            self._report_freed(*self._reported, last=step)
            self._reported = None
        return None if self.idle else POLL_SECONDS

    def report(self, kind: str, step: int, *, message: str, **facts: Any) -> None:
        """Record an event, and say its message on stderr."""
        self._record({"kind": kind, "step": step, "message": message, **facts})
        print_error(f"fieldwatch: {message}")

    def close(self, step: int) -> None:
        """End: write what can be written, give the reserve back, and say what is lost."""
        with suppress(DiskFullError):  # what is lost then is said below
            self.poll(step)
        rows, nbytes = self._waiting.close()
        # The event about the freed disk is one more write, which may have to wait as well.
        if self._reported is not None and not nbytes:
            self._report_freed(*self._reported, last=step)
            rows, nbytes = self._waiting.close()
        if nbytes:
            print_error(
                f"fieldwatch: the disk of {self._folder} is full: {rows} rows ({nbytes:,} bytes of the record in all) "
                "could not be written and are lost; the run resumes from its last checkpoint, which needs none of them"
            )

    def _report_full(self, step: int) -> None:
        message = f"the disk of {self._folder} is full: training goes on, rows wait until there is room"
        self.report(DISK_FULL, step, message=message)

    def _report_freed(self, pause: FullDiskPause, first: int, *, last: int) -> None:
        facts = {"first": first, "last": last, "full_seconds": round(pause.seconds, 3), "rows": pause.rows, "lost": 0}
        facts |= {"writes": pause.writes, "nbytes": pause.nbytes, "dropped": pause.dropped}
        span = f"from step {first} to {last} ({pause.seconds:.1f} s)"
        message = f"the disk was full {span}: {pause.rows} rows waited, 0 lost"
        if pause.dropped:
            message += f"; {pause.dropped} pictures, histograms or other optional files were dropped"
        self.report(DISK_FREED, last, message=message, **facts)


def retry_while_disk_full(
    work: Callable[[], Answer], *, what: str, stop: StopAsked, alive: Callable[[], None], patience: float | None = None
) -> Answer:
    """Do something again and again until there is room for it on the disk.

    Args:
        work: raises an error of lack of space, or one from it, and leaves things so that it can be called again.
        what: what it does, for the terminal.
        stop: a signal whose patience is over ends the wait.
        alive: gives a sign of life.
        patience: seconds to wait at most; None for :data:`ROOM_PATIENCE`.

    Raises:
        CheckpointError, OSError: what ``work`` raised last, when the patience is over.
    """
    until = time.monotonic() + (ROOM_PATIENCE if patience is None else patience)
    reported = False
    while True:
        try:
            return work()
        except (CheckpointError, OSError) as error:
            if not lacks_space(error) or stop.overdue or time.monotonic() >= until:
                raise
            if not reported:
                left = until - time.monotonic()
                print_error(f"fieldwatch: the disk is full: {what} waits for room, {left:.0f} s at most")
                reported = True
        alive()
        time.sleep(_PAUSE)


def print_error(text: str) -> None:
    """Print a line on stderr; where even that is a file on the full disk, nobody can be told."""
    with suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
