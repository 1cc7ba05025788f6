"""Timing of saves: as often as the stall budget allows, and often enough to bound the work that a crash loses."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Every = int | Literal["auto"] | None
"""Number of steps between checkpoints; "auto" to derive it from the budget; None to save only at the end."""

WRITING_SHARE = 0.1
"""With "auto", the maximum fraction of a run's time that is spent writing in the background."""
FIRST_RETRY = 1.0
LONGEST_RETRY = 60.0
"""Seconds until a failed save is retried: after the first failure, and at most."""


@dataclass(frozen=True, kw_only=True)
class Autosave:
    """How often a run saves automatically.

    Attributes:
        stall_budget: maximum fraction of the run's time that training may wait for its checkpoints.
        loss_limit: maximum seconds of work that a crash may lose; None for no limit. It also applies with a fixed
            number of steps between checkpoints, and takes precedence over the budget.
        least: minimum seconds between two checkpoints with ``Saving(every="auto")``, to spare the disk.

    Raises:
        ValueError: if a number is not greater than 0, or the budget is greater than 1.
    """

    stall_budget: float = 0.005
    loss_limit: float | None = 60.0
    least: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.stall_budget <= 1:
            raise ValueError(
                f"Autosave(stall_budget={self.stall_budget}): it must be a fraction of time, greater than 0, at most 1"
            )
        for name in ("loss_limit", "least"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise ValueError(f"Autosave({name}={seconds}): it must be a time in seconds, greater than 0")


class Interval:
    """Decides when a save is due, based on the duration of the previous ones.

    Args:
        every: number of steps between checkpoints, "auto", or None.
        autosave: budget and limit.
        clock: monotonic clock, in seconds.

    Raises:
        ValueError: if ``every`` is none of the three.
    """

    def __init__(self, every: Every, autosave: Autosave, clock: Callable[[], float] = time.monotonic) -> None:
        if every not in ("auto", None) and (type(every) is not int or every < 0):
            raise ValueError(f"Saving(every={every!r}): it must be a number of steps, 'auto' or None")
        self.every = every
        self.autosave = autosave
        self._clock = clock
        # Time of the last state that is saved or being saved.
        self._reached = clock()
        self._retry_at: float | None = None
        self._not_before = self._reached
        self._failures = 0
        # Unknown before the first save, which is therefore due after `least` seconds.
        self._stall = self._writing = 0.0
        # Computed when a save ends, not at every step.
        self._seconds = self.seconds
        self._conflict_reported = False

    def begin(self) -> None:
        """Mark the start of training: there is no unsaved work yet."""
        self._reached = self._clock()

    def planned(self, done: int) -> bool:
        """Return whether ``every`` schedules a save after ``done`` steps."""
        return isinstance(self.every, int) and self.every > 0 and done % self.every == 0

    def due(self, done: int) -> bool:
        """Return whether a save is due after ``done`` steps.

        While saves fail, only the time of the next retry counts.
        """
        now = self._clock()
        if self._retry_at is not None:
            return now >= self._retry_at
        if now - self._reached >= self._seconds and now >= self._not_before:
            return True
        return self.every != "auto" and self.planned(done)

    @property
    def seconds(self) -> float:
        """Seconds from one save to the next; infinite if saves depend on steps only."""
        limit = self.autosave.loss_limit or float("inf")
        # A crash during the write loses everything since the previous save, so the write must end within the limit.
        latest = max(limit - self._writing, 0.0)
        if self.every != "auto":
            return latest if self.every else float("inf")
        # The stall budget, the fraction of writing and the minimum interval are lower bounds; the loss limit wins.
        return min(max(self._affordable, self._writing / WRITING_SHARE, self.autosave.least), latest)

    @property
    def _affordable(self) -> float:
        return self._stall / self.autosave.stall_budget

    def snapshot_taken(self, stall: float) -> None:
        """Record that a snapshot was taken, for which training waited ``stall`` seconds."""
        self._stall = stall
        self._seconds = self.seconds
        self._reached = self._clock()
        # A retry is in progress: its outcome determines when the next one is due.
        if self._retry_at is not None:
            self._retry_at = float("inf")

    def saved(self) -> None:
        """Record a synchronous save: everything done so far is on the disk."""
        self._reached = self._clock()
        self._retry_at = None
        self._failures = 0

    def put_off(self, seconds: float) -> None:
        """Postpone timed saves by a number of seconds, after a save was skipped for a reason other than the disk."""
        self._not_before = self._clock() + seconds
        if self._retry_at is not None:
            self._retry_at = self._not_before

    def written(self, seconds: float) -> None:
        """Record that a save is on the disk; writing it took ``seconds``."""
        self._writing = seconds
        self._seconds = self.seconds
        self._retry_at = None
        self._failures = 0

    def failed(self) -> float:
        """Record a failed save, and return the seconds until the next retry."""
        # Exponential backoff, because a full disk is usually not freed within a second.
        pause = min(FIRST_RETRY * 2**self._failures, LONGEST_RETRY)
        self._failures += 1
        self._retry_at = self._clock() + pause
        return pause

    def conflict(self) -> dict[str, Any] | None:
        """Return the details of a conflict, once, if the loss limit requires more than the stall budget; else None."""
        limit = self.autosave.loss_limit
        if self._conflict_reported or self.every != "auto" or limit is None or self._affordable <= limit:
            return None
        self._conflict_reported = True
        return {
            "stall_seconds": self._stall,
            "stall_budget": self.autosave.stall_budget,
            "interval_wanted": self._affordable,
            "loss_limit": limit,
            "share": self._stall / limit,
        }
