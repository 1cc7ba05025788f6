import dataclasses
import json
import math
import threading
import time

from fieldwatch.report.tab import shelf as module
from fieldwatch.report.tab.account_cache import Answer, Shelf
from fieldwatch.report.tab.folders import Root

LONG = 30.0


class Readers:
    """Makes readers that count how often they are made and asked, and wait for `gate`."""

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
            return Answer(files=files, account={"n": self.asked, "run": {"state": "finished"}})

        return read


def shelf_of(folder, readers):
    shelf = Shelf([Root(folder=folder)], readers)
    (run,) = shelf.found(LONG).runs
    return shelf, run


def test_a_run_is_read_when_its_files_change_and_only_then(tmp_path, write_run, add_rows):
    readers = Readers()
    shelf, run = shelf_of(write_run(tmp_path / "run"), readers)
    assert readers.asked == 0
    first = shelf.answer(run, LONG)
    assert shelf.answer(run, LONG) is first
    assert shelf.version(run) == first.version
    add_rows(tmp_path / "run", 20)
    assert shelf.version(run) != first.version
    assert shelf.answer(run, LONG).account["n"] == 2
    assert readers.made == 1


def test_who_does_not_wait_gets_the_old_answer_or_none(tmp_path, write_run, add_rows):
    readers = Readers()
    shelf, run = shelf_of(write_run(tmp_path / "run"), readers)
    readers.gate.clear()
    assert shelf.answer(run) is None
    readers.gate.set()
    first = shelf.answer(run, LONG)
    readers.gate.clear()
    add_rows(tmp_path / "run", 20)
    assert shelf.answer(run) is first
    readers.gate.set()
    assert shelf.answer(run, LONG).account["n"] == 2


def test_many_who_ask_at_once_cost_one_reading(tmp_path, write_run):
    readers = Readers()
    shelf, run = shelf_of(write_run(tmp_path / "run"), readers)
    readers.gate.clear()
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(shelf.answer(run, LONG))) for _ in range(8)]
    for thread in threads:
        thread.start()
    readers.gate.set()
    for thread in threads:
        thread.join()
    assert [answer.account["n"] for answer in answers] == [1] * 8


def test_a_run_that_takes_long_is_left_alone_for_longer(tmp_path, write_run, add_rows, monkeypatch):
    shelf = Shelf([Root(folder=write_run(tmp_path / "run"))])
    (run,) = shelf.found(LONG).runs
    monkeypatch.setattr(module, "REST", 1e9)
    monkeypatch.setattr(module, "LONGEST_REST", 1e6)
    first = shelf.answer(run, LONG)
    add_rows(tmp_path / "run", 20)
    assert shelf.answer(run, LONG) is first
    assert shelf.version(run) == first.version


def test_an_error_that_nobody_foresaw_is_told_and_the_tab_goes_on(tmp_path, write_run, monkeypatch):
    told = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    readers = Readers(broken=True)
    shelf, run = shelf_of(write_run(tmp_path / "run"), readers)
    answer = shelf.answer(run, LONG)
    assert answer.account is None
    assert "terminal of TensorBoard" in answer.error
    assert [each.exc_type for each in told] == [KeyError]
    write_run(tmp_path / "run" / ".." / "other")
    assert shelf.found(LONG).runs == (run,)
    readers.broken = False
    (tmp_path / "run" / "journal.jsonl").write_text("")
    assert shelf.answer(run, LONG).account["n"] == 2


def test_rows_are_kept_within_bounds(tmp_path, write_run, add_rows, monkeypatch):
    for i in range(4):
        write_run(tmp_path / f"run{i}")
    size = (tmp_path / "run0" / "journal.jsonl").stat().st_size
    monkeypatch.setattr(module, "READ_AT_ONCE", 2.5 * size)
    monkeypatch.setattr(module, "_ANSWERS", 3)
    readers = Readers()
    shelf = Shelf([Root(folder=tmp_path)], readers)
    runs = shelf.found(LONG).runs
    for run in runs:
        shelf.answer(run, LONG)
    assert list(shelf._readers) == [run.id for run in runs[2:]]
    assert list(shelf._answers) == [run.id for run in runs[1:]]
    add_rows(tmp_path / "run3", 20)
    shelf.answer(runs[3], LONG)
    assert readers.made == 4
    assert shelf.answer(runs[0], LONG).account["n"] == 6
    assert readers.made == 5


def test_new_runs_come_and_gone_ones_go(tmp_path, write_run, monkeypatch):
    monkeypatch.setattr(module, "SEARCH_EVERY", 0.0)
    first = write_run(tmp_path / "runs" / "first")
    shelf = Shelf([Root(folder=tmp_path / "runs")])
    (run,) = shelf.found(LONG).runs
    shelf.answer(run, LONG)
    first.rename(tmp_path / "elsewhere")
    write_run(tmp_path / "runs" / "second")
    ends = time.monotonic() + LONG
    while [one.name for one in shelf.found(0.1).runs] != ["second"]:
        assert time.monotonic() < ends
        time.sleep(0.01)
    assert shelf.run(run.id) is None
    assert shelf._answers == {}


def test_a_run_that_says_it_is_running_is_looked_at_although_it_is_silent(tmp_path, write_run, monkeypatch):
    monkeypatch.setattr(module, "REST", 0.0)
    folder = write_run(tmp_path / "run")
    manifest = json.loads((folder / "run.json").read_text())
    del manifest["sha256"]
    (folder / "run.json").write_text(json.dumps(manifest | {"state": "running"}))
    shelf = Shelf([Root(folder=folder)])
    (run,) = shelf.found(LONG).runs
    first = shelf.answer(run, LONG)
    running = first.account["run"]["state"] == "running"
    assert shelf.version(run) == first.version
    assert math.isfinite(first.stale_from) == running
    shelf._answers[run.id] = dataclasses.replace(first, stale_from=0.0)
    assert shelf.version(run) != first.version
    again = shelf.answer(run, LONG)
    assert again is not first
    assert again.version == first.version
