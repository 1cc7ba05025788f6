"""Snapshots store the state of the moment when they were taken, in reused memory."""

import gc
import mmap
import os

import numpy as np
import pytest
import torch

from fieldwatch.checkpoint import CheckpointError, Checkpoints, HostBuffers, ShortOfMemoryError, share_memory
from fieldwatch.checkpoint import snapshot as module

PLENTY = 2**40


@pytest.fixture
def buffers():
    return HostBuffers(lambda: PLENTY)


def items(size=1000):
    base = torch.arange(2.0 * size).reshape(2, size)
    return {
        "plain": {"x": base, "turned": base.t(), "part": base[:, ::3], "alias": base},
        "kinds": {"half": base.bfloat16(), "flags": base > 7, "whole": base.long(), "none": torch.empty(0, 3)},
        "conj": {"c": torch.complex(base, -base).conj(), "scalar": torch.tensor(3.5)},
    }


class Holder:
    """A stateful object with numpy arrays, also of foreign byte order."""

    def __init__(self, size):
        self.tree = {"n": np.arange(size, dtype=">f8"), "s": np.float32(2.5), "t": np.ones((3, 4))[:, ::2]}

    def state_dict(self):
        return self.tree

    def load_state_dict(self, tree):
        self.tree = tree


def stored(checkpoints, draft):
    checkpoints.write(draft, threads=1)
    return checkpoints.read(draft.step)


def equal(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return np.array_equal(np.asarray(one), np.asarray(other)) if not isinstance(one, torch.Tensor) else one.equal(other)


def test_a_snapshot_holds_what_was_there_though_everything_changes_before_it_is_written(tmp_path, buffers):
    state = {**items(), "holder": Holder(100)}
    before = Checkpoints(tmp_path / "sync")
    before.save(1, state)
    draft = Checkpoints(tmp_path / "behind").take(1, state, buffers.copy_arrays)
    for tensor in (*state["plain"].values(), *state["kinds"].values()):
        tensor.zero_()
    state["holder"].tree["n"][:] = -1
    buffers.wait()
    assert equal(stored(Checkpoints(tmp_path / "behind"), draft), before.read(1))


def test_without_a_copy_it_would_be_torn(tmp_path):
    """Negative control of the test above: the memory is shared, and the change is stored."""
    state = {"x": torch.ones(1000)}
    draft = Checkpoints(tmp_path).take(1, state, share_memory)
    state["x"].zero_()
    assert stored(Checkpoints(tmp_path), draft)["x"].sum() == 0


def test_the_same_memory_is_used_again_and_grows_with_slack(tmp_path, buffers):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.take(1, {"x": torch.ones(100_000)}, buffers.copy_arrays)
    first = buffers.capacity
    assert 400_000 * 1.2 < first < 400_000 * 1.3
    checkpoints.take(2, {"x": torch.ones(120_000)}, buffers.copy_arrays)
    assert buffers.capacity == first
    draft = checkpoints.take(3, {"x": torch.full((150_000,), 3.0)}, buffers.copy_arrays)
    assert buffers.capacity > 150_000 * 4
    assert stored(checkpoints, draft)["x"].eq(3).all()


def test_a_fork_that_drops_the_memory_keeps_its_own(tmp_path):
    """A worker of a loader drops it when its copy of the run is collected, and may have memory at the same place."""
    holders = [HostBuffers(lambda: PLENTY) for _ in range(8)]
    for holder in holders:
        Checkpoints(tmp_path).take(1, {"x": torch.ones(2**18)}, holder.copy_arrays)
    child = os.fork()
    if not child:
        own = [mmap.mmap(-1, 2**20) for _ in range(64)]
        holders.clear()
        gc.collect()
        for pages in own:
            pages[0] = 1
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_nearly_full_memory_is_enlarged_once_the_snapshot_is_written(tmp_path, buffers):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.take(1, {"x": torch.ones(100_000)}, buffers.copy_arrays)
    first = buffers.capacity
    buffers.make_room_ahead()
    assert buffers.capacity == first
    checkpoints.take(2, {"x": torch.ones(120_000)}, buffers.copy_arrays).release()
    buffers.make_room_ahead()
    assert buffers.capacity > first
    buffers_full = buffers.capacity
    checkpoints.take(3, {"x": torch.ones(140_000)}, buffers.copy_arrays)
    assert buffers.capacity == buffers_full


@pytest.mark.parametrize(("spare", "holds"), [(-module.SPARE_BYTES, False), (400_000, False), (10**6 - 100_000, True)])
def test_too_little_memory_is_said_before_it_is_taken(tmp_path, spare, holds):
    tight = HostBuffers(lambda: module.SPARE_BYTES + spare)
    if holds:
        Checkpoints(tmp_path).take(1, {"x": torch.ones(200_000)}, tight.copy_arrays)
        assert 800_000 <= tight.capacity < 810_000  # without the slack, for which there is no room
        return
    with pytest.raises(ShortOfMemoryError, match=r"needs 80\d,\d{3} bytes of memory .* are free"):
        Checkpoints(tmp_path).take(1, {"x": torch.ones(200_000)}, tight.copy_arrays)
    assert tight.capacity == 0


def test_a_note_comes_later_and_may_hold_arrays(tmp_path, buffers):
    checkpoints = Checkpoints(tmp_path)
    draft = checkpoints.take(4, {"x": torch.ones(3)}, buffers.copy_arrays)
    draft.put_note({"sinks": {"0-csv": {"size": 7}}, "array": np.arange(3)})
    checkpoints.write(draft)
    note = checkpoints.restore({"x": torch.zeros(3)}).note
    assert note["sinks"] == {"0-csv": {"size": 7}}
    assert note["array"].tolist() == [0, 1, 2]


def test_what_cannot_be_stored_is_said_when_the_snapshot_is_taken(tmp_path, buffers):
    with pytest.raises(CheckpointError, match="sparse"):
        Checkpoints(tmp_path).take(1, {"x": torch.ones(3).to_sparse()}, buffers.copy_arrays)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: copies on a side stream need one")
def test_a_gpu_goes_on_while_its_copies_are_on_their_way(tmp_path, buffers):
    state = {"x": torch.full((10_000_000,), 2.0, device="cuda")}
    for step in (1, 2):  # the second one uses the memory again
        draft = Checkpoints(tmp_path).take(step, state, buffers.copy_arrays)
        state["x"].add_(1.0)
        buffers.wait()
        assert stored(Checkpoints(tmp_path), draft)["x"].eq(step + 1).all()
