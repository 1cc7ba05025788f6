"""When to save: as often as a budget of waiting allows, and never so late that more than a limit of work is lost."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Every = int | Literal["auto"] | None
"""Steps between checkpoints; "auto" for what the budget allows; None for none before the end."""

WRITING_SHARE = 0.1
"""With "auto", the most of a run's time that the background writes."""
FIRST_RETRY = 1.0
LONGEST_RETRY = 60.0
"""Seconds after which a failed save is tried again: at first, and after many failures."""


@dataclass(frozen=True, kw_only=True)
class Autosave:
    """How often a run saves of its own accord.

    Attributes:
        stall_budget: the share of the run's time that training may wait for its checkpoints.
        loss_limit: seconds of work that a kill may cost at most; None for no limit. It also holds with a fixed number
            of steps between checkpoints, and wins over the budget.
        least: seconds between two checkpoints of ``Saving(every="auto")`` at least, to spare the disk.

    Raises:
        ValueError: a number is not above 0, or the budget is above 1.
    """

    stall_budget: float = 0.005
    loss_limit: float | None = 60.0
    least: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.stall_budget <= 1:
            raise ValueError(f"Autosave(stall_budget={self.stall_budget}): it is a share of time, above 0 and up to 1")
        for name in ("loss_limit", "least"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise ValueError(f"Autosave({name}={seconds}): it is a time in seconds, above 0")


class Interval:
    """Says when a save is due, from how long the last ones took.

    Args:
        every: steps between checkpoints, "auto", or None.
        autosave: the budget and the limit.
        clock: a monotonic clock, in seconds.

    Raises:
        ValueError: ``every`` is neither of the three.
    """

    def __init__(self, every: Every, autosave: Autosave, clock: Callable[[], float] = time.monotonic) -> None:
        if every not in ("auto", None) and (type(every) is not int or every < 0):
            raise ValueError(f"Saving(every={every!r}): it must be a number of steps, 'auto' or None")
        self.every = every
        self.autosave = autosave
        self._clock = clock
        self._reached = clock()  # what was done before is on the disk, or on its way there
        self._retry_at: float | None = None
        self._not_before = self._reached
        self._failures = 0
        self._stall = self._writing = 0.0
        self._conflict_reported = False

    def begin(self) -> None:
        """Training begins: nothing is lost yet."""
        self._reached = self._clock()

    def planned(self, done: int) -> bool:
        """Whether this very step was asked for by its number."""
        return isinstance(self.every, int) and self.every > 0 and done % self.every == 0

    def due(self, done: int) -> bool:
        """Whether a save is due now that so many steps are done.

        While saves fail, only the time of the next try counts.
        """
        now = self._clock()
        if self._retry_at is not None:
            return now >= self._retry_at
        return self.planned(done) or (now >= self._not_before and now - self._reached >= self.seconds)

    @property
    def seconds(self) -> float:
        """Seconds from one save to the next, whatever the steps; infinite where only steps count."""
        limit = self.autosave.loss_limit or float("inf")
        latest = max(limit - self._writing, 0.0)  # a kill while it is written costs the time since the one before
        if self.every != "auto":
            return latest if self.every else float("inf")
        # The budget of waiting, the share of writing and the least interval are lower bounds; the loss limit wins.
        return min(max(self._affordable, self._writing / WRITING_SHARE, self.autosave.least), latest)

    @property
    def _affordable(self) -> float:
        return self._stall / self.autosave.stall_budget

    def snapshot_taken(self, stall: float) -> None:
        """A snapshot was taken; training waited so many seconds for it. What is done from now on is not in it."""
        self._stall = stall
        self._reached = self._clock()
        if self._retry_at is not None:
            self._retry_at = float("inf")  # the try is under way: its outcome says when the next one is due

    def saved(self) -> None:
        """A save was made while training waited: all that is done is on the disk."""
        self._reached = self._clock()
        self._retry_at = None
        self._failures = 0

    def put_off(self, seconds: float) -> None:
        """Nothing was saved, for a reason that is not the disk's: the time counts again after so many seconds."""
        self._not_before = self._clock() + seconds
        if self._retry_at is not None:
            self._retry_at = self._not_before

    def written(self, seconds: float) -> None:
        """A save is on the disk; writing took so many seconds."""
        self._writing = seconds
        self._retry_at = None
        self._failures = 0

    def failed(self) -> float:
        """A save failed; returns after how many seconds the next is tried."""
        # Exponential backoff: a full disk is usually not freed within a second.
        pause = min(FIRST_RETRY * 2**self._failures, LONGEST_RETRY)
        self._failures += 1
        self._retry_at = self._clock() + pause
        return pause

    def conflict(self) -> dict[str, Any] | None:
        """The figures, once, if the loss limit takes more than the budget of waiting; else None."""
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
