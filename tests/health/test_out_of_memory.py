"""Parsing of out-of-memory error texts, and classification into four reasons."""

import re

import numpy as np
import pytest
import torch

from fieldwatch.health import AllocationRequest, DeviceMemory, parse_out_of_memory, triage

GIB = 2**30
MIB = 2**20
OLDEST = (
    "CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; 8.57 MiB already allocated; "
    "9.28 GiB free; 4.68 MiB cached)"
)
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.87 GiB (GPU 1; 14.76 GiB total capacity; 8.77 GiB already "
    "allocated; 19.75 MiB free; 13.71 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try"
)
TYPO = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.70 GiB. GPU 0 has a total capacty of 6.00 "
    "GiB of which 0 bytes is free. Of the allocated memory 2.93 GiB is allocated by PyTorch, and 2.30 GiB is reserved "
    "by PyTorch but unallocated. If reserved but unallocated memory is large try setting max_split_size_mb"
)
CROWDED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB.\nGPU 0 has a total capacity of 31.36 GiB "
    "of which 471.69 MiB is free.\nIncluding non-PyTorch memory, this process has 16.63 GiB memory in use.\nProcess "
    "19239 has 14.26 GiB memory in use.\nOf the allocated memory 15.03 GiB is allocated by PyTorch, and 1.00 GiB\n"
    "is reserved by PyTorch but unallocated."
)
CONTAINER = (
    "CUDA out of memory. Tried to allocate 28.00 MiB. GPU 0 has a total capacity of 79.11 GiB of which 5.19 MiB is "
    "free. Process 289367 has 79.10 GiB memory in use. Of the allocated memory 76.91 GiB is allocated by PyTorch, with "
    "61.70 MiB allocated in private pools (e.g., CUDA Graphs), and 494.83 MiB is reserved by PyTorch but unallocated."
)
WSL = (
    "CUDA out of memory. Tried to allocate 3.98 GiB. GPU 0 has a total capacity of 31.84 GiB of which 16.30 GiB is "
    "free. Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use. 17.51 GiB allowed; Of the "
    "allocated memory 6.74 GiB is allocated by PyTorch, and 7.02 GiB is reserved by PyTorch but unallocated."
)
ROCM = (
    "HIP out of memory. Tried to allocate 76.00 MiB. GPU 0 has a total capacity of 255.69 GiB of which 252.82 GiB is "
    "free. 1.20 GiB allowed; Of the allocated memory 1.14 GiB is allocated by PyTorch, and 18.63 MiB is reserved by "
    "PyTorch but unallocated."
)


def gib(number):
    return pytest.approx(number * GIB, abs=6 * MIB)


def test_the_oldest_wording_counts_the_cache_beside_what_is_allocated():
    found = parse_out_of_memory(OLDEST)
    assert (found.size, found.device, found.total) == (12.5 * MIB, "cuda:0", gib(10.92))
    assert (found.free, found.allocated, found.reserved) == (gib(9.28), gib(8.57 / 1024), gib(13.25 / 1024))
    assert found.others is None


def test_the_old_wording_counts_all_that_is_reserved():
    found = parse_out_of_memory(OLD)
    assert (found.size, found.device, found.free) == (gib(2.87), "cuda:1", gib(19.75 / 1024))
    assert (found.allocated, found.reserved) == (gib(8.77), gib(13.71))


def test_the_new_wording_with_others_and_line_breaks():
    found = parse_out_of_memory(f"Traceback (most recent call last):\n  ...\n{CROWDED}")
    assert (found.size, found.total, found.others) == (gib(1.16), gib(31.36), gib(14.26))
    assert (found.allocated, found.reserved, found.allowed) == (gib(15.03), gib(16.03), None)


def test_a_torch_that_did_not_find_itself_is_not_another_process():
    assert parse_out_of_memory(CONTAINER).others == 0
    assert parse_out_of_memory(TYPO).others is None


def test_memory_that_wsl_does_not_know_says_nothing():
    found = parse_out_of_memory(WSL)
    assert (found.others, found.allowed) == (None, gib(17.51))
    assert parse_out_of_memory(ROCM).allowed == gib(1.2)


def test_the_last_error_of_a_log_counts():
    assert parse_out_of_memory(f"{OLD}\nretrying\n{TYPO}").size == gib(1.7)


def test_torch_on_the_cpu_says_the_bytes():
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**58)
    assert parse_out_of_memory(str(error.value)) == AllocationRequest(size=2**60, device="cpu")


def test_sizes_that_overflow_are_larger_than_any_device():
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**40, 2**30)
    assert parse_out_of_memory(str(error.value)).size == 2**63
    assert parse_out_of_memory("CUDA out of memory. Tried to allocate more than 1EB memory.").size == 2**60


@pytest.mark.parametrize("kind", ["float64", "uint8", "complex128", "bool"])
def test_numpy_says_shape_and_type(kind):
    with pytest.raises(MemoryError) as error:
        np.empty((10**6, 10**7, 10), kind)
    assert parse_out_of_memory(str(error.value)) == AllocationRequest(
        size=10**14 * np.dtype(kind).itemsize, device="cpu"
    )


def test_a_type_that_is_not_known_leaves_the_rounded_size():
    text = "Unable to allocate 7.28 TiB for an array with shape (1000000, 1000000) and data type <U2"
    assert parse_out_of_memory(text).size == pytest.approx(7.28 * 2**40, rel=1e-3)


def test_the_driver_says_no_number():
    assert parse_out_of_memory("RuntimeError: CUDA error: out of memory") == AllocationRequest(size=None, device="cuda")
    assert parse_out_of_memory("RuntimeError: std::bad_alloc") == AllocationRequest(size=None, device="cpu")


@pytest.mark.parametrize("text", ["", "CUDA error: illegal access", "Tried to allocate 3 cats", "out of memory"])
def test_other_texts_are_no_such_error(text):
    assert parse_out_of_memory(text) is None


def test_hostile_texts_end_soon_and_raise_nothing():
    rng = np.random.default_rng(3)
    words = re.findall(r"\S+", " ".join((OLDEST, OLD, CROWDED, WSL, "9" * 500, "1" * 19, "DefaultCPUAllocator:")))
    for _ in range(300):
        text = " ".join(rng.choice(words, 60))
        found = parse_out_of_memory(text)
        assert found is None or found.size is None or found.size >= 0
    long = "DefaultCPUAllocator: CUDA out of memory. Tried to allocate 9" * 20_000
    assert parse_out_of_memory(long) is None


def device(**changes):
    numbers = {"total": 16 * GIB, "free": GIB, "allocated": 13 * GIB, "reserved": 14 * GIB} | changes
    return DeviceMemory(**numbers)


@pytest.mark.parametrize(
    ("request_bytes", "changes", "reason", "words", "advice"),
    [
        (
            2**60,
            {},
            "impossible request",
            "times the whole device (16.00 GiB); such a size is a mistake",
            "print the shapes",
        ),
        (40 * GIB, {}, "impossible request", "2.5 times the whole device (16.00 GiB); it can never fit", "shapes"),
        (8 * GIB, {"allowed": 4 * GIB}, "impossible request", "may have only 4.00 GiB of 16.00 GiB", "fraction"),
        (4 * GIB, {"others": 9 * GIB, "reserved": 6 * GIB}, "another process", "other processes hold 9.00 GiB", "End"),
        (GIB // 2, {"others": 0}, "another process", "1.00 GiB are available now: another", "End the other"),
        (3 * GIB, {"allocated": 11 * GIB}, "fragmentation", "3.00 GiB are idle in the cache", "expandable_segments"),
        (
            3 * GIB,
            {"not_returnable": 3 * GIB, "allocated": 11 * GIB, "largest_free": GIB},
            "fragmentation",
            "(3.00 GiB of it in segments that are in use), the largest block 1.00 GiB",
            "expandable_segments",
        ),
        (3 * GIB, {}, "exhaustion", "tensors hold 13.00 GiB of 16.00 GiB, 1.00 GiB are available, 2.00 GiB", "Cap"),
        (
            3 * GIB,
            {"persistent": 4 * GIB},
            "exhaustion",
            "4.00 GiB stay allocated between steps, and this step needed 12.00 GiB",
            "step",
        ),
        (3 * GIB, {"persistent": 12 * GIB}, "exhaustion", "most of it is memory that stays", "Cap the model's size"),
    ],
)
def test_the_reason_is_found(request_bytes, changes, reason, words, advice):
    verdict = triage(request_bytes, device(**changes))
    assert verdict.reason == reason, verdict
    assert words in verdict.message
    assert advice in verdict.remedy


def test_idle_pieces_are_to_blame_where_they_withhold_more_than_others_do():
    idle = {"reserved": 11 * GIB, "allocated": 6 * GIB, "free": GIB}
    assert triage(4 * GIB, device(**idle, others=4 * GIB)).reason == "fragmentation"
    assert triage(4 * GIB, device(**idle | {"allocated": 10 * GIB}, others=4 * GIB)).reason == "another process"


def test_the_largest_owners_are_named():
    verdict = triage(3 * GIB, device(peaks={"means": GIB, "sh": 6 * GIB, "saved": 4 * GIB, "opacity": MIB}))
    assert "largest: sh 6.00 GiB, saved 4.00 GiB, means 1.00 GiB." in verdict.message


@pytest.mark.parametrize("text", [OLDEST, OLD, TYPO, CROWDED, CONTAINER, WSL, ROCM])
def test_every_text_of_torch_leads_to_a_verdict(text):
    found = parse_out_of_memory(text)
    verdict = triage(found.size, found.memory())
    assert verdict.missing >= 0
    assert len(verdict.message) > 40
    assert str(verdict).startswith(verdict.reason)


def test_a_text_without_numbers_has_no_device():
    assert AllocationRequest(size=2**60, device="cpu").memory() is None


def test_impossible_numbers_are_refused():
    with pytest.raises(ValueError, match=r"free=-1.*must be 0 bytes or more"):
        device(free=-1)
    with pytest.raises(ValueError, match=r"total=0\): .*total above 0"):
        device(total=0)
    with pytest.raises(ValueError, match=r"triage\(request=-5\)"):
        triage(-5, device())


def test_any_numbers_lead_to_one_of_the_four_reasons():
    rng = np.random.default_rng(8)
    reasons = set()
    for _ in range(500):
        total, free, allocated, idle, others, request = (int(n) for n in 2 ** rng.uniform(20, 36, 6))
        numbers = {"total": total, "free": free, "allocated": allocated, "reserved": allocated + idle, "others": others}
        reasons.add(triage(request, DeviceMemory(**numbers)).reason)
    assert reasons == {"impossible request", "another process", "fragmentation", "exhaustion"}
