import os
import subprocess
import sys

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fieldwatch.measure import AllocatorCounters
from fieldwatch.measure.gauge import gauge_of
from fieldwatch.measure.resident import ResidentMemory

MB = 2**20
CPU = torch.device("cpu")


@pytest.mark.machine
def test_on_a_cpu_a_step_records_the_resident_memory_of_the_process():
    counters = AllocatorCounters(CPU)
    taken = counters.take()
    assert taken.keys() == {"Memory/allocated_MB", "Memory/peak_MB"}
    assert taken["Memory/allocated_MB"] == pytest.approx(psutil.Process().memory_info().rss / MB, abs=4)


@pytest.mark.machine
def test_on_a_cpu_the_peak_is_the_larger_of_update_and_end():
    counters = AllocatorCounters(CPU)
    before = counters.take()["Memory/allocated_MB"]
    activations = torch.ones(64 * MB, dtype=torch.uint8)
    counters.sample()
    del activations
    taken = counters.take()
    assert taken["Memory/peak_MB"] == pytest.approx(before + 64, abs=4)
    assert taken["Memory/allocated_MB"] == pytest.approx(before, abs=4)
    assert counters.take()["Memory/peak_MB"] == pytest.approx(before, abs=4)
    assert counters.run_peak / MB == pytest.approx(before + 64, abs=4)


def test_a_cuda_step_records_all_four(simulated):
    counters = simulated.counters()
    simulated.hold(10 * MB)
    simulated.touch(30 * MB)
    simulated.retries = 2
    counters.sample()
    assert counters.take() == {
        "Memory/allocated_MB": 10,
        "Memory/peak_MB": 40,
        "Memory/reserved_MB": 40,
        "Memory/retries": 2,
    }


def test_a_cuda_step_costs_one_look_and_one_reset(simulated):
    counters = simulated.counters()
    before = simulated.resets
    counters.sample()
    counters.take()
    assert simulated.resets == before + 1


def test_each_step_has_its_own_peak_and_the_run_has_the_largest(simulated):
    counters = simulated.counters()
    peaks = []
    for size in (5, 90, 20):
        simulated.touch(size * MB)
        peaks.append(counters.take()["Memory/peak_MB"])
    assert peaks == [5, 90, 20]
    assert counters.run_peak == 90 * MB


def test_what_came_before_the_first_step_is_the_runs_and_not_the_steps(simulated):
    simulated.touch(500 * MB)
    counters = simulated.counters()
    assert counters.take()["Memory/peak_MB"] == 0
    assert counters.run_peak == 500 * MB


def test_somebody_elses_reset_costs_what_was_between_and_no_more(simulated):
    counters = simulated.counters()
    simulated.hold(50 * MB)
    counters.take()
    simulated.hold(-40 * MB)
    simulated.reset(0)
    assert counters.take()["Memory/peak_MB"] == 50, "it was allocated when the step began"
    simulated.touch(20 * MB)
    simulated.reset(0)
    simulated.touch(5 * MB)
    assert counters.take()["Memory/peak_MB"] == 15
    assert counters.run_peak == 50 * MB


def test_before_cuda_is_used_everything_is_zero_and_nothing_is_reset(simulated):
    simulated.in_use = False
    counters = simulated.counters()
    assert counters.take() == dict.fromkeys(
        ("Memory/allocated_MB", "Memory/peak_MB", "Memory/reserved_MB", "Memory/retries"), 0
    )
    simulated.in_use = True
    simulated.touch(3 * MB)
    assert counters.take()["Memory/peak_MB"] == 3


@given(steps=st.lists(st.lists(st.integers(-50, 50), max_size=6), max_size=8))
def test_step_peaks_are_those_of_the_whole_curve(new_simulated, steps):
    simulated = new_simulated()
    counters = simulated.counters()
    for changes in steps:
        curve = [simulated.allocated]
        for change in changes:
            simulated.hold(max(change, -simulated.allocated))
            curve.append(simulated.allocated)
        taken = counters.take()
        assert taken["Memory/peak_MB"] * MB == max(curve)
        assert taken["Memory/allocated_MB"] * MB == curve[-1]


def test_an_allocator_that_torch_cannot_ask_is_left_alone_with_a_notice(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "pluggable")
    counters = AllocatorCounters(torch.device("cuda:0"))
    counters.sample()
    assert counters.take() == {}
    assert (counters.capacity(), counters.run_peak) == (None, 0)
    assert "custom allocator" in counters.notice


def test_a_cuda_device_is_read_by_its_number(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert gauge_of(torch.device("cuda"))._index == 3
    assert gauge_of(torch.device("cuda:1"))._index == 1


def cuda_capacity(monkeypatch, simulated, *, free, total, fraction=1.0, backend="native"):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, total))
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: backend)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _: fraction)
    return simulated.counters().capacity()


def test_on_cuda_the_capacity_is_what_is_free_and_what_torch_has(monkeypatch, simulated):
    simulated.touch(300)
    assert cuda_capacity(monkeypatch, simulated, free=500, total=1000) == 800


def test_a_limited_fraction_limits_the_capacity(monkeypatch, simulated):
    simulated.touch(300)
    assert cuda_capacity(monkeypatch, simulated, free=500, total=1000, fraction=0.5) == 500


def test_a_backend_without_fractions_is_not_asked_for_one(monkeypatch, simulated):
    assert cuda_capacity(monkeypatch, simulated, free=500, total=1000, fraction=0.1, backend="cudaMallocAsync") == 500


def test_asking_for_the_capacity_makes_no_cuda_context(simulated):
    assert simulated.counters().capacity() is None


def test_on_a_cpu_the_capacity_lies_between_what_it_has_and_the_machine():
    counters = AllocatorCounters(CPU)
    assert counters.run_peak <= counters.capacity() <= psutil.virtual_memory().total


@pytest.mark.machine
def test_resident_memory_is_what_psutil_reads():
    assert ResidentMemory().read() == pytest.approx(psutil.Process().memory_info().rss, abs=4 * MB)


@pytest.mark.machine
def test_without_proc_psutil_is_asked(tmp_path):
    assert ResidentMemory(tmp_path).read() == pytest.approx(psutil.Process().memory_info().rss, abs=4 * MB)


FORK = """
import os, psutil
from fieldwatch.measure.resident import ResidentMemory

resident = ResidentMemory()
mine = resident.read()
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    extra = bytearray(os.urandom(2**20) * 80)
    os.write(writer, f"{resident.read()} {psutil.Process().memory_info().rss}".encode())
    os._exit(0)
os.waitpid(child, 0)
print(os.read(reader, 100).decode(), mine, resident.read())
"""


def test_a_forked_process_reads_its_own_memory():
    """Run in a separate process, so that other allocations of this one do not interfere."""
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen, true, mine, afterwards = map(int, done.stdout.split())
    assert seen == pytest.approx(true, abs=4 * MB)
    assert seen != pytest.approx(mine, abs=4 * MB), "the test could not tell the two processes apart"
    assert afterwards == pytest.approx(mine, abs=4 * MB)


def test_nothing_stays_open_when_the_reader_is_gone():
    resident = ResidentMemory()
    descriptor = resident._statm.descriptor()
    del resident
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_real_counters_on_a_gpu(gpu):
    base = torch.cuda.memory_allocated(gpu)
    counters = AllocatorCounters(gpu)
    torch.cuda.set_sync_debug_mode("error")
    try:
        big = torch.empty(64 * MB, dtype=torch.uint8, device=gpu)
        del big
        kept = torch.empty(16 * MB, dtype=torch.uint8, device=gpu)
        counters.sample()
        first = counters.take()
        second = counters.take()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert first["Memory/peak_MB"] * MB == base + 64 * MB
    assert first["Memory/allocated_MB"] * MB == torch.cuda.memory_allocated(gpu) == base + kept.nbytes
    assert first["Memory/reserved_MB"] * MB == torch.cuda.memory_reserved(gpu)
    assert second["Memory/peak_MB"] * MB == base + 16 * MB
    assert counters.run_peak >= base + 64 * MB
    assert torch.cuda.memory_reserved(gpu) <= counters.capacity() <= torch.cuda.mem_get_info(gpu)[1]


def test_the_fraction_of_a_gpu_limits_the_capacity(gpu):
    counters = AllocatorCounters(gpu)
    torch.empty(1, device=gpu)
    torch.cuda.set_per_process_memory_fraction(0.25, gpu)
    try:
        assert counters.capacity() <= torch.cuda.mem_get_info(gpu)[1] // 4
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, gpu)
