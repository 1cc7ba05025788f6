"""The runs of the tab and what was read of them: one thread reads, any number of requests ask."""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fieldwatch.monitor import ENDED
from fieldwatch.report.tab.folders import FoundRun, Root, SearchResult, find_runs
from fieldwatch.report.tab.reading import AccountReader, size_of, version_of

SEARCH_EVERY: Final = 10.0
"""Seconds between two searches for runs; the second waits until somebody asks."""
READ_AT_ONCE: Final = 512 * 2**20
"""Bytes of journals whose rows stay in memory, so that only what is new is read."""
REST: Final = 5.0
"""Times as long as a reading took pass before the next of the same run: the tab leaves the machine to the training."""
LONGEST_REST: Final = 30.0
"""Seconds at most: the first reading of a long run takes long, the second does not."""
LOOK_AGAIN: Final = 60.0
"""Seconds after which a run that says it is running is looked at although it wrote nothing."""
_ANSWERS: Final = 32
_BROKEN: Final = (
    "the tab failed while it read this run: what went wrong stands in the terminal of TensorBoard; "
    "`fieldwatch health` on the folder says whether the record itself is damaged"
)


@dataclass(frozen=True, kw_only=True)
class CachedAccount:
    """What a run looks like.

    Attributes:
        files: the version of the run's files.
        account: of the run; None where it cannot be read.
        error: why not; empty where it can.
        fresh_until: when it may be read again, by :func:`time.monotonic`.
        stale_from: when it must be, even with the same files: a run whose process was killed writes no more.
    """

    files: str
    account: Mapping[str, Any] | None = None
    error: str = ""
    fresh_until: float = 0.0
    stale_from: float = math.inf

    @property
    def version(self) -> str:
        """Another text for every other content."""
        return f"{self.files}-{self.account['run']['state']}" if self.account else self.files

    def is_due(self, files: str) -> bool:
        """Whether to read the run again, when its files have this version now."""
        now = time.monotonic()
        return now > self.fresh_until and (files != self.files or now > self.stale_from)


class AccountCache:
    """Finds runs and reads them, each when it is asked for and only where its files have changed.

    Searching and reading happen in one thread of its own, which ends when there is nothing to do; who asks waits as
    long as he likes. All methods may be called by several threads at once.

    Args:
        roots: where to look for runs.
        make_reader: of a run folder: called again and again, gives the run's account as it is then.
    """

    def __init__(
        self, roots: Sequence[Root], make_reader: Callable[[Path], Callable[[], CachedAccount]] | None = None
    ) -> None:
        self._roots = roots
        self._make_reader = make_reader or reader
        self._changed = threading.Condition()
        self._jobs: OrderedDict[str, Callable[[], None]] = OrderedDict()
        self._working = False
        self._found = SearchResult()
        self._by_id: dict[str, FoundRun] = {}
        self._searched: float | None = None
        self._readers: OrderedDict[str, Callable[[], CachedAccount]] = OrderedDict()
        self._answers: OrderedDict[str, CachedAccount] = OrderedDict()

    def search_result(self, patience: float = 0.0) -> SearchResult | None:
        """Return the runs as of the last search, and have it repeated where it is old.

        Args:
            patience: seconds to wait where there was no search yet; None is returned where that is not long enough.
        """
        with self._changed:
            if self._searched is None or time.monotonic() - self._searched > SEARCH_EVERY:
                self._submit("", self._search)
            self._changed.wait_for(lambda: self._searched is not None, patience)
            return None if self._searched is None else self._found

    def run(self, asked: str) -> FoundRun | None:
        """Return the run of an id or a name; None for what was not found in the folders of TensorBoard."""
        with self._changed:
            return self._by_id.get(asked) or next((run for run in self._found.runs if run.name == asked), None)

    def account(self, run: FoundRun, patience: float = 0.0) -> CachedAccount | None:
        """Return what a run looks like; None where it was never read and reading takes longer than one waits.

        A run that is written all the time would be read all the time: between two readings five times as long passes
        as the first took, and what is returned may be that much older than the files.

        Args:
            run: as found.
            patience: seconds to wait.
        """
        files = version_of(run.folder)
        with self._changed:
            known = self._answers.get(run.id)
            if known is None or known.is_due(files):
                self._submit(run.id, lambda: self._read(run))
                self._changed.wait_for(lambda: run.id not in self._jobs, patience)
            if run.id in self._answers:
                self._answers.move_to_end(run.id)
            return self._answers.get(run.id)

    def version(self, run: FoundRun) -> str:
        """Return the version that :meth:`answer` would return, or another where it would read; nothing is read."""
        files = version_of(run.folder)
        with self._changed:
            known = self._answers.get(run.id)
            return f"{files}-?" if known is None or known.is_due(files) else known.version

    def _submit(self, name: str, job: Callable[[], None]) -> None:
        """Have something done; under the lock."""
        self._jobs.setdefault(name, job)
        if not self._working:
            self._working = True
            threading.Thread(target=self._work, name="fieldwatch tab", daemon=True).start()

    def _work(self) -> None:
        """Do what is to be done; an error that nobody foresaw ends this thread and is told in the terminal."""
        whole = False
        try:
            # Jobs run outside the lock; requests only wait for their result.
            while job := self._next():
                job()
            whole = True
        finally:
            with self._changed:
                if not whole:
                    self._fail()
                self._changed.notify_all()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            # Decided under the lock: a job that is added afterwards starts a new thread.
            self._working = bool(self._jobs)
            return next(iter(self._jobs.values()), None)

    def _done(self, name: str) -> None:
        self._jobs.pop(name, None)
        self._changed.notify_all()

    def _fail(self) -> None:
        """Note for the first job, the one that failed, that it did; the others wait for the next who asks."""
        self._working = False
        name = next(iter(self._jobs), None)
        if name:
            run = self._by_id[name]
            self._store(name, CachedAccount(files=version_of(run.folder), error=_BROKEN))
        elif name is not None:
            self._searched = time.monotonic()
        self._jobs.clear()

    def _search(self) -> None:
        search_result = find_runs(self._roots)
        with self._changed:
            self._found = search_result
            self._by_id = {run.id: run for run in search_result.runs}
            for gone in self._answers.keys() - self._by_id.keys():
                self._answers.pop(gone)
                self._readers.pop(gone, None)
            self._searched = time.monotonic()
            self._done("")

    def _read(self, run: FoundRun) -> None:
        read = self._readers.pop(run.id, None) or self._make_reader(run.folder)
        account = read()
        with self._changed:
            self._readers[run.id] = read
            self._store(run.id, account)
            self._evict_readers()
            self._done(run.id)

    def _store(self, name: str, account: CachedAccount) -> None:
        self._answers[name] = account
        self._answers.move_to_end(name)
        while len(self._answers) > _ANSWERS:
            self._answers.popitem(last=False)

    def _evict_readers(self) -> None:
        """Let go of the rows of those runs that were not read for longest, until the others fit."""
        held = 0
        # From the most recently read one; the newest always stays.
        for name in reversed(list(self._readers)):
            held += size_of(self._by_id[name].folder) if name in self._by_id else 0
            if held > READ_AT_ONCE and name != next(reversed(self._readers)):
                self._readers.pop(name)


def reader(folder: Path) -> Callable[[], CachedAccount]:
    """Return what reads a run again and again."""
    inner = AccountReader(folder)

    def read() -> CachedAccount:
        files = version_of(folder)
        began = time.monotonic()
        account, error = inner.read()
        ended = time.monotonic()
        stale_from = ended + LOOK_AGAIN if account and account["run"]["state"] not in ENDED else math.inf
        fresh_until = ended + min(REST * (ended - began), LONGEST_REST)
        return CachedAccount(files=files, account=account, error=error, fresh_until=fresh_until, stale_from=stale_from)

    return read
