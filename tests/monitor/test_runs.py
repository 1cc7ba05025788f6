import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwatch.monitor.processes import Processes
from fieldwatch.monitor.runs import LatestValues, RunFinder, writers
from fieldwatch.record import Block, Journal, Row

MB = 2**20


def row(step, **values):
    names = {name.replace("_", "/", 1): value for name, value in values.items()}
    return Block.of(Row(step=step, seconds=0.0, values=names))


def test_a_run_is_found_by_the_journal_its_process_holds_open(running):
    folder, pid, worker = running
    assert writers()[folder] == pid != worker
    (run,) = [run for run in RunFinder().read(Processes()) if run.folder == folder]
    assert (run.process.pid, run.step) == (pid, 2)
    assert (run.allocated_bytes, run.reserved_bytes) == (102 * MB, 200 * MB)
    assert str(folder) in run.process.command


def test_a_run_that_ended_is_gone(running):
    folder, pid, worker = running
    runs = RunFinder()
    processes = Processes()
    assert folder in [run.folder for run in runs.read(processes)]
    os.kill(pid, 15)
    os.kill(worker, 15)
    end = time.monotonic() + 10
    while folder in [run.folder for run in runs.read(processes)] and time.monotonic() < end:
        time.sleep(0.02)
    assert folder not in [run.folder for run in runs.read(processes)]


def test_a_journal_without_a_run_is_nobodys(tmp_path):
    with Journal(tmp_path):
        assert tmp_path not in writers()


def test_only_what_was_added_is_read(tmp_path):
    latest = LatestValues(tmp_path)
    path = tmp_path / "journal.jsonl"
    latest.read()
    assert (latest.step, latest.values) == (None, {})
    with Journal(tmp_path) as journal:
        journal.append(row(0, Memory_allocated_MB=1.0, Loss_total=2.0))
        latest.read()
        before = path.read_bytes()
        journal.append(row(1, Memory_allocated_MB=3.0))
    path.write_bytes(b"?" * (len(before) - 1) + path.read_bytes()[len(before) - 1 :])  # what was read is gone
    latest.read()
    assert latest.values == {"Memory/allocated_MB": 3.0, "Loss/total": 2.0}
    assert (latest.step, latest._end) == (1, path.stat().st_size)


def test_after_a_resume_the_later_row_counts(tmp_path):
    latest = LatestValues(tmp_path)
    with Journal(tmp_path) as journal:
        journal.append(row(0, Memory_allocated_MB=1.0))
        journal.append(row(9, Memory_allocated_MB=9.0))
        latest.read()
        journal.segment(5)
        journal.append(row(5, Memory_allocated_MB=5.0))
        latest.read()
    assert (latest.step, latest.in_bytes("Memory/allocated_MB")) == (5, 5 * MB)


def test_a_torn_line_waits_for_its_rest(tmp_path):
    latest = LatestValues(tmp_path)
    path = tmp_path / "journal.jsonl"
    whole = (
        b'{"layout":0,"axis":"step","names":["Memory/allocated_MB"],"float32":1}\n[0,0,0.1,0,[],7]\n[0,1,0.2,1,[],8]\n'
    )
    for end in range(len(whole) + 1):
        path.write_bytes(whole[:end])
        latest.read()
    assert (latest.step, latest.in_bytes("Memory/allocated_MB")) == (1, 8 * MB)
    path.write_bytes(whole[:-17])  # cut
    latest.read()
    assert latest.step == 0


@pytest.mark.parametrize("piece", [64, 100, 1 << 24])
def test_a_long_journal_is_read_in_pieces(tmp_path, monkeypatch, piece):
    monkeypatch.setattr("fieldwatch.monitor.runs.CHUNK_BYTES", piece)
    with Journal(tmp_path) as journal:
        for step in range(50):
            journal.append(row(step, Memory_allocated_MB=float(step)))
    latest = LatestValues(tmp_path)
    latest.read()
    expected = (None, None) if piece == 64 else (49, 49 * MB)  # 64 bytes hold no layout: nothing is guessed
    assert (latest.step, latest.in_bytes("Memory/allocated_MB")) == expected


@pytest.mark.parametrize("value", ["nan", "inf", None, [], 1e999])
def test_what_is_no_finite_number_is_not_known(tmp_path, value):
    latest = LatestValues(tmp_path)
    latest.values = {"Memory/allocated_MB": value}
    assert latest.in_bytes("Memory/allocated_MB") is None
    assert latest.in_bytes("Memory/reserved_MB") is None


PIECES = st.one_of(
    st.binary(max_size=30),
    st.sampled_from(
        [b"\n", b"[0,", b'{"layout":', b'{"layout":0,"names":["a"]}\n', b"[0,1,2,3,[],4]\n", b"[0,[],0,0,[],1]\n"]
    ),
    st.dictionaries(
        st.sampled_from(["layout", "names"]), st.one_of(st.none(), st.integers(), st.lists(st.integers()))
    ).map(lambda line: json.dumps(line, separators=(",", ":")).encode() + b"\n"),
)


@given(pieces=st.lists(PIECES, max_size=12))
def test_a_damaged_journal_never_stops_the_monitor(tmp_path_factory, pieces):
    folder = tmp_path_factory.getbasetemp()
    (folder / "journal.jsonl").write_bytes(b"".join(pieces))
    latest = LatestValues(folder)
    latest.read()
    assert latest.step is None or isinstance(latest.step, int)


def test_a_journal_that_may_not_be_read_is_not_known(tmp_path):
    latest = LatestValues(tmp_path / "gone")
    latest.read()
    assert latest.step is None
    assert not Path(tmp_path / "gone").exists()
