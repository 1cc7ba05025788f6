"""On a completely full disk the run continues, and reports exactly what is lost. Errors are injected."""

import errno
import json
import os
import signal
import sqlite3
import threading
import time
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from torch import nn

from fieldwatch import Interrupted, Outputs, Profile, Run, Saving, Terms
from fieldwatch.base import DiskFullError
from fieldwatch.checkpoint import CheckpointError, Checkpoints
from fieldwatch.checkpoint import interval as intervals
from fieldwatch.health import GENERAL, examine
from fieldwatch.record import WriterFailed, read_blocks, read_events
from fieldwatch.record.disk import backlog
from fieldwatch.record.disk.reserve import RESERVE
from fieldwatch.record.memory import read_memory_log
from fieldwatch.record.sinks import Csv
from fieldwatch.run import full_disk, sinks


def place_of(file):
    return str(Path(f"/proc/self/fd/{file}").readlink())


class Disk:
    """A disk on which no write succeeds while it is full."""

    def __init__(self, folder, monkeypatch):
        self.folder = str(folder)
        self.full = False
        self.code = errno.ENOSPC
        self.reserve_too = True
        for name in ("write", "posix_fallocate"):
            monkeypatch.setattr(os, name, self._refusing(getattr(os, name)))
        monkeypatch.setattr(backlog.Reserve, "give_up", self._giving(backlog.Reserve.give_up))

    def _refusing(self, real):
        def call(file, *arguments):
            if self.full and place_of(file).startswith(self.folder):
                raise OSError(self.code, os.strerror(self.code))
            return real(file, *arguments)

        return call

    def _giving(self, real):
        def give(reserve, nbytes):
            # Another process takes the reserved blocks.
            return False if self.full and self.reserve_too else real(reserve, nbytes)

        return give


@pytest.fixture
def disk(tmp_path, monkeypatch):
    monkeypatch.setattr(intervals, "FIRST_RETRY", 0.02)
    monkeypatch.setattr(backlog, "RETRY_SECONDS", 0.02)
    return Disk(tmp_path, monkeypatch)


def train(folder, steps, *, each=lambda _run, _index: None, **options):
    torch.manual_seed(3)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with Run(folder, **{"saving": Saving(every=10)} | options) as run:
        run.stop_point.patience = 0.3
        run.track(model=model, optimizer=optimizer)
        run.resume()
        for step in run.steps(steps):
            inputs = torch.randn(8, 6)
            terms = Terms(fit=(1.0, (model(inputs) - inputs[:, :3]).square().mean()))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer)
            each(run, step.index)
    return model


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def steps_of(folder):
    return [step for block in read_blocks(folder) if block.axis == "step" for step in block.steps.tolist()]


def events_of(folder, kind):
    return [event for event in read_events(folder) if event["kind"] == kind]


def full_between(disk, first, last):
    def each(run, index):
        if index == first:
            _ = run.checkpoints  # the save in flight is among them
            run.flush()
            disk.full = True
        if index == last:
            time.sleep(0.05)
            disk.full = False

    return each


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_loses_no_row_and_no_event(tmp_path, disk, capfd, code):
    disk.code = code

    def each(run, index):
        full_between(disk, 130, 330)(run, index)
        if index == 200:
            run.histogram("Weights/all", torch.arange(50.0), index)
            run.event("note", text="in the middle")

    def own_sinks(place):
        return (*sinks.default_sinks(place), Csv(place / "m.csv"))

    more = {"profile": Profile(interval=20), "outputs": Outputs(sinks=own_sinks)}
    model = train(tmp_path / "run", 450, each=each, **more)
    twin = train(tmp_path / "twin", 450, **more)
    assert same(model, twin)
    run = tmp_path / "run"
    assert steps_of(run) == list(range(450))
    assert [event["step"] for event in events_of(run, "note")] == [200]
    assert [census["step"] for census in read_memory_log(run)] == list(range(19, 450, 20))
    (full,) = events_of(run, "disk_full")
    (freed,) = events_of(run, "disk_freed")
    assert 130 <= full["step"] <= freed["first"] + 64
    assert freed["rows"] >= 128
    assert (freed["lost"], freed["dropped"]) == (0, 0)
    assert steps_in_csv(run / "m.csv") == list(range(450))
    log = (run / "log.txt").read_text().splitlines()
    assert [line.split()[0][-1] for line in log] == ["Z"] * len(log)  # no line is torn
    lines = capfd.readouterr().err.splitlines()
    assert len([line for line in lines if "is full" in line and str(run) in line]) == 1
    assert len([line for line in lines if f"{freed['rows']} rows waited, 0 lost" in line]) == 1
    assert "0 lost" in next(
        one.message for one in examine(run, GENERAL) if one.rule == "DiskFull" and "lost" in one.message
    )
    assert not (run / RESERVE).exists()


def steps_in_csv(path):
    lines = path.read_text().splitlines()[1:]
    return sorted({int(line.split(",")[0]) for line in lines})


def test_tensorboard_files_contain_every_step_once_after_a_full_disk(tmp_path, disk):
    train(tmp_path / "run", 400, each=full_between(disk, 100, 300))
    (path,) = (tmp_path / "run" / "tensorboard").glob("events*")
    steps = [e.step for e in EventFileLoader(str(path)).Load() if any(v.tag == "Loss/total" for v in e.summary.value)]
    assert steps == list(range(400))


def test_rows_use_the_reserve_first(tmp_path, disk):
    disk.reserve_too = False
    seen = []
    real = os.write

    def write(file, data):
        path = place_of(file)
        if disk.full and path.endswith("journal.jsonl") and not seen:
            seen.append(path)
            raise OSError(errno.ENOSPC, "full")
        disk_was, disk.full = disk.full, disk.full and not path.endswith(".jsonl")
        try:
            return real(file, data)
        finally:
            disk.full = disk_was

    os.write = write
    try:
        train(tmp_path / "run", 300, each=full_between(disk, 64, 200))
    finally:
        os.write = real
    (freed,) = events_of(tmp_path / "run", "disk_freed")
    assert seen
    assert freed["rows"] == 0  # every row fitted into the reserve
    assert freed["writes"] > 0  # and TensorBoard's records were delayed
    assert steps_of(tmp_path / "run") == list(range(300))


def test_an_exceeded_backlog_ends_the_run_with_a_crash_folder(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(backlog, "LIMIT", 50_000)
    with pytest.raises(WriterFailed, match="at most 50,000 bytes") as raised:
        train(tmp_path / "run", 5000, each=full_between(disk, 95, -1))
    assert isinstance(raised.value.__cause__, DiskFullError)
    disk.full = False
    (report,) = (tmp_path / "run" / "crash").glob("*/crash.json")
    crash = json.loads(report.read_text())
    assert crash["cause"] == "disk"
    assert crash["rows_waiting"] > 0
    assert crash["last_checkpoint"] == 90
    assert any("run.json" in note for note in raised.value.__notes__)  # no byte was free for its new state
    assert json.loads((tmp_path / "run" / "run.json").read_text())["state"] == "running"
    model = train(tmp_path / "run", 300)
    assert same(model, train(tmp_path / "twin", 300))
    assert steps_of(tmp_path / "run") == list(range(300))


def test_a_run_that_ends_on_a_full_disk_waits_for_space(tmp_path, disk, capfd):
    def each(run, index):
        if index == 55:
            _ = run.checkpoints  # the save in flight is among them
            run.flush()
            disk.full = True
            threading.Timer(1.0, lambda: setattr(disk, "full", False)).start()

    model = train(tmp_path / "run", 60, each=each)
    assert same(model, train(tmp_path / "twin", 60))
    assert steps_of(tmp_path / "run") == list(range(60))
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps()[-1] == 60
    assert json.loads((tmp_path / "run" / "run.json").read_text())["state"] == "finished"
    assert "for free space" in capfd.readouterr().err


def test_a_run_without_checkpoints_waits_for_space_too(tmp_path, disk):
    with Run(tmp_path / "run") as run:
        for step in run.steps(40):
            step.record({"Loss/total": 1.0})
            if step.index == 20:
                disk.full = True
                threading.Timer(0.5, lambda: setattr(disk, "full", False)).start()
    assert steps_of(tmp_path / "run") == list(range(40))
    assert not disk.full


def test_an_end_that_waits_too_long_reports_exactly_what_is_lost(tmp_path, disk, monkeypatch, capfd):
    monkeypatch.setattr(full_disk, "ROOM_PATIENCE", 0.3)
    with pytest.raises(CheckpointError, match="step 60 was not saved"):
        train(tmp_path / "run", 60, each=full_between(disk, 55, -1))
    assert "rows" in capfd.readouterr().err
    disk.full = False
    assert list((tmp_path / "run" / "crash").glob("*/crash.json"))
    assert same(train(tmp_path / "run", 60), train(tmp_path / "twin", 60))
    assert steps_of(tmp_path / "run") == list(range(60))


@pytest.mark.machine
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_on_a_full_disk_ends_the_run_in_time_and_the_resumed_run_is_equal(tmp_path, disk, capfd, number):
    def each(run, index):
        full_between(disk, 33, -1)(run, index)
        if index == 38:
            os.kill(os.getpid(), number)

    train(tmp_path / "first", 2)  # imports of torch at the first step take seconds
    began = time.monotonic()
    with pytest.raises(CheckpointError, match="step 39 was not saved"):
        train(tmp_path / "run", 60, each=each)
    assert time.monotonic() - began < 5
    assert "lost;" in capfd.readouterr().err
    disk.full = False
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps()[-1] == 30
    assert same(train(tmp_path / "run", 60), train(tmp_path / "twin", 60))
    assert steps_of(tmp_path / "run") == list(range(60))


def test_a_signal_is_handled_normally_once_there_is_space(tmp_path, disk):
    def each(run, index):
        full_between(disk, 33, -1)(run, index)
        if index == 38:
            threading.Timer(0.1, lambda: setattr(disk, "full", False)).start()
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        train(tmp_path / "run", 60, each=each)
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps()[-1] == 39


def test_sigkill_on_a_full_disk_loses_only_the_steps_since_the_last_checkpoint(tmp_path, disk):
    child = os.fork()
    if not child:

        def each(run, index):
            full_between(disk, 33, -1)(run, index)
            if index == 58:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            train(tmp_path / "run", 60, each=each)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert (tmp_path / "run" / RESERVE).exists()
    assert same(train(tmp_path / "run", 90), train(tmp_path / "twin", 90))
    assert steps_of(tmp_path / "run") == list(range(90))
    assert not (tmp_path / "run" / RESERVE).exists()


def test_a_run_that_starts_on_a_full_disk_is_refused_and_releases_everything(tmp_path, disk):
    disk.full = True
    with pytest.raises(DiskFullError) as raised:
        train(tmp_path / "run", 20)
    assert raised.value.errno == errno.ENOSPC
    disk.full = False
    train(tmp_path / "run", 20)  # the lock, the signal handlers and the record were released
    assert steps_of(tmp_path / "run") == list(range(20))


class Foreign:
    """A sink of another library, which raises its own error and does not know what it has written."""

    def __init__(self, disk, error):
        self.disk = disk
        self.error = error
        self.steps = []

    def __call__(self, block):
        if self.disk.full:
            try:
                raise self.error
            except type(self.error):
                raise RuntimeError("the store said no")  # noqa: B904  as libraries do
        self.steps += block.steps.tolist()


def sqlite_full():
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), sqlite_full()])
def test_a_sink_that_cannot_defer_writes_is_dropped_with_an_event_and_a_finding(tmp_path, disk, error):
    sink = Foreign(disk, error)
    train(tmp_path / "run", 300, each=full_between(disk, 100, 200), outputs=Outputs(sinks=(sink,)))
    (dropped,) = events_of(tmp_path / "run", "sink_dropped")
    assert dropped["sink"] == "Foreign"
    assert sink.steps == list(range(len(sink.steps)))
    assert len(sink.steps) < 200
    assert steps_of(tmp_path / "run") == list(range(300))
    assert "Foreign" in {one.subject for one in examine(tmp_path / "run", GENERAL) if one.rule == "DiskFull"}


def test_a_sink_that_fails_for_another_reason_ends_the_run(tmp_path, disk):
    sink = Foreign(disk, OSError(errno.EIO, "Input/output error"))
    with pytest.raises(WriterFailed, match="store said no"):
        train(tmp_path / "run", 300, each=full_between(disk, 100, 200), outputs=Outputs(sinks=(sink,)))


def test_an_evaluation_that_cannot_write_images_is_reported_and_the_run_continues(tmp_path, disk):
    def each(run, index):
        full_between(disk, 20, 40)(run, index)
        if index == 30:
            with run.evaluation("evaluation"):
                file = os.open(tmp_path / "picture", os.O_WRONLY | os.O_CREAT)
                os.write(file, b"pixels")

    train(tmp_path / "run", 60, each=each)
    assert [event["step"] for event in events_of(tmp_path / "run", "validation_failed")] == [30]
    assert steps_of(tmp_path / "run") == list(range(60))
