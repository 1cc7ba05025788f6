"""A future for the status of the record at the end of a step, resolved on the writer thread."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class RecordStatus:
    """Status of the record at the end of a step.

    Attributes:
        mark: positions of the sinks and other state, to which a resumed run rewinds.
        safe_to_save: whether the last update was applied, and the run has not diverged.
    """

    mark: Mapping[str, Any]
    safe_to_save: bool


class PendingStatus:
    """A future for a :class:`RecordStatus`, resolved once every row queued before it has been processed.

    Args:
        read_status: function that returns the status; called on the writer thread, in order with the rows.
        has_stopped: function that returns whether that thread has stopped.
    """

    def __init__(self, read_status: Callable[[], RecordStatus], has_stopped: Callable[[], bool]) -> None:
        self._read_status = read_status
        self._has_stopped = has_stopped
        self._resolved = threading.Event()
        self._status: RecordStatus | None = None

    def resolve(self) -> None:
        """Resolve the future; called on the writer thread."""
        self._status = self._read_status()
        self._resolved.set()

    def wait(self) -> RecordStatus | None:
        """Wait for the status; return None if the writer thread stopped before it was resolved."""
        # A writer thread that has stopped never resolves the future, so check for that regularly.
        while not self._resolved.wait(_POLL_SECONDS):
            if self._has_stopped():
                return self._status
        return self._status
