"""Saving in the background: stored state, full disks, and the test checkpoint before any training."""

import errno
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
import torch

from fieldwatch import Autosave, ConfigMismatch, Interrupted, Outputs, Run, Saving
from fieldwatch.checkpoint import CheckpointError, Checkpoints, Retention
from fieldwatch.checkpoint import interval as intervals
from fieldwatch.record import WriterFailed, read_events, read_history
from fieldwatch.run import full_disk
from fieldwatch.run import saving as module


def train(folder, steps, *, each=lambda _run, _step: None, size=1000, **options):
    """Run with a tensor that holds the number of finished steps, changed in place as by an optimizer."""
    state = torch.zeros(size)
    with Run(folder, **{"saving": Saving(every=5), "outputs": Outputs(rules=(), sinks=())} | options) as run:
        run.track(state=state)
        run.resume()
        for step in run.steps(steps):
            state.fill_(step.index + 1)
            step.record({"Loss/total": 1.0})
            each(run, step)
    return run


def events_of(folder, kind):
    return [event for event in read_events(folder) if event["kind"] == kind]


def stored(folder, step):
    return Checkpoints(folder / "checkpoints").read(step)["state"]


class Gate:
    """Delays writes until it is opened."""

    def __init__(self, monkeypatch):
        self.opened = threading.Event()
        self.begun = threading.Semaphore(0)
        self.writes = []
        real = Checkpoints.write

        def write(checkpoints, draft, **options):
            self.writes.append(draft.step)
            self.begun.release()
            assert self.opened.wait(10)
            return real(checkpoints, draft, **options)

        monkeypatch.setattr(Checkpoints, "write", write)


def test_a_checkpoint_has_the_state_of_its_step_though_training_continued(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)
    monkeypatch.setattr(module, "SMALL_STATE_BYTES", 0)  # no planned step waits
    seen = []

    def each(run, step):
        if step.index == 8:
            assert gate.begun.acquire(timeout=10)
            seen.append((list(gate.writes), events_of(tmp_path, "checkpoint")))
            gate.opened.set()
            assert run.checkpoints.steps() == [5]

    train(tmp_path, 9, each=each, saving=Saving(every=5, keep=Retention(last=9)))
    assert seen == [([5], [])]  # in progress, and not acknowledged
    assert stored(tmp_path, 5).eq(5).all()
    assert [event["step"] for event in events_of(tmp_path, "checkpoint")] == [4, 8]


def test_a_periodic_save_is_postponed_and_a_requested_one_waits(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)
    monkeypatch.setattr(module, "SMALL_STATE_BYTES", 0)

    def each(run, step):
        if step.index == 11:  # 5 is in progress, 10 was postponed
            assert gate.begun.acquire(timeout=10)
            assert gate.writes == [5]
            threading.Timer(0.05, gate.opened.set).start()
            run.save_after_step({"psnr": 1.0})

    train(tmp_path, 13, each=each, saving=Saving(every=5, keep=Retention(last=9)))
    assert gate.writes == [5, 12, 13]


def test_a_postponed_save_happens_as_soon_as_possible(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)
    monkeypatch.setattr(module, "SMALL_STATE_BYTES", 0)

    def each(run, step):
        if step.index == 6:
            gate.opened.set()
            _ = run.checkpoints

    train(tmp_path, 9, each=each, saving=Saving(every=3, keep=Retention(last=9)))
    assert gate.writes == [3, 7, 9]


def test_small_states_are_saved_at_exactly_the_planned_steps(tmp_path):
    train(tmp_path, 12, saving=Saving(every=1, keep=Retention(last=99)))
    assert Checkpoints(tmp_path / "checkpoints").steps() == list(range(1, 13))
    assert all(stored(tmp_path, step).eq(step).all() for step in (1, 7, 12))


def test_rows_are_synced_before_the_checkpoint_and_the_event_comes_last(tmp_path, monkeypatch):
    calls = []

    def noted(name, place):
        real = getattr(os, name)

        def call(*args, **kwargs):
            calls.append((name, Path(place(args)).name, threading.current_thread().name))
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    noted("fsync", lambda args: Path(f"/proc/self/fd/{args[0]}").readlink())
    noted("rename", lambda args: os.fspath(args[1]))
    train(tmp_path, 7)
    monkeypatch.undo()
    behind = [call[:2] for call in calls if call[2] == "fieldwatch-saver"]
    assert behind[:2] == [("fsync", "journal.jsonl"), ("fsync", "events.jsonl")]
    assert behind.index(("rename", "step_0000000005")) > 1
    assert behind[behind.index(("rename", "step_0000000005")) + 1] == ("fsync", "checkpoints")
    assert read_history(tmp_path)["Loss/total"].steps.tolist() == list(range(7))


@pytest.mark.parametrize("code", ["ENOSPC", "EDQUOT", "EIO", "EROFS"])
def test_a_failing_disk_pauses_checkpoints_and_not_the_run(tmp_path, monkeypatch, code):
    monkeypatch.setattr(intervals, "FIRST_RETRY", 0.02)
    real = os.posix_fallocate
    broken = threading.Event()

    def full(*args):
        if broken.is_set():
            raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))
        return real(*args)

    monkeypatch.setattr(os, "posix_fallocate", full)

    def each(run, step):
        if step.index == 6:
            _ = run.checkpoints  # those of step 5 are on the disk
            broken.set()
        if step.index == 20:
            assert [event["step"] for event in events_of(tmp_path, "checkpoint")] == [4]
            assert Checkpoints(tmp_path / "checkpoints").steps() == [5]
            broken.clear()
        time.sleep(0.01 if 10 <= step.index < 45 else 0)

    train(tmp_path, 60, each=each)
    failed = events_of(tmp_path, "checkpoint_failed")
    (recovered,) = events_of(tmp_path, "checkpoints_recovered")
    assert failed[0]["step"] == 9
    assert os.strerror(getattr(errno, code)) in failed[0]["reason"]
    assert failed[0]["free_bytes"] > 0
    pauses = [event["tried_again_in"] for event in failed]
    assert pauses[:2] == [0.02, 0.04][: len(pauses)]
    assert 9 < recovered["step"] < 59
    assert recovered["failures"] == len(failed)
    assert Checkpoints(tmp_path / "checkpoints").steps()[-1] == 60


def test_a_final_save_that_keeps_failing_raises(tmp_path, monkeypatch):
    monkeypatch.setattr(full_disk, "ROOM_PATIENCE", 0.5)

    def full(*_args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def each(run, step):
        if step.index == 6:
            assert run.checkpoints.steps() == [5]
            monkeypatch.setattr(os, "posix_fallocate", full)

    with pytest.raises(CheckpointError, match=r"step 7 was not saved .* earlier checkpoints \[5\] are untouched"):
        train(tmp_path, 7, each=each)


def test_an_unexpected_error_in_the_thread_is_raised_on_the_next_step(tmp_path, monkeypatch):
    real = Checkpoints.write

    def write(checkpoints, draft, **options):
        if draft.step == 5:
            raise KeyboardInterrupt("out of the blue")
        return real(checkpoints, draft, **options)

    monkeypatch.setattr(Checkpoints, "write", write)
    with pytest.raises(CheckpointError, match=r"KeyboardInterrupt .*thread fieldwatch-saver"):
        train(tmp_path, 1000, each=lambda _run, step: time.sleep(0.001 if step.index < 900 else 0.1))


def test_a_record_that_fails_while_a_save_waits_ends_the_run(tmp_path):
    def broken(block):
        if block.steps[-1] >= 4:
            raise OSError("the sink is gone")

    with pytest.raises(WriterFailed, match="sink is gone"):
        train(tmp_path, 1000, outputs=Outputs(rules=(), sinks=(broken,)))
    assert Checkpoints(tmp_path / "checkpoints").steps() == []


def test_with_too_little_memory_training_waits_for_the_save_and_reports_it(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "free_memory", lambda: 0)
    train(tmp_path, 12)
    assert [event["step"] for event in events_of(tmp_path, "checkpoint")] == [4, 9, 11]
    events = events_of(tmp_path, "saved_while_training_waits")
    assert [event["step"] for event in events] == [4, 9]
    assert "bytes of memory" in events[0]["reason"]
    assert stored(tmp_path, 10).eq(10).all()


def test_auto_saves_by_time_and_reports_an_exceeded_budget(tmp_path):
    autosave = Autosave(stall_budget=1e-6, loss_limit=0.1, least=0.05)
    train(tmp_path, 40, each=lambda *_: time.sleep(0.01), saving=Saving(every="auto", autosave=autosave))
    saved = events_of(tmp_path, "checkpoint")
    assert len(saved) >= 3
    (event,) = events_of(tmp_path, "saving_over_budget")
    assert event["share"] > event["stall_budget"]
    assert event["loss_limit"] == 0.1


def test_a_short_run_saves_only_its_end(tmp_path):
    train(tmp_path, 30, saving=Saving(every="auto"))
    assert [event["step"] for event in events_of(tmp_path, "checkpoint")] == [29]


def test_a_disk_that_is_too_small_is_reported_before_any_training(tmp_path, monkeypatch):
    def full(_descriptor, _offset, size):
        if size > 5_000_000:  # the run's own reserve is smaller
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    reached = []
    with pytest.raises(CheckpointError, match=r"bytes .*free space"):
        train(tmp_path, 5, size=2_000_000, each=lambda *_: reached.append(1))
    assert reached == []
    assert not (tmp_path / "checkpoints").exists()


def test_the_test_checkpoint_is_written_on_resume_too_and_removed(tmp_path):
    train(tmp_path, 3)
    train(tmp_path, 6)
    assert [event["step"] for event in events_of(tmp_path, "preflight")] == [0, 3]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step_0000000005", "step_0000000006"]


def test_a_run_whose_folder_is_lost_resumes_from_its_mirror(tmp_path):
    url = f"file://{tmp_path}/far"
    config = {"lr": 1.0}
    train(tmp_path / "run", 12, config=config, saving=Saving(every=5, mirror=url))
    assert [event["step"] for event in events_of(tmp_path / "run", "mirrored")][-1] == 11
    shutil.rmtree(tmp_path / "run")
    starts = []
    with pytest.raises(ConfigMismatch, match=r"lr: stored 1\.0, given 2\.0"):
        train(tmp_path / "other", 14, config={"lr": 2.0}, saving=Saving(every=5, mirror=url))
    with pytest.raises(FileExistsError, match="far already holds"):
        train(tmp_path / "other", 14, config=config, saving=Saving(every=5, mirror=url, resume="never"))
    train(
        tmp_path / "run",
        14,
        config=config,
        each=lambda _run, step: starts.append(step.index),
        saving=Saving(every=5, mirror=url),
    )
    assert starts == [12, 13]
    assert [event["step"] for event in events_of(tmp_path / "run", "restored_from_mirror")] == [11]
    assert stored(tmp_path / "run", 14).eq(14).all()


def test_the_mirror_replaces_damaged_checkpoints(tmp_path):
    url = f"file://{tmp_path}/far"
    train(tmp_path / "run", 6, saving=Saving(every=5, mirror=url))
    for path in (tmp_path / "run" / "checkpoints").glob("step_*/tensors.safetensors"):
        path.write_bytes(b"\1" + path.read_bytes()[1:])
    starts = []
    train(tmp_path / "run", 8, each=lambda _run, step: starts.append(step.index), saving=Saving(every=5, mirror=url))
    assert starts == [6, 7]


def test_a_failing_mirror_is_reported_and_stops_nothing(tmp_path):
    (tmp_path / "far").write_text("a file where the folder should be")
    train(tmp_path / "run", 6, saving=Saving(every=5, mirror=f"file://{tmp_path}/far/place"))
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [5, 6]
    assert all("far/place" in event["reason"] for event in events_of(tmp_path / "run", "mirror_failed"))
    assert events_of(tmp_path / "run", "mirror_failed")


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a tmpfs cannot be mounted here; errors are provoked instead")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_fills_up_during_a_run_and_is_cleared_again(small_disk, monkeypatch):
    monkeypatch.setattr(intervals, "FIRST_RETRY", 0.02)
    ballast = small_disk / "ballast"
    folder = small_disk / "run"

    def each(run, step):
        if step.index == 6:
            assert run.checkpoints.steps() == [5]
            ballast.write_bytes(bytes(shutil.disk_usage(small_disk).free - 300_000))
        if step.index == 20:
            _ = run.checkpoints
            assert Checkpoints(folder / "checkpoints").steps() == [5]
            ballast.unlink()
        time.sleep(0.01)

    train(folder, 60, each=each, size=250_000)
    failed = events_of(folder, "checkpoint_failed")
    assert failed
    assert "No space left" in failed[0]["reason"]
    assert len(events_of(folder, "checkpoints_recovered")) == 1
    assert stored(folder, 60).eq(60).all()


def test_a_signal_during_a_save_saves_the_last_step_too(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)

    def each(_run, step):
        if step.index == 5:
            os.kill(os.getpid(), 15)
            threading.Timer(0.05, gate.opened.set).start()

    with pytest.raises(Interrupted):
        train(tmp_path, 100, each=each)
    assert Checkpoints(tmp_path / "checkpoints").steps() == [5, 6]


@pytest.mark.parametrize("known", [False, True], ids=["noticed by the writer thread", "noticed before the snapshot"])
def test_a_requested_save_that_is_refused_is_retried_with_its_metrics(tmp_path, known):
    parameter = torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    with Run(tmp_path, saving=Saving(every=None), outputs=Outputs(rules=(), sinks=())) as run:
        run.track(parameter=parameter.data, optimizer=optimizer)
        for step in run.steps(200):
            bad = step.index in (9, 10)
            parameter.grad = torch.tensor(float("nan") if bad else 1.0)
            step.update(optimizer)
            if step.index == 10:
                run.save_after_step({"psnr": 31.0})
                if known:
                    run._session.record.flush()
    first, last = events_of(tmp_path, "checkpoint")
    assert 10 < first["step"] < last["step"] == 199
    assert first["metrics"] == {"psnr": 31.0}
    assert last["metrics"] == {}


def test_metrics_of_a_save_that_failed_rank_the_checkpoint_of_the_next_attempt(tmp_path, monkeypatch):
    monkeypatch.setattr(intervals, "FIRST_RETRY", 0.0)
    real = os.posix_fallocate
    broken = threading.Event()

    def full(*args):
        if broken.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args)

    monkeypatch.setattr(os, "posix_fallocate", full)

    def each(run, step):
        if step.index == 6:
            _ = run.checkpoints  # those of step 5 are on the disk
            broken.set()
            run.save_after_step({"psnr": 31.0})
        if step.index == 8:
            _ = run.checkpoints  # the save has failed
            broken.clear()

    train(tmp_path, 20, each=each)
    failed = events_of(tmp_path, "checkpoint_failed")
    assert (failed[0]["step"], failed[0]["metrics"]) == (6, {"psnr": 31.0})
    later = [event for event in events_of(tmp_path, "checkpoint") if event["step"] > 6]
    assert later[0]["metrics"] == {"psnr": 31.0}
    assert [event["metrics"] for event in later[1:]] == [{}] * (len(later) - 1)


def test_metrics_of_a_save_refused_at_the_last_step_rank_the_last_checkpoint(tmp_path):
    parameter = torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    with Run(tmp_path, saving=Saving(every=None), outputs=Outputs(rules=(), sinks=())) as run:
        run.track(parameter=parameter.data, optimizer=optimizer)
        for step in run.steps(4):
            parameter.grad = torch.tensor(float("nan") if step.index == 3 else 1.0)
            step.update(optimizer)
            if step.index == 3:
                run.save_after_step({"psnr": 31.0})
    assert Checkpoints(tmp_path / "checkpoints").find(4).metrics == {"psnr": 31.0}
