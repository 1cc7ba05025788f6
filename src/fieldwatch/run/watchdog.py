"""Watchdog of a run: heartbeats in a black box, and the stacks of all threads if it hangs or crashes."""

import faulthandler
import os
import signal
import time
from collections import deque
from contextlib import ExitStack
from functools import partial
from io import FileIO
from pathlib import Path
from typing import ClassVar, Final, final

from fieldwatch.base import duration, open_for_append, open_new, output_path
from fieldwatch.monitor import (
    BLACK_BOX,
    STACKS,
    BlackBox,
    Death,
    Ending,
    Heartbeat,
    cause_of_end,
    explain_silent_end,
    heading,
    leave_note,
    supervisor_link,
)
from fieldwatch.record.disk import try_optional
from fieldwatch.run.ending import end_state
from fieldwatch.run.options import HangTimeout
from fieldwatch.run.run_record import RunRecord

MIN_TIMEOUT: Final = 60.0
"""Minimum timeout in seconds of any phase."""
FIRST_TIMEOUT: Final = 1800.0
"""Timeout in seconds of a phase without a known duration: the start, a first step, a first evaluation."""
TIMEOUT_FACTOR: Final = 20.0
"""Timeout of a phase as a multiple of the 99th percentile of its recent durations."""
LONGEST_FACTOR: Final = 3.0
"""Minimum timeout of a phase as a multiple of its longest duration."""
REARM_SLACK: Final = 1.0
"""Seconds by which the stacks may be late: restarting the timer takes 80 us, so it is done once per second."""
AFTER_LOOP: Final = "after the loop"
"""Phase after the last step: products and reports, which may take long."""
_RECENT_DURATIONS: Final = 512
_MAX_STACKS_BYTES: Final = 16 << 20


class PhaseTimeout:
    """Timeout of one phase, learned from its durations.

    Args:
        timeout: fixed timeout in seconds; None learns it from the observed durations.

    Attributes:
        timeout: current timeout in seconds.
    """

    __slots__ = ("_count", "_fixed", "_longest", "_recent", "timeout")

    def __init__(self, timeout: float | None = None) -> None:
        self._recent: deque[float] = deque(maxlen=_RECENT_DURATIONS)
        self._count = 0
        self._longest = 0.0
        self._fixed = timeout is not None
        self.timeout = FIRST_TIMEOUT if timeout is None else timeout

    def observe(self, seconds: float) -> None:
        """Update the timeout with the duration of a completed phase."""
        if self._fixed:
            return
        self._recent.append(seconds)
        self._count += 1
        self._longest = max(self._longest, seconds)
        # Fast path: even the longest duration does not exceed the minimum timeout, so nothing has to be sorted.
        if self._longest * TIMEOUT_FACTOR <= MIN_TIMEOUT:
            self.timeout = MIN_TIMEOUT
        # Sort rarely: for the first few durations, for every 64th, and after one that came close to the timeout.
        elif self._count <= 8 or self._count % 64 == 0 or seconds * TIMEOUT_FACTOR > self.timeout:
            ordered = sorted(self._recent)
            usual = ordered[min(int(0.99 * len(ordered)), len(ordered) - 1)]
            self.timeout = max(MIN_TIMEOUT, TIMEOUT_FACTOR * usual, LONGEST_FACTOR * self._longest)


@final
class Watchdog:
    """Watches one run, with a C timer and a memory-mapped file that survives the process.

    While it is open, `faulthandler` writes the stacks of all threads to ``black_box/stacks.txt``: after a timeout
    without a heartbeat (even while native code holds the GIL), on SIGUSR2, and on a segmentation fault. If
    `faulthandler` was already enabled, segmentation faults are written to its existing file instead.

    Args:
        folder: run folder.
        timeout: seconds without a heartbeat after which the loop counts as hung; "auto" learns it from the durations
            of each phase (20 times the 99th percentile, at least a minute); None disables the watchdog.

    Raises:
        ValueError: the timeout is not positive.
    """

    _open: ClassVar[list["Watchdog"]] = []

    def __init__(self, folder: Path, timeout: HangTimeout) -> None:
        if timeout not in ("auto", None) and not 0 < float(timeout) < float("inf"):
            raise ValueError(f"hang_timeout must be greater than 0 s, 'auto' or None (disabled), got {timeout!r}")
        self._folder = folder
        self._watches = timeout is not None
        self._loop_timeout = None if timeout in ("auto", None) else float(timeout)
        self._supervisor = supervisor_link()
        self._patience = self._supervisor.patience if self._supervisor else 1.0
        self._timeouts: dict[str, tuple[PhaseTimeout, bytes]] = {}
        self._step = -1
        self._phase = "start"
        self._last_sign = 0.0
        self._deadline = float("inf")
        self._current = self._timeout_of(self._phase)
        self._box: BlackBox | None = None
        self._stacks: FileIO | None = None
        self._owns_faults = False
        self._record: RunRecord | None = None
        self._earlier_death: tuple[Death, Heartbeat, Path] | None = None

    @property
    def stacks(self) -> Path:
        """File that the stacks are written to."""
        return output_path(self._folder, BLACK_BOX, STACKS)

    def open(self) -> None:
        """Open the black box, and start watching; this process must have locked the folder.

        If the previous process died without reporting a cause, a post-mortem is written first.

        Raises:
            OSError: the disk is full or read-only.
        """
        self._earlier_death = explain_silent_end(self._folder)
        attempt = self._supervisor.attempt if self._supervisor else 0
        self._box = BlackBox(self._folder, attempt=attempt)
        # A run that hung for days has written its stacks many times: discard such a large file.
        too_large = self.stacks.exists() and self.stacks.stat().st_size > _MAX_STACKS_BYTES
        self._stacks = open_new(self.stacks) if too_large else open_for_append(self.stacks)
        # The file is unbuffered: a buffer would keep data that a full disk rejected, and fail again at the close.
        self._stacks.write(heading(attempt).encode())
        self._last_sign = time.monotonic()
        self._open.append(self)
        self.listen()
        self.alive("start")
        if self._supervisor:
            self._supervisor.report_folder(self._folder)

    def begin(self, step: int, record: RunRecord) -> None:
        """Begin the loop at ``step``, and record how the previous process died or why this one was restarted.

        Args:
            step: first step, which is also that of the last good checkpoint.
            record: record for this and later events.
        """
        self._record = record
        # Events of `step` itself would be dropped if the run resumed there again.
        event_step = max(step - 1, 0)
        if step:
            self.saved(step)
        if self._earlier_death is not None:
            death, heartbeat, post_mortem = self._earlier_death
            facts = {"cause": death.cause, "died_in": heartbeat.step, "resumed_from": step}
            message = f"the previous process died in step {heartbeat.step} ({death.detail}); resumed from step {step}"
            record.event(
                "died", event_step, message=message, post_mortem=str(post_mortem.relative_to(self._folder)), **facts
            )
        if self._supervisor and self._supervisor.attempt > 1:
            supervisor = self._supervisor
            message = f"attempt {supervisor.attempt}, after: {supervisor.cause}"
            record.event("restarted", event_step, message=message, attempt=supervisor.attempt, cause=supervisor.cause)

    def alive(self, phase: str | None = None, step: int | None = None) -> None:
        """Send a heartbeat; takes about 1 us, and 80 us once per second.

        Args:
            phase: name of the phase that begins now, if it changes; durations are learned per name.
            step: index of the step that begins now, if it changes.
        """
        if self._box is None:
            return
        now = time.monotonic()
        # The timer has already written the stacks; the event can be recorded only now that the loop continues.
        if now > self._deadline:
            self._note_hang(now - self._last_sign)
        if step is not None:
            self._step = step
        if phase is not None:
            self._current[0].observe(now - self._last_sign)
            if phase != self._phase:
                self._phase = phase
                self._current = self._timeout_of(phase)
        self._last_sign = now
        phase_timeout, raw_phase = self._current
        timeout = phase_timeout.timeout * self._patience
        self._box.beat(self._step, raw_phase, timeout, now)
        # Setting the timer costs 80 us: keep it while it would fire neither too early nor more than a second late.
        if self._watches and not timeout <= self._deadline - now <= timeout + REARM_SLACK:
            self._arm(timeout + REARM_SLACK)

    def saved(self, step: int) -> None:
        """Write the step of the last good checkpoint to the black box."""
        if self._box is not None:
            self._box.saved(step)

    def ending(self, error: BaseException | None) -> ExitStack:
        """Return a stack that closes the watchdog with ``error``, or else with an exception raised inside the stack."""

        def close(_kind: object, late: BaseException | None, _at: object) -> None:
            self.close(end_state(error or late), error or late)

        closing = ExitStack()
        closing.push(close)
        return closing

    def close(self, ending: Ending, error: BaseException | None = None) -> None:
        """Stop watching, restore `faulthandler`, and write the kind of end to the black box."""
        if self._box is None or self._stacks is None:
            return
        self._open.remove(self)
        if self._watches:
            faulthandler.cancel_dump_traceback_later()
        if self._owns_faults:
            faulthandler.disable()
        faulthandler.unregister(signal.SIGUSR2)
        # Hand segmentation faults and SIGUSR2 back to the run that was opened before this one.
        for other in self._open[-1:]:
            other.listen()
        self._stacks.close()
        death = cause_of_end(error)
        leave_note(self._folder, death, self._step)
        self._box.beat(self._step, b"end", FIRST_TIMEOUT, time.monotonic())
        self._box.close(ending, str(death))
        self._box = self._stacks = None

    def listen(self) -> None:
        """Write the stacks at faults and SIGUSR2 to this run's file."""
        if self._stacks is None:
            return
        # faulthandler has a single file for faults: leave it alone if it is already enabled.
        if not faulthandler.is_enabled():
            faulthandler.enable(self._stacks)
            self._owns_faults = True
        faulthandler.register(signal.SIGUSR2, self._stacks, all_threads=True)

    @classmethod
    def before_fork(cls) -> None:
        """Stop the timer, whose thread does not exist in the child; the child would wait for it forever at exit."""
        if cls._open:
            faulthandler.cancel_dump_traceback_later()

    @classmethod
    def after_fork(cls, *, in_child: bool) -> None:
        """Resume watching in the parent; in a child, drop all watchdogs."""
        for watchdog in cls._open:
            watchdog.forked(in_child=in_child)
        if in_child:
            cls._open.clear()

    def forked(self, *, in_child: bool) -> None:
        """Restart the timer in the parent; in a child, drop the black box."""
        if in_child:
            self._box = None
        elif self._box is not None:
            self._deadline = float("inf")
            self.alive()

    def _timeout_of(self, phase: str) -> tuple[PhaseTimeout, bytes]:
        entry = self._timeouts.get(phase)
        if entry is None:
            # A fixed timeout applies only inside the loop: the start and the products may take much longer.
            timeout = self._loop_timeout if self._step >= 0 and phase != AFTER_LOOP else None
            # The black box reserves 32 bytes for the name of a phase.
            entry = PhaseTimeout(timeout if self._watches else float("inf")), phase.encode()[:32]
            self._timeouts[phase] = entry
        return entry

    def _arm(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        # A supervised process exits by itself when it hangs, so that it can be restarted.
        exits = self._supervisor is not None and self._supervisor.ends_hangs
        if self._stacks is not None:
            faulthandler.dump_traceback_later(seconds, repeat=True, file=self._stacks, exit=exits)

    def _note_hang(self, seconds: float) -> None:
        message = f"no sign of life for {duration(seconds)} in step {self._step} ({self._phase})"
        if self._stacks is not None:
            write = partial(self._stacks.write, f"\nIt went on: {message}\n".encode())
            try_optional(None if self._record is None else self._record.waiting, write)
        if self._record is not None:
            facts = {"phase": self._phase, "hung_seconds": seconds, "stacks": f"{BLACK_BOX}/{STACKS}"}
            self._record.event("hung", max(self._step, 0), message=f"{message}; stacks in {self.stacks}", **facts)


# Data loader workers are forked from the training process, and inherit its black box but not its timer thread.
os.register_at_fork(
    before=Watchdog.before_fork,
    after_in_parent=lambda: Watchdog.after_fork(in_child=False),
    after_in_child=lambda: Watchdog.after_fork(in_child=True),
)
