import os
import pickle

import pytest
import torch

from fieldwatch.measure import AllocatorHistory, Clock

CUDA = torch.device("cuda:0")
CPU = torch.device("cpu")


class Torch:
    """Fakes of torch's entry points that record their calls and write prepared contents."""

    def __init__(self, content=b"snapshot", error=None):
        self.calls = []
        self.labels = []
        self.content = content
        self.error = error

    def record(self, enabled="all", context="all", stacks="all", max_entries=0, skip_actions=None):
        self.calls.append((enabled, context, stacks, max_entries, skip_actions))

    def record_as_before(self, enabled="all", context="all", stacks="all", max_entries=0):
        self.calls.append((enabled, context, stacks, max_entries))

    def dump(self, filename):
        with open(filename, "wb") as file:  # noqa: PTH123  as torch does
            file.write(self.content)
        if self.error:
            raise self.error

    def history(self, device=CUDA, record=None):
        return AllocatorHistory(device, record=record or self.record, dump=self.dump, label=self.labels.append)


@pytest.fixture
def boundary():
    return Torch()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_recording_is_bounded_and_cheap_unless_told_otherwise(boundary):
    history = boundary.history()
    history.start()
    history.stop()
    assert boundary.calls == [("all", "alloc", "python", 100_000, ["free_requested"]), (None, "all", "all", 0, None)]
    assert not history.recording


def test_an_older_torch_is_not_told_what_it_does_not_know(boundary):
    boundary.history(record=boundary.record_as_before).start(max_entries=7, stacks="all", context="all")
    assert boundary.calls == [("all", "all", "all", 7)]


def test_a_history_that_somebody_else_started_is_not_stopped(boundary):
    boundary.history().stop()
    assert boundary.calls == []


def test_no_room_for_entries_is_an_error(boundary):
    with pytest.raises(ValueError, match=r"max_entries.* 1 .* got 0"):
        boundary.history().start(max_entries=0)


def test_allocations_are_labelled_with_the_innermost_span_while_recording(boundary):
    history = boundary.history()
    clock = Clock()
    clock.listener = history
    with clock.span("warm_up"):
        pass
    history.start()
    with clock.span("loss"), clock.span("normal"):
        pass
    history.stop()
    with clock.span("after"):
        pass
    assert boundary.labels == ["loss", "normal", "loss", "", ""]


def test_a_torch_without_labels_records_all_the_same(boundary):
    history = AllocatorHistory(CUDA, record=boundary.record, dump=boundary.dump, label=None)
    history.start()
    history.enter("loss")
    history.leave("loss")
    history.stop()
    assert len(boundary.calls) == 2


def test_a_snapshot_is_written_under_its_name_and_nothing_else_stays(boundary, tmp_path):
    path = tmp_path / "snapshots" / "snapshot_1000.pickle"
    assert boundary.history().dump(path) == path
    assert path.read_bytes() == b"snapshot"
    assert names(path.parent) == ["snapshot_1000.pickle"]


def test_a_snapshot_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "snapshot_1000.pickle"
    path.write_bytes(b"old")
    full = Torch(content=b"half a sna", error=OSError(28, "No space left on device"))
    with pytest.raises(OSError, match="No space left"):
        full.history().dump(path)
    assert names(tmp_path) == ["snapshot_1000.pickle"]
    assert path.read_bytes() == b"old"


def test_only_the_newest_snapshots_are_kept_and_no_other_file_is_touched(boundary, tmp_path):
    for name in ("weights.pickle", "notes.txt", "snapshot_1.pt", ".snapshot_3.pickle.partial", "snapshots.pickle"):
        (tmp_path / name).write_bytes(b"")
    for i in range(5):
        path = tmp_path / f"snapshot_{i}.pickle"
        boundary.history().dump(path, keep=2)
        os.utime(path, ns=(i, i))
    assert names(tmp_path) == [
        "notes.txt", "snapshot_1.pt", "snapshot_3.pickle", "snapshot_4.pickle", "snapshots.pickle", "weights.pickle",
    ]  # fmt: skip


def test_the_newest_stays_even_when_the_clock_runs_backwards(boundary, tmp_path):
    old = tmp_path / "snapshot_1.pickle"
    old.write_bytes(b"from the future")
    os.utime(old, ns=(2**62, 2**62))
    boundary.history().dump(tmp_path / "snapshot_2.pickle", keep=1)
    assert names(tmp_path) == ["snapshot_2.pickle"]


@pytest.mark.parametrize(("name", "keep"), [("snapshot_1.pkl", 5), ("snapshot_1", 5), ("snapshot_1.pickle", 0)])
def test_a_snapshot_needs_its_ending_and_a_place(boundary, tmp_path, name, keep):
    with pytest.raises(ValueError, match=r"\.pickle .* keep=[0-9]"):
        boundary.history().dump(tmp_path / name, keep=keep)
    assert names(tmp_path) == []


def test_on_a_cpu_it_says_so_and_writes_nothing(boundary, tmp_path):
    history = boundary.history(CPU)
    assert "CUDA allocator" in history.refusal
    history.start()
    assert history.dump(tmp_path / "snapshots" / "snapshot_1.pickle") is None
    history.stop()
    assert (boundary.calls, boundary.labels, names(tmp_path)) == ([], [], [])
    assert not history.recording


def test_on_cuda_there_is_no_refusal(boundary):
    assert boundary.history().refusal == ""


def test_a_real_history_on_a_gpu(gpu, tmp_path):
    history = AllocatorHistory(gpu)
    clock = Clock()
    clock.listener = history
    history.start(max_entries=1000)
    try:
        with clock.span("render"):
            kept = torch.empty(5 * 2**20, dtype=torch.uint8, device=gpu)
        path = history.dump(tmp_path / "snapshot_1.pickle")
    finally:
        history.stop()
    snapshot = pickle.loads(path.read_bytes())  # noqa: S301  written two lines above
    events = [event for trace in snapshot["device_traces"] for event in trace if event["action"] == "alloc"]
    (event,) = [event for event in events if event["addr"] == kept.data_ptr()]
    assert any(frame["filename"] == __file__ for frame in event["frames"])
    assert event.get("user_metadata") == "render"
    assert {event["action"] for trace in snapshot["device_traces"] for event in trace}.isdisjoint({"free_requested"})
