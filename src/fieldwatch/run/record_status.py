"""Where the record stands at a moment, said later: the rows up to then are read on another thread first."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class RecordStatus:
    """How a run stood at the end of a step.

    Attributes:
        mark: where each sink stood, for a resumed run to rewind it to.
        safe_to_save: whether the last update was made, and the run has not diverged.
    """

    mark: Mapping[str, Any]
    safe_to_save: bool


class PendingStatus:
    """A :class:`RecordStatus` that is known once all rows before it are read.

    Args:
        read_status: says how the run stands; called on the record's thread, in order with the rows.
        has_stopped: whether that thread has stopped.
    """

    def __init__(self, read_status: Callable[[], RecordStatus], has_stopped: Callable[[], bool]) -> None:
        self._read_status = read_status
        self._has_stopped = has_stopped
        self._resolved = threading.Event()
        self._status: RecordStatus | None = None

    def resolve(self) -> None:
        """Look now; on the record's thread."""
        self._status = self._read_status()
        self._resolved.set()

    def wait(self) -> RecordStatus | None:
        """Wait for it; None if the record stopped before."""
        # A record thread that has stopped resolves nothing any more: look for that now and then.
        while not self._resolved.wait(_POLL_SECONDS):
            if self._has_stopped():
                return self._status
        return self._status
