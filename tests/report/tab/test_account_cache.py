import dataclasses
import json
import math
import threading
import time

from fieldwatch.report.tab import account_cache as module
from fieldwatch.report.tab.account_cache import AccountCache, CachedAccount
from fieldwatch.report.tab.folders import Root

LONG = 30.0


class Readers:
    """Makes readers that wait for `gate`, and counts how often they are made and called."""

    def __init__(self, *, broken=False):
        self.made = self.asked = 0
        self.gate = threading.Event()
        self.gate.set()
        self.broken = broken

    def __call__(self, folder):
        self.made += 1

        def read():
            files = module.version_of(folder)
            self.gate.wait(LONG)
            self.asked += 1
            if self.broken:
                raise KeyError("planted")
            return CachedAccount(files=files, account={"n": self.asked, "run": {"state": "finished"}})

        return read


def cache_of(folder, readers):
    cache = AccountCache([Root(folder=folder)], readers)
    (run,) = cache.search_result(LONG).runs
    return cache, run


def test_a_run_is_read_when_its_files_change_and_only_then(tmp_path, write_run, add_rows):
    readers = Readers()
    cache, run = cache_of(write_run(tmp_path / "run"), readers)
    assert readers.asked == 0
    first = cache.account(run, LONG)
    assert cache.account(run, LONG) is first
    assert cache.version(run) == first.version
    add_rows(tmp_path / "run", 20)
    assert cache.version(run) != first.version
    assert cache.account(run, LONG).account["n"] == 2
    assert readers.made == 1


def test_who_does_not_wait_gets_the_old_answer_or_none(tmp_path, write_run, add_rows):
    readers = Readers()
    cache, run = cache_of(write_run(tmp_path / "run"), readers)
    readers.gate.clear()
    assert cache.account(run) is None
    readers.gate.set()
    first = cache.account(run, LONG)
    readers.gate.clear()
    add_rows(tmp_path / "run", 20)
    assert cache.account(run) is first
    readers.gate.set()
    assert cache.account(run, LONG).account["n"] == 2


def test_many_who_ask_at_once_cost_one_reading(tmp_path, write_run):
    readers = Readers()
    cache, run = cache_of(write_run(tmp_path / "run"), readers)
    readers.gate.clear()
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(cache.account(run, LONG))) for _ in range(8)]
    for thread in threads:
        thread.start()
    readers.gate.set()
    for thread in threads:
        thread.join()
    assert [answer.account["n"] for answer in answers] == [1] * 8


def test_a_run_that_takes_long_is_left_alone_for_longer(tmp_path, write_run, add_rows, monkeypatch):
    cache = AccountCache([Root(folder=write_run(tmp_path / "run"))])
    (run,) = cache.search_result(LONG).runs
    monkeypatch.setattr(module, "PAUSE_FACTOR", 1e9)
    monkeypatch.setattr(module, "LONGEST_PAUSE", 1e6)
    first = cache.account(run, LONG)
    add_rows(tmp_path / "run", 20)
    assert cache.account(run, LONG) is first
    assert cache.version(run) == first.version


def test_an_error_that_nobody_foresaw_is_told_and_the_tab_goes_on(tmp_path, write_run, monkeypatch):
    told = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    readers = Readers(broken=True)
    cache, run = cache_of(write_run(tmp_path / "run"), readers)
    answer = cache.account(run, LONG)
    assert answer.account is None
    assert "terminal of TensorBoard" in answer.error
    assert [each.exc_type for each in told] == [KeyError]
    write_run(tmp_path / "run" / ".." / "other")
    assert cache.search_result(LONG).runs == (run,)
    readers.broken = False
    (tmp_path / "run" / "journal.jsonl").write_text("")
    assert cache.account(run, LONG).account["n"] == 2


def test_rows_are_kept_within_bounds(tmp_path, write_run, add_rows, monkeypatch):
    for i in range(4):
        write_run(tmp_path / f"run{i}")
    size = (tmp_path / "run0" / "journal.jsonl").stat().st_size
    monkeypatch.setattr(module, "MOST_CACHED_BYTES", 2.5 * size)
    monkeypatch.setattr(module, "_MOST_ANSWERS", 3)
    readers = Readers()
    cache = AccountCache([Root(folder=tmp_path)], readers)
    runs = cache.search_result(LONG).runs
    for run in runs:
        cache.account(run, LONG)
    assert list(cache._readers) == [run.id for run in runs[2:]]
    assert list(cache._answers) == [run.id for run in runs[1:]]
    add_rows(tmp_path / "run3", 20)
    cache.account(runs[3], LONG)
    assert readers.made == 4
    assert cache.account(runs[0], LONG).account["n"] == 6
    assert readers.made == 5


def test_new_runs_come_and_gone_ones_go(tmp_path, write_run, monkeypatch):
    monkeypatch.setattr(module, "SEARCH_EVERY", 0.0)
    first = write_run(tmp_path / "runs" / "first")
    cache = AccountCache([Root(folder=tmp_path / "runs")])
    (run,) = cache.search_result(LONG).runs
    cache.account(run, LONG)
    first.rename(tmp_path / "elsewhere")
    write_run(tmp_path / "runs" / "second")
    ends = time.monotonic() + LONG
    while [one.name for one in cache.search_result(0.1).runs] != ["second"]:
        assert time.monotonic() < ends
        time.sleep(0.01)
    assert cache.run(run.id) is None
    assert cache._answers == {}


def test_a_run_that_says_it_is_running_is_looked_at_although_it_is_silent(tmp_path, write_run, monkeypatch):
    monkeypatch.setattr(module, "PAUSE_FACTOR", 0.0)
    folder = write_run(tmp_path / "run")
    manifest = json.loads((folder / "run.json").read_text())
    del manifest["sha256"]
    (folder / "run.json").write_text(json.dumps(manifest | {"state": "running"}))
    cache = AccountCache([Root(folder=folder)])
    (run,) = cache.search_result(LONG).runs
    first = cache.account(run, LONG)
    running = first.account["run"]["state"] == "running"
    assert cache.version(run) == first.version
    assert math.isfinite(first.stale_from) == running
    cache._answers[run.id] = dataclasses.replace(first, stale_from=0.0)
    assert cache.version(run) != first.version
    again = cache.account(run, LONG)
    assert again is not first
    assert again.version == first.version
