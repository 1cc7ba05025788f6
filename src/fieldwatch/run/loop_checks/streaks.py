"""`Streaks`: for how many consecutive observations a condition has held."""

FIRST = 8
"""Number of consecutive observations after which a condition is recorded for the first time."""
LAST = 128
"""Number of consecutive observations after which a condition is recorded for the last time."""
_RECORDED = frozenset((FIRST, 32, LAST))


class Streaks:
    """Counts consecutive observations of conditions. Each is recorded at most three times, so no loop floods the log.

    Rules compare the recorded count with their own patience.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._starts: dict[str, int] = {}

    def hold(self, subject: str, step: int) -> int:
        """Count one more observation of a condition that holds.

        Args:
            subject: name of the condition.
            step: step of the observation.

        Returns:
            The count if it has to be recorded now, else 0.
        """
        count = self._counts.get(subject, 0) + 1
        self._counts[subject] = count
        if count == 1:
            self._starts[subject] = step
        return count if count in _RECORDED else 0

    def start(self, subject: str) -> int:
        """Return the step of the first observation of a condition that holds."""
        return self._starts[subject]

    def end(self, subject: str) -> None:
        """Note that a condition does not hold, so that its count starts again."""
        self._counts.pop(subject, None)
