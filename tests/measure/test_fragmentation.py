import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fieldwatch.measure import Fragmentation, fragmentation_of
from fieldwatch.measure.census.malloc import Heap, heap
from fieldwatch.measure.fragmentation import fragmentation

MB = 2**20
PARTS = ("allocated", "awaiting_stream", "not_returnable", "returnable")


def stats(*, allocated=0, active=0, split=0, reserved=0, requested=0, retries=0, syncs=0):
    """Return counters in torch's nested format."""
    amounts = {
        "allocated_bytes": allocated,
        "active_bytes": active,
        "inactive_split_bytes": split,
        "reserved_bytes": reserved,
        "requested_bytes": requested,
    }
    nested = {name: {"all": {"current": value, "peak": value}} for name, value in amounts.items()}
    return nested | {"num_alloc_retries": retries, "num_sync_all_streams": syncs}


def segment(*blocks, device=0):
    """Return a segment; blocks are given as pairs of state and size."""
    return {"device": device, "blocks": [{"state": state, "size": size} for state, size in blocks]}


ACTIVE = "active_allocated"
WAITING = "active_awaiting_free"
IDLE = "inactive"

# One device with a partly idle segment, one that waits for a stream, and an entirely idle one.
SEGMENTS = [
    segment((ACTIVE, 512), (IDLE, 1024), (ACTIVE, 2048), (IDLE, 256)),
    segment((WAITING, 4096)),
    segment((IDLE, 8192)),
    segment((IDLE, 99999), device=1),
]
STATS = stats(allocated=2560, active=6656, split=1280, reserved=3840 + 4096 + 8192, requested=2100, retries=3, syncs=1)


def test_every_reserved_byte_has_its_place():
    found = fragmentation(STATS, SEGMENTS, device=0)
    assert found == Fragmentation(
        allocated=2560,
        awaiting_stream=4096,
        not_returnable=1280,
        returnable=8192,
        rounding=460,
        largest_free=8192,
        retries=3,
        syncs=1,
    )
    assert found.reserved == 16128
    assert found.index == pytest.approx(1 - 8192 / 9472)


def test_the_original_percentage_counts_reusable_cache_as_fragmentation():
    found = fragmentation(STATS, SEGMENTS, device=0)
    assert found.percent == pytest.approx((16128 - 2560) / 16128 * 100)
    assert found.percent > 80
    assert found.not_returnable / found.reserved < 0.08


def test_flattened_counters_are_the_same():
    flat = {f"{name}.all.current": value["all"]["current"] for name, value in STATS.items() if isinstance(value, dict)}
    flat |= {"num_alloc_retries": 3, "num_sync_all_streams": 1}
    assert fragmentation(flat, SEGMENTS, device=0) == fragmentation(STATS, SEGMENTS, device=0)


def test_parts_are_named_as_the_tags_are():
    assert fragmentation(STATS, SEGMENTS, device=0).parts() == {
        "rounding": 460,
        "awaiting_stream": 4096,
        "not_returnable": 1280,
        "returnable": 8192,
        "largest_free": 8192,
    }


def test_without_a_device_all_segments_are_meant():
    assert fragmentation(STATS, SEGMENTS).largest_free == 99999


def test_dust_has_an_index_near_one_and_one_piece_has_zero():
    dust = [segment(*[(ACTIVE, 512), (IDLE, 512)] * 1000)]
    found = fragmentation(stats(allocated=512000, active=512000, split=512000, reserved=1024000), dust)
    assert found.index == pytest.approx(0.999)
    one = [segment((ACTIVE, 512), (IDLE, 512))]
    assert fragmentation(stats(allocated=512, active=512, split=512, reserved=1024), one).index == 0


def test_a_full_device_has_nothing_free_and_no_fragmentation():
    found = fragmentation(stats(allocated=512, active=512, reserved=512, requested=512), [segment((ACTIVE, 512))])
    assert (found.free, found.largest_free, found.index, found.percent) == (0, 0, 0, 0)


def test_before_cuda_is_used_everything_is_zero():
    found = fragmentation({}, [])
    assert (found.reserved, found.percent, found.rounding) == (0, 0, 0)
    assert found.parts() == dict.fromkeys(("rounding", "awaiting_stream", "not_returnable", "returnable"), 0)


def test_what_a_backend_does_not_count_is_not_guessed():
    found = fragmentation(stats(allocated=1000, reserved=5000), [])
    assert (found.rounding, found.largest_free, found.index) == (None, None, None)
    assert found.parts() == {"awaiting_stream": 0, "not_returnable": 0, "returnable": 4000}


@given(st.tuples(*[st.integers(0, 2**40)] * 5))
def test_the_parts_add_up_whatever_the_counters_say(numbers):
    allocated, active, split, reserved, requested = numbers
    found = fragmentation(
        stats(allocated=allocated, active=active, split=split, reserved=reserved, requested=requested), []
    )
    parts = [getattr(found, name) for name in PARTS]
    assert min(parts) >= 0
    assert sum(parts) == found.reserved == max(reserved, active, allocated)
    assert 0 <= found.percent <= 100


def test_the_segments_of_a_real_snapshot_can_be_read(real_data):
    class Plain(pickle.Unpickler):
        def find_class(self, module, name):
            raise pickle.UnpicklingError(f"{module}.{name}")

    with (real_data / "memory_snapshots" / "mosaic_output.pickle").open("rb") as file:
        segments = Plain(file).load()["segments"]
    found = fragmentation(stats(allocated=174716640, active=174716640, reserved=262144000), segments)
    assert found.largest_free == 0, "its blocks are all in use"
    assert found.returnable == 262144000 - 174716640


def test_on_a_cpu_the_heap_is_taken_apart():
    if not isinstance(heap(), Heap):
        pytest.skip("the C library cannot be asked")
    torch.ones(4 * MB, dtype=torch.uint8)  # triggers the one-time probe of the heap
    before = fragmentation_of(torch.device("cpu"))
    kept = [torch.ones(3000, dtype=torch.uint8) for _ in range(4000)]
    during = fragmentation_of(torch.device("cpu"))
    assert during.allocated - before.allocated == pytest.approx(4000 * 3072, rel=0.25)
    del kept[::2]
    after = fragmentation_of(torch.device("cpu"))
    assert after.free - during.free == pytest.approx(2000 * 3072, rel=0.25)
    assert after.not_returnable - during.not_returnable == pytest.approx(2000 * 3072, rel=0.25), "kept ones lie between"
    assert (after.rounding, after.largest_free, after.index) == (None, None, None)
    assert len(kept) == 2000


def test_a_gpus_memory_adds_up_to_what_is_reserved(gpu):
    pieces = [torch.empty(3 * MB, dtype=torch.uint8, device=gpu) for _ in range(40)]
    del pieces[::2]
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = fragmentation_of(gpu)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert found.reserved == torch.cuda.memory_reserved(gpu)
    assert found.allocated == torch.cuda.memory_allocated(gpu)
    assert found.not_returnable >= 3 * MB
    assert 0 < found.largest_free <= found.free
    assert found.rounding is not None
    torch.cuda.empty_cache()
    assert fragmentation_of(gpu).returnable == 0, "that is what returnable means"
    assert len(pieces) == 20
