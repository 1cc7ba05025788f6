"""Where the record stands at a moment, said later: the rows up to then are read on another thread first."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a run stood at the end of a step.

    Attributes:
        mark: where each sink stood, for a resumed run to rewind it to.
        sound: whether the last update was made, and the run has not diverged.
    """

    mark: Mapping[str, Any]
    sound: bool


class Promised:
    """A :class:`Standing` that is known once all rows before it are read.

    Args:
        look: says how the run stands; called on the record's thread, in order with the rows.
        broken: whether that thread has stopped.
    """

    def __init__(self, look: Callable[[], Standing], broken: Callable[[], bool]) -> None:
        self._look, self._broken = look, broken
        self._kept = threading.Event()
        self._standing: Standing | None = None

    def keep(self) -> None:
        """Look now; on the record's thread."""
        self._standing = self._look()
        self._kept.set()

    def wait(self) -> Standing | None:
        """Wait for it; None if the record stopped before."""
        while not self._kept.wait(_POLL_SECONDS):
            if self._broken():
                return self._standing
        return self._standing
