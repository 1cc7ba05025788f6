"""How often something that died may be started again, and how long to wait before each restart."""

import time
from collections import deque
from collections.abc import Callable
from typing import Final, final

HOUR: Final = 3600.0
LONGEST_PAUSE: Final = 60.0
"""Seconds to wait at most before a restart."""


@final
class RestartLimiter:
    """Counts restarts, and says when to give up.

    There are two limits. Restarts that brought no progress are limited in a row, unless the cause is one that passes by
    itself. All restarts together are limited per hour, even if each gets a step further. The pause before a restart
    doubles with each restart of the last hour, up to a minute.

    Args:
        in_a_row: restarts without progress after which to give up.
        per_hour: restarts within an hour after which to give up.
        pause: seconds before the first restart of an hour.
        clock: monotonic time in seconds; for tests.

    Raises:
        ValueError: a limit or the pause is negative.
    """

    def __init__(
        self, *, in_a_row: int, per_hour: int, pause: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if in_a_row < 0 or per_hour < 0 or not 0 <= pause < float("inf"):
            raise ValueError(f"expected limits and a pause of 0 or more, got {in_a_row=}, {per_hour=}, {pause=}")
        self._in_a_row = in_a_row
        self._per_hour = per_hour
        self._pause = pause
        self._clock = clock
        self._without_progress = 0
        self._times: deque[float] = deque()

    def record_death(self, *, progress: bool, passes: bool) -> str:
        """Take note of a death.

        Args:
            progress: whether it came further than all before it.
            passes: whether its cause passes by itself.

        Returns:
            Why it must not be started again; empty if it may.
        """
        if progress:
            self._without_progress = 0
        elif not passes:
            self._without_progress += 1
        if self._without_progress >= self._in_a_row:
            return f"{self._in_a_row} restarts brought no new step"
        if self.recent >= self._per_hour:
            return f"{self._per_hour} restarts within an hour are the limit"
        return ""

    def next_pause(self) -> float:
        """Count a restart; returns the seconds to wait before it."""
        self._times.append(self._clock())
        # Doubled with each restart of the last hour.
        return min(self._pause * 2.0 ** (len(self._times) - 1), LONGEST_PAUSE)

    @property
    def recent(self) -> int:
        """Restarts within the last hour."""
        while self._times and self._times[0] <= self._clock() - HOUR:
            self._times.popleft()
        return len(self._times)

    @property
    def per_hour(self) -> int:
        """The limit per hour."""
        return self._per_hour
