"""Signs of life: a black box that says how far a run came, and the stacks of all threads when it hangs or dies."""

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

from fieldwatch.base import open_for_append, open_new, output_path
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
"""Seconds that anything may take."""
FIRST_TIMEOUT: Final = 1800.0
"""Seconds that something may take which was never seen before: the start, a first step, a first evaluation."""
TIMEOUT_FACTOR: Final = 20.0
"""How many times the 99th percentile of its recent durations something may take."""
LONGEST_FACTOR: Final = 3.0
"""How many times its longest duration."""
REARM_SLACK: Final = 1.0
"""Seconds by which the stacks may come late: starting the timer anew takes 80 us, so it is done once a second."""
AFTER_LOOP: Final = "after the loop"
"""What comes after the last step: products and reports, each as long as it takes."""
_RECENT_DURATIONS: Final = 512
_MAX_STACKS_BYTES: Final = 16 << 20


class PhaseTimeout:
    """How long one thing takes, and how long it may take.

    Args:
        timeout: seconds that it may always take; None learns from what is seen.
    """

    __slots__ = ("_count", "_fixed", "_longest", "_recent", "timeout")

    def __init__(self, timeout: float | None = None) -> None:
        self._recent: deque[float] = deque(maxlen=_RECENT_DURATIONS)
        self._count = 0
        self._longest = 0.0
        self._fixed = timeout is not None
        self.timeout = FIRST_TIMEOUT if timeout is None else timeout

    def observe(self, seconds: float) -> None:
        """Learn from one that ended."""
        if self._fixed:
            return
        self._recent.append(seconds)
        self._count += 1
        self._longest = max(self._longest, seconds)
        # The usual case: even the longest duration keeps the minimum, and nothing has to be sorted.
        if self._longest * TIMEOUT_FACTOR <= MIN_TIMEOUT:
            self.timeout = MIN_TIMEOUT
        # Sorting is kept rare: for the first few, now and then, and when one came near the limit.
        elif self._count <= 8 or self._count % 64 == 0 or seconds * TIMEOUT_FACTOR > self.timeout:
            ordered = sorted(self._recent)
            usual = ordered[min(int(0.99 * len(ordered)), len(ordered) - 1)]
            self.timeout = max(MIN_TIMEOUT, TIMEOUT_FACTOR * usual, LONGEST_FACTOR * self._longest)


@final
class Watchdog:
    """Watches one run. Everything it needs is in C or in memory that outlives the process.

    While it is open, `faulthandler` writes the stacks of all threads to ``black_box/stacks.txt``: after a time without
    a sign of life (also when native code holds the interpreter), at SIGUSR2, and at a segmentation fault, unless
    somebody switched `faulthandler` on before: then his file gets those.

    Args:
        folder: the run folder.
        timeout: seconds between two signs of life in the loop after which it counts as hung; "auto" learns it from
            what each part took so far (20 times the 99th percentile, at least a minute); None never.

    Raises:
        ValueError: the timeout is not positive.
    """

    _open: ClassVar[list["Watchdog"]] = []

    def __init__(self, folder: Path, timeout: HangTimeout) -> None:
        if timeout not in ("auto", None) and not 0 < float(timeout) < float("inf"):
            raise ValueError(f"hang_timeout={timeout!r}: wanted seconds above 0, 'auto', or None for no watch")
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
        """Where the stacks are written."""
        return output_path(self._folder, BLACK_BOX, STACKS)

    def open(self) -> None:
        """Begin; the folder is this process's own. How the last one died, if it did not say so, is written down.

        Raises:
            OSError: the disk is full or read-only.
        """
        self._earlier_death = explain_silent_end(self._folder)
        attempt = self._supervisor.attempt if self._supervisor else 0
        self._box = BlackBox(self._folder, attempt=attempt)
        # A run that hung for days wrote its stacks again and again; of a file that large nothing is kept.
        too_large = self.stacks.exists() and self.stacks.stat().st_size > _MAX_STACKS_BYTES
        self._stacks = open_new(self.stacks) if too_large else open_for_append(self.stacks)
        self._stacks.write(heading(attempt).encode())  # unbuffered: a buffer would keep what a full disk refused
        self._last_sign = time.monotonic()
        self._open.append(self)
        self.listen()
        self.alive("start")
        if self._supervisor:
            self._supervisor.report_folder(self._folder)

    def begin(self, step: int, record: RunRecord) -> None:
        """Begin the loop at ``step``: from now on there are events; how this process came to be started is the first.

        Args:
            step: the first one, which the run's last good checkpoint is of.
            record: where hangs are recorded.
        """
        self._record = record
        event_step = max(step - 1, 0)  # an event of the step itself is void when the run is resumed there again
        if step:
            self.saved(step)
        if self._earlier_death is not None:
            death, heartbeat, post_mortem = self._earlier_death
            facts = {"cause": death.cause, "died_in": heartbeat.step, "resumed_from": step}
            message = f"the process before died in step {heartbeat.step} ({death.detail}); resumed from step {step}"
            record.event(
                "died", event_step, message=message, post_mortem=str(post_mortem.relative_to(self._folder)), **facts
            )
        if self._supervisor and self._supervisor.attempt > 1:
            supervisor = self._supervisor
            message = f"attempt {supervisor.attempt}, after: {supervisor.cause}"
            record.event("restarted", event_step, message=message, attempt=supervisor.attempt, cause=supervisor.cause)

    def alive(self, phase: str | None = None, step: int | None = None) -> None:
        """Give a sign of life: about a microsecond, and 80 once a second.

        Args:
            phase: what begins now, if something else does; how long each takes is learnt by its name.
            step: the step that begins now.
        """
        if self._box is None:
            return
        now = time.monotonic()
        # The timer has written the stacks; only now, that the loop goes on, can an event be recorded.
        if now > self._deadline:
            self._note_hang(now - self._last_sign)
        if step is not None:
            self._step = step
        if phase is not None:
            self._current[0].observe(now - self._last_sign)
            self._phase = phase
            self._current = self._timeout_of(phase)
        self._last_sign = now
        phase_timeout, raw_phase = self._current
        timeout = phase_timeout.timeout * self._patience
        self._box.beat(self._step, raw_phase, timeout, now)
        # Setting the timer costs 80 us: it stays while it would fire neither too early nor a second too late.
        if self._watches and not timeout <= self._deadline - now <= timeout + REARM_SLACK:
            self._arm(timeout + REARM_SLACK)

    def saved(self, step: int) -> None:
        """Note the last good checkpoint in the black box."""
        if self._box is not None:
            self._box.saved(step)

    def ending(self, error: BaseException | None) -> ExitStack:
        """Do what belongs to the end, and close; an error on the way is how it ended, unless there was one before."""

        def close(_kind: object, late: BaseException | None, _at: object) -> None:
            self.close(end_state(error or late), error or late)

        closing = ExitStack()
        closing.push(close)
        return closing

    def close(self, ending: Ending, error: BaseException | None = None) -> None:
        """End: what was switched on is switched off, and the black box says how it ended."""
        if self._box is None or self._stacks is None:
            return
        self._open.remove(self)
        if self._watches:
            faulthandler.cancel_dump_traceback_later()
        if self._owns_faults:
            faulthandler.disable()
        faulthandler.unregister(signal.SIGUSR2)
        # Faults and SIGUSR2 go back to the run that was opened before this one.
        for other in self._open[-1:]:
            other.listen()
        self._stacks.close()
        death = cause_of_end(error)
        leave_note(self._folder, death, self._step)
        self._box.beat(self._step, b"end", FIRST_TIMEOUT, time.monotonic())
        self._box.close(ending, str(death))
        self._box = self._stacks = None

    def listen(self) -> None:
        """Have faults and SIGUSR2 written into this run's file."""
        if self._stacks is None:
            return
        # One file at a time gets faults: whoever enabled the handler before keeps it.
        if not faulthandler.is_enabled():
            faulthandler.enable(self._stacks)
            self._owns_faults = True
        faulthandler.register(signal.SIGUSR2, self._stacks, all_threads=True)

    @classmethod
    def before_fork(cls) -> None:
        """Stop the timer: its thread is not there in the child, which would wait for it for ever at its end."""
        if cls._open:
            faulthandler.cancel_dump_traceback_later()

    @classmethod
    def after_fork(cls, *, in_child: bool) -> None:
        """Go on in the parent; a child is nobody's sign of life."""
        for watchdog in cls._open:
            watchdog.forked(in_child=in_child)
        if in_child:
            cls._open.clear()

    def forked(self, *, in_child: bool) -> None:
        """Start the timer again; in a child, let go of the black box."""
        if in_child:
            self._box = None
        elif self._box is not None:
            self._deadline = float("inf")
            self.alive()

    def _timeout_of(self, phase: str) -> tuple[PhaseTimeout, bytes]:
        entry = self._timeouts.get(phase)
        if entry is None:
            timeout = self._loop_timeout if self._step >= 0 and phase != AFTER_LOOP else None
            # The black box has 32 bytes for the name of a phase.
            entry = PhaseTimeout(timeout if self._watches else float("inf")), phase.encode()[:32]
            self._timeouts[phase] = entry
        return entry

    def _arm(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        # a supervised process ends itself: nobody has to find and end it
        exits = self._supervisor is not None and self._supervisor.ends_hangs
        if self._stacks is not None:
            faulthandler.dump_traceback_later(seconds, repeat=True, file=self._stacks, exit=exits)

    def _note_hang(self, seconds: float) -> None:
        message = f"no sign of life for {seconds:.0f} s in step {self._step} ({self._phase})"
        if self._stacks is not None:
            write = partial(self._stacks.write, f"\nIt went on: {message}\n".encode())
            try_optional(None if self._record is None else self._record.waiting, write)
        if self._record is not None:
            facts = {"phase": self._phase, "hung_seconds": seconds, "stacks": f"{BLACK_BOX}/{STACKS}"}
            self._record.event("hung", max(self._step, 0), message=f"{message}; stacks in {self.stacks}", **facts)


os.register_at_fork(
    before=Watchdog.before_fork,
    after_in_parent=lambda: Watchdog.after_fork(in_child=False),
    after_in_child=lambda: Watchdog.after_fork(in_child=True),
)
