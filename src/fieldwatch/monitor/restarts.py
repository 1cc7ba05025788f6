"""Limits on restarts, and the pause before each restart."""

import time
from collections import deque
from collections.abc import Callable
from typing import Final, final

HOUR: Final = 3600.0
PER_HOUR: Final = 10
"""Default limit of restarts within an hour."""
LONGEST_PAUSE: Final = 60.0
"""Maximum number of seconds to wait before a restart."""


@final
class RestartLimiter:
    """Counts restarts and enforces two limits.

    Consecutive restarts without progress are limited, unless the cause passes by itself. All restarts together are
    limited per hour, even if each makes progress. The pause before a restart doubles with each restart within the last
    hour, up to a minute.

    Args:
        in_a_row: maximum number of consecutive restarts without progress.
        per_hour: maximum number of restarts within an hour.
        pause: seconds before the first restart within an hour.
        clock: monotonic clock in seconds; for tests.

    Raises:
        ValueError: if a limit or the pause is negative.
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
        # Times of the restarts within the last hour.
        self._times: deque[float] = deque()

    def record_death(self, *, progress: bool, passes: bool) -> str:
        """Record the death of a process.

        Args:
            progress: whether it reached a later step than all previous starts.
            passes: whether the cause passes by itself.

        Returns:
            The reason why it must not be restarted; empty if it may be.
        """
        if progress:
            self._without_progress = 0
        elif not passes:
            self._without_progress += 1
        # Checked before the hourly limit, because its message is more specific.
        if self._without_progress >= self._in_a_row:
            return f"{self._in_a_row} restarts in a row made no progress"
        if self.recent >= self._per_hour:
            return f"{self._per_hour} restarts within an hour, which is the limit"
        return ""

    def next_pause(self) -> float:
        """Count a restart, and return the seconds to wait before it."""
        self._times.append(self._clock())
        # Doubled with each restart within the last hour.
        return min(self._pause * 2.0 ** (len(self._times) - 1), LONGEST_PAUSE)

    @property
    def recent(self) -> int:
        """Number of restarts within the last hour."""
        while self._times and self._times[0] <= self._clock() - HOUR:
            self._times.popleft()
        return len(self._times)

    @property
    def per_hour(self) -> int:
        """Maximum number of restarts within an hour."""
        return self._per_hour
