import json
import os
import pickle

import pytest

from fieldwatch.record.memory import MemoryLog

HEAD = "=" * 80
MB = 2**20


def snapshot_text(iteration: int, allocated: float, tensors: int = 1267) -> str:
    return (
        f"\n{HEAD}\nIteration {iteration} | 2026-01-29 13:36:21\n{HEAD}\nTotal Tensors: {tensors}\n"
        f"Allocated: {allocated:.2f} MB | Reserved: 10126.00 MB | Fragmentation: 20.3%\n\n"
        f"Tensor Categories:\n  parameters     : {allocated:8.2f} MB\n\n"
        f"Data Types:\n  float32        : {allocated:8.2f} MB\n\n"
        f"Large Tensors (>100MB): 0\n"
    )


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "output" / "scene_mesh" / "profiles" / "tensor_profile_20260129_133621.log"
    path.parent.mkdir(parents=True)
    path.write_text("".join(snapshot_text(40000 + 50 * i, 8073.4) for i in range(40)))
    return path


@pytest.fixture
def run_with_log(tmp_path):
    folder = tmp_path / "runs" / "bunny"
    with MemoryLog(folder) as memory:
        for i in range(40):
            whole = {"step": 50 * i, "allocated": 100 * MB, "reserved": 150 * MB, "tensors": 9}
            memory.append(whole | {"owners": {"parameters": {"means": 60 * MB}}, "unattributed": 40 * MB})
    return folder


def test_a_healthy_log_is_reported_and_its_path_printed(fieldwatch, log):
    code, out, message = fieldwatch("memory", log)
    assert (code, message) == (0, "")
    assert "Iteration Range: 40000 - 41950" in out
    assert "No leak suspected" in out
    assert str(log) in out


def test_a_cut_log_says_so_and_reads_no_zeros(fieldwatch, log):
    log.write_text(log.read_text()[:-150])
    code, out, _ = fieldwatch("memory", log)
    assert code == 0
    assert "Total Snapshots: 39 (1 more" in out
    assert "End: 8073.4 MB" in out


def test_findings_end_with_one(fieldwatch, log):
    log.write_text("".join(snapshot_text(50 * i, 8000 + 9 * i, 1000 + i) for i in range(60)))
    code, out, _ = fieldwatch("memory", log)
    assert code == 1
    assert "LEAK SUSPECTED" in out
    code, out, _ = fieldwatch("memory", log, "--json")
    assert code == 1
    assert json.loads(out)["inputs"][0]["leak"]["verdict"] == "suspected"


def test_latest_says_what_it_took(fieldwatch, log, run_with_log, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.utime(log, (1e9, 1e9))
    code, out, _ = fieldwatch("memory", "latest")
    assert code == 0
    assert out.startswith(f"latest: {run_with_log.resolve()}")
    os.utime(log, (4e9, 4e9))
    assert fieldwatch("memory", "latest")[1].startswith(f"latest: {log.resolve()}")


def test_latest_with_nothing_there_is_bad_input(refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no memory.jsonl and no tensor_profile_*.log below" in refused("memory", "latest")


@pytest.mark.parametrize("place", ["", "memory.jsonl"])
def test_a_run_or_its_memory_log(answer, run_with_log, place):
    (report,) = answer("memory", run_with_log / place)["inputs"]
    assert (report["kind"], report["totals"]["allocated"]["end"]) == ("memory.jsonl", 100)
    assert sum(report["account"].values()) == 100


def test_several_inputs_stand_side_by_side(fieldwatch, answer, log, run_with_log, tmp_path):
    page = tmp_path / "both.html"
    code, out, _ = fieldwatch("memory", log, run_with_log, "--html", page)
    assert code == 0
    assert "SIDE BY SIDE" in out
    assert str(page) in out
    assert "Side by side" in page.read_text()
    assert len(answer("memory", log, run_with_log)["inputs"]) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"hello\n", "is not a tensor log: it is text that begins with 'hello'"),
        (b"{}\n{}\n", "line 1"),
    ],
)
def test_what_is_no_log_is_bad_input(refused, tmp_path, content, message):
    path = tmp_path / "what.log"
    path.write_bytes(content)
    assert message in refused("memory", path)


def test_no_input_and_a_missing_one_are_bad_input(refused, tmp_path):
    assert "expected an input" in refused("memory")
    assert "does not exist" in refused("memory", tmp_path / "gone")


def test_a_page_that_cannot_be_written_is_bad_input(refused, log, tmp_path):
    assert "directory" in refused("memory", log, "--html", tmp_path / "output").lower()


class Evil:
    def __reduce__(self):
        return (os.system, ("touch evil-was-here",))


@pytest.mark.parametrize("name", ["snapshot.pickle", "snapshot.log"])
def test_a_hostile_pickle_is_refused_and_nothing_runs(refused, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    path.write_bytes(pickle.dumps(Evil()))
    refused("memory", path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def real(real_data):
    return real_data / "memory_snapshots" / "mosaic_output.pickle"


def test_a_real_snapshot_is_shown(fieldwatch, answer, real, tmp_path):
    page = tmp_path / "view.html"
    code, out, _ = fieldwatch("memory", real, "--html", page)
    assert code == 0
    assert str(real.absolute()) in out
    assert page.stat().st_size > 0
    assert len(answer("memory", real)["snapshots"]) == 1


def test_snapshots_and_logs_are_not_mixed(refused, real, log, tmp_path):
    assert "one command" in refused("memory", real, log)
    assert "one snapshot, got 2" in refused("memory", real, real, "--html", tmp_path / "page.html")
