import ctypes
import mmap
import sys

import numpy as np
import pytest
import torch
from torch import nn

from fieldwatch.measure import ParameterGroups
from fieldwatch.measure.census import allocator_of, process_memory, take_census
from fieldwatch.measure.census.ledger import ClaimLedger
from fieldwatch.measure.census.malloc import PAGE, Heap, ProcessView, heap

CPU = torch.device("cpu")


@pytest.fixture
def glibc() -> Heap:
    found = heap()
    if not isinstance(found, Heap):
        pytest.skip("torch does not draw from glibc's malloc here")
    return found


def claims(**tensors):
    ledger = ClaimLedger(CPU)
    for name, tensor in tensors.items():
        ledger.note(tensor, "data", name, name)
    return ledger.settled()


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is on Linux")
def test_on_linux_the_heap_itself_is_asked():
    if hasattr(ctypes.CDLL(None), "mallinfo2"):
        assert heap().read().source == "mallinfo2"
    assert allocator_of(CPU) is heap()


@pytest.mark.parametrize("nbytes", [1, 24, 25, 1000, 4096, 100_001, 2**20, 40 * 2**20, 40 * 2**20 + 1])
def test_the_heap_grows_by_what_a_storage_is_said_to_cost(glibc, nbytes):
    """Compare to the byte; retry if the interpreter or a test tool allocated memory in between."""
    differences = []
    for _ in range(20):
        before = glibc.read().allocated
        tensor = torch.empty(nbytes, dtype=torch.uint8)
        after = glibc.read().allocated
        (claim,) = claims(tensor=tensor)
        differences.append(after - before - glibc.block_size(claim))
        del claim, tensor
    assert min(map(abs, differences)) <= 2048  # the tensor object itself, and allocations by the readings


def test_large_storages_cost_whole_pages(glibc):
    tensor = torch.empty(64 * 2**20, dtype=torch.uint8)
    (claim,) = claims(big=tensor)
    assert glibc.block_size(claim) % PAGE == 0
    assert PAGE <= glibc.block_size(claim) - claim.span <= 2 * PAGE


def test_mapped_files_and_shared_memory_are_foreign(glibc, tmp_path):
    path = tmp_path / "images.bin"
    path.write_bytes(bytes(2**20))
    mapped = np.memmap(path, dtype=np.uint8, mode="r+")
    shared = torch.zeros(2**18).share_memory_()
    pages = torch.frombuffer(mmap.mmap(-1, 2**16), dtype=torch.uint8)
    data = {
        "mapped": torch.from_numpy(mapped),
        "file": torch.from_file(str(path), shared=True, size=2**19, dtype=torch.uint8),
        "shared": shared,
        "pages": pages,
        "own": torch.zeros(2**18),
        "numpy": np.zeros(2**20, dtype=np.uint8),
    }
    watched = ParameterGroups()
    watched.add(w=[nn.Parameter(torch.ones(1))])
    taken = take_census(watched, optimizers=(), data=data, device=CPU)
    assert {held.component for held in taken.foreign} == {"mapped", "file", "shared", "pages"}
    assert taken.by_component() == {"w": 4, "own": 2**20, "numpy": 2**20}


def test_what_is_not_torchs_is_taken_at_its_size(glibc):
    array = torch.from_numpy(np.zeros(1000))
    (claim,) = claims(array=array)
    assert not claim.from_torch
    assert glibc.block_size(claim) == 8000


def test_the_account_is_exact_and_the_rest_is_the_interpreters():
    watched = ParameterGroups()
    watched.add(w=[nn.Parameter(torch.ones(1000))])
    taken = take_census(watched, optimizers=(), device=CPU)
    assert taken.owned + taken.rounding + taken.workspace + taken.unattributed == taken.allocated
    assert taken.reserved >= taken.allocated > taken.owned
    assert taken.unattributed > 0


def test_workspace_is_what_came_and_nobody_owns():
    watched = ParameterGroups()
    watched.add(w=[nn.Parameter(torch.ones(1000))])
    before = take_census(watched, optimizers=(), device=CPU)
    scratch = torch.zeros(5 * 2**20)
    taken = take_census(watched, optimizers=(), device=CPU, before=before)
    assert abs(taken.workspace - scratch.nbytes) < 2**18
    del scratch
    assert take_census(watched, optimizers=(), device=CPU, before=before).workspace < 2**18


def test_where_the_heap_cannot_be_asked_the_process_is_measured():
    watched = ParameterGroups()
    watched.add(w=[nn.Parameter(torch.ones(1000))])
    taken = take_census(watched, optimizers=(), device=CPU, allocator=ProcessView())
    assert taken.source == "uss"
    assert taken.rounding == 0
    assert taken.owned + taken.workspace + taken.unattributed == taken.allocated
    assert taken.reserved >= taken.allocated > 2**20


def test_a_heap_that_torch_does_not_use_is_not_believed(monkeypatch):
    """Under jemalloc or tcmalloc, glibc's counters do not change."""
    reading = heap().read()
    monkeypatch.setattr(Heap, "read", lambda _: reading)
    assert isinstance(heap.__wrapped__(), ProcessView)


def test_process_memory_is_resident_and_unique():
    found = process_memory()
    assert found.resident >= found.unique > 2**20
