"""Matching storages with CUDA blocks, tested on recorded snapshots without a GPU."""

import pickle

import pytest
import torch
from torch import nn

from fieldwatch.measure import ParameterGroups
from fieldwatch.measure.census import AllocatedBlock, BlockReading, UnownedBlock, blocks_in_use, take_census

CPU = torch.device("cpu")


def segment(address, *blocks, device=0, pool=(0, 0), **more):
    """Return a segment with contiguous blocks, each given as (size, state, requested, frames)."""
    listed = []
    at = address
    for size, state, requested, *frames in blocks:
        listed.append({"address": at, "size": size, "state": state, "requested_size": requested, "frames": frames})
        at += size
    whole = {
        "device": device,
        "address": address,
        "total_size": at - address,
        "segment_pool_id": pool,
        "blocks": listed,
    }
    return whole | more


def frame(name, file="train.py", line=7):
    return {"filename": file, "line": line, "name": name}


def sizes(segments, device=0):
    return [(block.address, block.size, block.requested) for block in blocks_in_use(segments, device)]


def test_only_blocks_in_use_count():
    split = segment(
        0x1000,
        (512, "active_allocated", 500),
        (1024, "inactive", 0),
        (512, "active_awaiting_free", 512),
        (2048, "active_pending_free", 2000),
        (4096, "active_allocated", 4096),
    )
    assert sizes([split]) == [(0x1000, 512, 500), (0x1000 + 4096, 4096, 4096)]


def test_private_pools_and_expandable_segments_count_other_devices_do_not():
    segments = [
        segment(0x9000, (512, "active_allocated", 512), pool=(0, 3)),
        segment(0x5000, (512, "active_allocated", 512), is_expandable=True),
        segment(0x7000, (512, "active_allocated", 512), device=1),
    ]
    assert [address for address, _, _ in sizes(segments)] == [0x5000, 0x9000]
    assert [address for address, _, _ in sizes(segments, device=1)] == [0x7000]


def test_blocks_that_do_not_fill_their_segment_stay_where_they_are():
    gap = segment(0x1000, (512, "active_allocated", 9), total_size=1 << 20)
    gap["blocks"].append({"address": 0x9000, "size": 512, "state": "active_allocated", "requested_size": 5})
    assert sizes([gap]) == [(0x1000, 512, 9), (0x9000, 512, 5)]


def test_blocks_of_old_snapshots_have_no_address_and_no_request():
    old = segment(0x1000, (512, "inactive", 0), (256, "active_allocated", 0))
    for block in old["blocks"]:
        del block["address"], block["requested_size"]
    assert sizes([old]) == [(0x1200, 256, 0)]


def test_a_recorded_snapshot_is_read(real_data):
    class Plain(pickle.Unpickler):
        def find_class(self, module, name):
            pytest.fail(f"the pickle asked for {module}.{name}")

    with (real_data / "memory_snapshots" / "mosaic_output.pickle").open("rb") as file:
        segments = Plain(file).load()["segments"]
    blocks = blocks_in_use(segments, 0)
    assert len(blocks) == 17
    assert sum(block.size for block in blocks) == 17 * 512
    assert blocks == sorted(blocks)


def test_the_site_is_the_innermost_line_outside_torch():
    library = frame("relu", "/venv/lib/torch/nn/functional.py", 1)
    native = frame("at::empty", "Allocator.cpp", 0)
    stacks = [[native, library, frame("render")], [native, library], [native], []]
    blocks = [(512, "active_allocated", 512, *stack) for stack in stacks]
    found = [block.site for block in blocks_in_use([segment(0x1000, *blocks)], 0)]
    assert found == [
        "train.py:7 render",
        "/venv/lib/torch/nn/functional.py:1 relu",
        "Allocator.cpp:0 at::empty",
        "",
    ]


class Recorded:
    """An allocator with given blocks: real addresses of CPU tensors, and invented neighbors."""

    def __init__(self, *blocks, allocated=None):
        self.blocks = sorted(blocks)
        self.allocated = sum(block.size for block in blocks) if allocated is None else allocated

    def read(self):
        return BlockReading(allocated=self.allocated, reserved=2 * self.allocated, blocks=self.blocks)


def block_of(tensor, *, lead=0, site=""):
    """Return the block around a tensor's storage, rounded up to 512 bytes."""
    storage = tensor.untyped_storage()
    asked = storage.nbytes() + lead
    return AllocatedBlock(storage.data_ptr() - lead, -(-asked // 512) * 512, asked, site)


FAR = 1 << 60


def unowned(number, size=1024, site=""):
    return AllocatedBlock(FAR + number * 2**20, size, size, site)


@pytest.fixture
def group():
    return {"means": nn.Parameter(torch.ones(1000, 3)), "opacities": nn.Parameter(torch.ones(1000))}


def census(group, allocator, **options):
    watched = ParameterGroups()
    watched.add(gaussians=group)
    return take_census(watched, optimizers=(), device=CPU, allocator=allocator, **options)


def account(taken):
    return {
        "owned": taken.owned,
        "rounding": taken.rounding,
        "workspace": taken.workspace,
        "unattributed": taken.unattributed,
    }


def test_owners_rounding_and_rest_are_the_allocated_bytes(group):
    blocks = [*map(block_of, group.values()), unowned(0)]
    taken = census(group, Recorded(*blocks))
    rounding = sum(block.size - block.requested for block in blocks)
    assert account(taken) == {"owned": 16000, "rounding": rounding, "workspace": 0, "unattributed": 1024}
    assert taken.allocated == 16000 + rounding + 1024
    assert taken.source == "memory_snapshot"


def test_a_storage_inside_a_block_leaves_the_rest_of_the_request_unattributed(group):
    """Memory imported through DLPack: the tensor uses a part of a block that another library allocated."""
    block = block_of(group["means"], lead=256)
    taken = census(group, Recorded(block, block_of(group["opacities"])))
    assert taken.unattributed == 256
    assert taken.rounding == block.size - 12256 + 96


def test_what_no_block_holds_is_foreign(group):
    taken = census(group, Recorded(block_of(group["means"]), unowned(0)))
    assert [held.name for held in taken.foreign] == ["opacities"]
    assert account(taken)["owned"] == 12000
    assert taken.unattributed == 1024


def test_a_storage_larger_than_its_block_is_foreign(group):
    start = group["means"].data_ptr()
    taken = census(group, Recorded(AllocatedBlock(start, 512, 512, ""), block_of(group["opacities"])))
    assert [held.name for held in taken.foreign] == ["means"]
    assert taken.unattributed == 512


def test_blocks_of_nobody_that_came_within_the_step_are_workspace(group):
    owned = [block_of(tensor) for tensor in group.values()]
    before = census(group, Recorded(*owned, unowned(0, site="a"), unowned(1), unowned(2)))
    now = Recorded(*owned, unowned(0, site="a"), unowned(2, size=2048), unowned(3, size=512))
    taken = census(group, now, before=before)
    assert (taken.workspace, taken.unattributed) == (2048 + 512, 1024)
    assert taken.sites == {"a": 1024}
    assert before.unowned[FAR] == UnownedBlock(1024, "a")


def test_memory_an_owner_gave_back_and_the_step_took_is_workspace(group):
    blocks = [block_of(tensor) for tensor in group.values()]
    before = census(group, Recorded(*blocks))
    del group["opacities"]
    taken = census(group, Recorded(*blocks), before=before)
    assert (taken.workspace, taken.unattributed) == (4096, 0)


def test_sites_of_the_rest_are_summed_the_most_first(group):
    blocks = [unowned(0, 512, "a"), unowned(1, 512, "b"), unowned(2, 1024, "a"), unowned(3, 512)]
    taken = census(group, Recorded(*blocks))
    assert list(taken.sites.items()) == [("a", 1536), ("b", 512)]


def test_the_account_holds_when_the_counter_and_the_blocks_disagree(group):
    """If another thread allocates between the two readings, the difference goes to the unattributed rest."""
    blocks = [block_of(tensor) for tensor in group.values()]
    taken = census(group, Recorded(*blocks, allocated=20_000))
    assert taken.owned + taken.rounding + taken.workspace + taken.unattributed == 20_000
