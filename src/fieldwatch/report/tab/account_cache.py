"""Cache of the runs that the tab shows: one thread reads them; any number of requests get the results."""

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
"""Minimum number of seconds between two searches for runs; a search starts only when a request asks for runs."""
MOST_CACHED_BYTES: Final = 512 * 2**20
"""Maximum size in bytes of the journals whose rows stay in memory, so that a read only adds new rows."""
PAUSE_FACTOR: Final = 5.0
"""Pause between two reads of a run, as a multiple of the duration of the first: the training needs the machine more."""
LONGEST_PAUSE: Final = 30.0
"""Maximum pause in seconds: the first read of a long run takes long, later ones do not."""
RECHECK_AFTER: Final = 60.0
"""Seconds after which a run that claims to be running is read again although its files have not changed."""
_MOST_ANSWERS: Final = 32
_READ_FAILED: Final = (
    "the tab failed while it read this run: the traceback is in the terminal of TensorBoard; run `fieldwatch health` "
    "on the folder to check whether the record is damaged"
)


@dataclass(frozen=True, kw_only=True)
class CachedAccount:
    """Account of a run at the time of its last read.

    Attributes:
        files: version of the run's files.
        account: account of the run; None if it cannot be read.
        error: reason why it cannot be read; empty if it can.
        fresh_until: time before which it is not read again, by :func:`time.monotonic`.
        stale_from: time from which it is read again even if the files are the same: a killed process writes no more.
    """

    files: str
    account: Mapping[str, Any] | None = None
    error: str = ""
    fresh_until: float = 0.0
    stale_from: float = math.inf

    @property
    def version(self) -> str:
        """Text that differs whenever the content differs."""
        # With the state, which also changes without a change of the files.
        return f"{self.files}-{self.account['run']['state']}" if self.account else self.files

    def is_due(self, files: str) -> bool:
        """Return whether to read the run again.

        Args:
            files: current version of its files.
        """
        now = time.monotonic()
        return now > self.fresh_until and (files != self.files or now > self.stale_from)


class AccountCache:
    """Finds runs and reads them, each when it is requested and only if its files have changed.

    A single thread searches and reads, and ends when there is nothing left to do. Requests wait for it as long as they
    choose to. All methods may be called from several threads at once.

    Args:
        roots: folders to search for runs.
        make_reader: function that takes a run folder and returns a function; each call of that function returns the
            current account of the run.
    """

    def __init__(
        self, roots: Sequence[Root], make_reader: Callable[[Path], Callable[[], CachedAccount]] | None = None
    ) -> None:
        self._roots = roots
        self._make_reader = make_reader or reader
        # Guards everything below, and is notified whenever a job ends.
        self._changed = threading.Condition()
        self._jobs: OrderedDict[str, Callable[[], None]] = OrderedDict()
        self._working = False
        self._search_result = SearchResult()
        self._by_id: dict[str, FoundRun] = {}
        self._searched: float | None = None
        # Both in order of use, least recently used first.
        self._readers: OrderedDict[str, Callable[[], CachedAccount]] = OrderedDict()
        self._answers: OrderedDict[str, CachedAccount] = OrderedDict()

    def search_result(self, timeout: float = 0.0) -> SearchResult | None:
        """Return the runs found by the last search, and start another one if that is too old.

        Args:
            timeout: seconds to wait for the first search; None is returned if it takes longer.
        """
        with self._changed:
            if self._searched is None or time.monotonic() - self._searched > SEARCH_EVERY:
                self._submit("", self._search)
            self._changed.wait_for(lambda: self._searched is not None, timeout)
            return None if self._searched is None else self._search_result

    def run(self, id_or_name: str) -> FoundRun | None:
        """Return the run with an id or a name; None if the search found no such run."""
        with self._changed:
            by_name = (run for run in self._search_result.runs if run.name == id_or_name)
            return self._by_id.get(id_or_name) or next(by_name, None)

    def account(self, run: FoundRun, timeout: float = 0.0) -> CachedAccount | None:
        """Return the account of a run; None if it was never read and reading takes longer than ``timeout``.

        A run that is being written changes all the time. To leave the machine to the training, there is a pause of five
        times the duration of a read before the next, and the returned account may be that much older than the files.

        Args:
            run: run found by the search.
            timeout: seconds to wait.
        """
        files = version_of(run.folder)
        with self._changed:
            cached = self._answers.get(run.id)
            if cached is None or cached.is_due(files):
                self._submit(run.id, lambda: self._read(run))
                self._changed.wait_for(lambda: run.id not in self._jobs, timeout)
            if run.id in self._answers:
                self._answers.move_to_end(run.id)
            return self._answers.get(run.id)

    def version(self, run: FoundRun) -> str:
        """Return the version of the cached account, or another text if the run is due to be read; reads nothing."""
        files = version_of(run.folder)
        with self._changed:
            cached = self._answers.get(run.id)
            return f"{files}-?" if cached is None or cached.is_due(files) else cached.version

    def _submit(self, name: str, job: Callable[[], None]) -> None:
        """Add a job unless it is waiting already, and start the thread if it has ended. Requires the lock."""
        self._jobs.setdefault(name, job)
        if not self._working:
            self._working = True
            threading.Thread(target=self._work, name="fieldwatch tab", daemon=True).start()

    def _work(self) -> None:
        """Run all jobs. An unexpected error ends the thread, which prints it in the terminal."""
        completed = False
        try:
            # Jobs run outside the lock; requests only wait for their result.
            while job := self._next():
                job()
            completed = True
        finally:
            with self._changed:
                if not completed:
                    self._fail()
                self._changed.notify_all()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            # Decided under the lock: a job that is added afterwards starts a new thread.
            self._working = bool(self._jobs)
            # It stays in the queue while it runs, so that the same job is not added again.
            return next(iter(self._jobs.values()), None)

    def _done(self, name: str) -> None:
        self._jobs.pop(name, None)
        self._changed.notify_all()

    def _fail(self) -> None:
        """Store the failure of the first job, which was running; the others are submitted again by later requests."""
        self._working = False
        name = next(iter(self._jobs), None)
        # The search has an empty name. It counts as done, or every request would start it again.
        if name:
            run = self._by_id[name]
            self._store(name, CachedAccount(files=version_of(run.folder), error=_READ_FAILED))
        elif name is not None:
            self._searched = time.monotonic()
        self._jobs.clear()

    def _search(self) -> None:
        search_result = find_runs(self._roots)
        with self._changed:
            self._search_result = search_result
            self._by_id = {run.id: run for run in search_result.runs}
            for gone in self._answers.keys() - self._by_id.keys():
                self._answers.pop(gone)
                self._readers.pop(gone, None)
            self._searched = time.monotonic()
            self._done("")

    def _read(self, run: FoundRun) -> None:
        # Taken out while it reads: after an error it may be in any state, and is not used again.
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
        while len(self._answers) > _MOST_ANSWERS:
            self._answers.popitem(last=False)

    def _evict_readers(self) -> None:
        """Drop the rows of the runs that were not read for longest, until the others fit into the limit."""
        total = 0
        # From the most recently read one; the newest always stays.
        for name in reversed(list(self._readers)):
            total += size_of(self._by_id[name].folder) if name in self._by_id else 0
            if total > MOST_CACHED_BYTES and name != next(reversed(self._readers)):
                self._readers.pop(name)


def reader(folder: Path) -> Callable[[], CachedAccount]:
    """Return a function that reads the current account of a run; each call only reads what is new."""
    account_reader = AccountReader(folder)

    def read() -> CachedAccount:
        # Before reading: rows that are written meanwhile make the account due again.
        files = version_of(folder)
        began = time.monotonic()
        account, error = account_reader.read()
        ended = time.monotonic()
        stale_from = ended + RECHECK_AFTER if account and account["run"]["state"] not in ENDED else math.inf
        fresh_until = ended + min(PAUSE_FACTOR * (ended - began), LONGEST_PAUSE)
        return CachedAccount(files=files, account=account, error=error, fresh_until=fresh_until, stale_from=stale_from)

    return read
