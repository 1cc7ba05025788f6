"""Incremental reading of a run that is still being written: each read costs only what is new."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from fieldwatch.record import EVENTS, JOURNAL, History, JournalFollower
from fieldwatch.record.memory import MEMORY_LOG
from fieldwatch.report.account import account_from

BUDGET: Final = 600_000
"""Limit for the JSON of a run's curves, in bytes: it is sent again whenever the run has changed."""
_POLL_BYTES: Final = 64 * 2**20
"""Maximum number of bytes per poll, which bounds the memory of its raw lines."""
_FILES: Final = ("run.json", JOURNAL, EVENTS, MEMORY_LOG, "checkpoints", "crash", "products", "profiles")


def version_of(folder: Path) -> str:
    """Return a version text that changes with the sizes and times of the run's files; no file is read."""
    return "-".join(_stamps(folder))


def size_of(folder: Path) -> int:
    """Return the size of a run's journal in bytes, which is about the memory of its rows."""
    try:
        return (folder / JOURNAL).stat().st_size
    except OSError:
        return 0


class AccountReader:
    """Reads the account of a run and keeps its rows, so that the next read only adds new ones. Not thread-safe.

    Args:
        folder: the run folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._follower = JournalFollower(folder, limit=_POLL_BYTES)
        self._history = History()

    def read(self) -> tuple[dict[str, Any] | None, str]:
        """Return the current account and an empty text, or None and the reason why it cannot be read."""
        # A run may be moved or damaged while TensorBoard runs: the tab shows the reason, and the other runs.
        try:
            self._add_new_rows()
            return account_from(self._history, self._folder, budget=BUDGET), ""
        except (OSError, ValueError) as error:
            return None, str(error) or type(error).__name__

    def _add_new_rows(self) -> None:
        update = self._follower.poll()
        update.apply_to(self._history)
        while update.more:
            update = self._follower.poll()
            update.apply_to(self._history)


def _stamps(folder: Path) -> Iterator[str]:
    for name in _FILES:
        try:
            status = (folder / name).stat()
        except OSError:
            yield ""
        else:
            # Of a folder, the time changes whenever a file is added or removed.
            yield f"{status.st_mtime_ns:x}.{status.st_size:x}"
