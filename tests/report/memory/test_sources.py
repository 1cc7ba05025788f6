import os

import numpy as np
import pytest

from fieldwatch.record.memory import TensorLog
from fieldwatch.record.memory.tensor_reading import NotATensorLog
from fieldwatch.report.memory import labels, latest, read_trace

MB = 2**20


def test_a_run_gives_its_memory_log_joined_with_journal_and_events(run_folder):
    trace = read_trace(run_folder())
    assert (trace.kind, trace.label, len(trace)) == ("memory.jsonl", "run", 200)
    assert {kind: len(steps) for kind, steps in trace.events.items()} == {"growth": 25, "evaluation": 8}
    assert (len(trace.loss.values), trace.peak.values[0]) == (10000, 5000)
    account = sum(values for values in trace.account.values())
    assert account == pytest.approx(trace.allocated, abs=1e-6)
    assert trace.components["means"][0] == pytest.approx(4 * 150)
    assert (trace.largest[0].owner, trace.largest[0].views) == ("means (parameters)", 2)


def test_without_a_memory_log_come_the_tensor_logs_of_all_starts_in_order(log_file, tmp_path):
    log_file([8000] * 10, name="run/profiles/tensor_profile_20260129_120000.log")
    log_file([9000] * 10, name="run/profiles/tensor_profile_20260130_120000.log", first=300)
    log_file([], name="run/profiles/tensor_profile_20260131_120000.log")
    for place in ("run", "run/profiles"):
        trace = read_trace(tmp_path / place)
        assert trace.steps.tolist() == list(range(50, 800, 50))
        assert (trace.allocated[4], trace.allocated[5], trace.replaced) == (8000, 9000, 5)


def test_without_any_profile_the_journal_s_counters_are_told(run_folder):
    folder = run_folder()
    (folder / "memory.jsonl").unlink()
    trace = read_trace(folder)
    assert (trace.kind, len(trace), trace.allocated[0]) == ("journal", 10000, 2000)
    assert np.isnan(trace.reserved).all()
    assert "train with --profile-tensors" in trace.notes[0]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("nothing", "does not exist"),
        ("empty/", "no record of memory: expected memory.jsonl"),
        ("a.csv", "is not a tensor log"),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path, made, message):
    if made.endswith("/"):
        (tmp_path / made).mkdir()
    elif made != "nothing":
        (tmp_path / made).write_text("a,b\n")
    with pytest.raises((FileNotFoundError, NotATensorLog), match=message):
        read_trace(tmp_path / made)


def test_a_folder_of_runs_names_them(run_folder, tmp_path):
    run_folder("one")
    with pytest.raises(FileNotFoundError, match="the runs one:"):
        read_trace(tmp_path)


def test_a_log_without_one_whole_snapshot_is_told(log_file):
    path = log_file([8000])
    path.write_text(path.read_text()[:200])
    with pytest.raises(ValueError, match=r"tensor_profile_20260129_120000\.log.*\(1 damaged"):
        read_trace(path)


def test_an_empty_or_strange_memory_log_is_told(tmp_path):
    path = tmp_path / "memory.jsonl"
    path.write_text('{"step": 1, "allocated": 5, "reserved": 5, "owners": [3]}\n')
    with pytest.raises(ValueError, match=r"memory\.jsonl.*AttributeError"):
        read_trace(path)
    path.write_text('{"x": 1}\n{"step": 1}\n')
    with pytest.raises(ValueError, match=r"2 lines skipped \(line 1"):
        read_trace(path)


def test_latest_is_the_newest_log_or_run_below(run_folder, log_file, tmp_path):
    with pytest.raises(FileNotFoundError, match="train with --profile-tensors"):
        latest(tmp_path)
    run = run_folder("runs/bunny".replace("/", "_"))
    log = log_file([8000], name="output/scene_mesh/profiles/tensor_profile_20260129_120000.log")
    log_file([8000], name=".hidden/tensor_profile_20270129_120000.log")
    os.utime(run / "memory.jsonl", (1e9, 1e9))
    assert latest(tmp_path) == log.resolve()
    os.utime(run / "memory.jsonl", (4e9, 4e9))
    assert latest(tmp_path) == run.resolve()


def test_latest_does_not_search_deeper_than_it_says(log_file, tmp_path):
    log_file([8000], name="a/b/c/d/e/f/g/tensor_profile_20260129_120000.log")
    with pytest.raises(FileNotFoundError, match="6 deep"):
        latest(tmp_path)


def test_labels_tell_the_inputs_apart(tmp_path):
    paths = [tmp_path / "a" / "run", tmp_path / "b" / "run", tmp_path / "b" / "other"]
    assert labels(paths) == ["a/run", "b/run", "b/other"]
    assert labels(paths[1:]) == ["run", "other"]


def test_a_log_of_our_own_is_read(tmp_path, log_file):
    path = log_file([8000] * 3)
    with TensorLog(path):
        pass
    assert read_trace(path).categories["parameters"].tolist() == [4800] * 3
