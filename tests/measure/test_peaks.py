import contextlib
import json
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fieldwatch.measure import AllocatorCounters, Clock, PeakMeter, Peaks
from fieldwatch.measure import peaks as module
from fieldwatch.measure.gauge import ProcessGauge
from fieldwatch.measure.resident import HighWaterMark

MB = 2**20
NAMES = ("render", "loss", "backward")


def test_a_spans_peak_is_its_own_and_not_its_neighbors(simulated):
    peaks = Peaks(simulated.counters())
    clock = Clock()
    clock.listener = peaks
    simulated.hold(100)
    with clock.span("render"):
        simulated.hold(50)
    simulated.touch(1000)
    with clock.span("backward"):
        simulated.touch(30)
        simulated.hold(-50)
    assert peaks.take() == {"render": 150, "backward": 180}
    assert peaks.take() == {}


def test_a_span_that_only_frees_peaks_at_its_beginning(simulated):
    peaks = Peaks(simulated.counters())
    simulated.hold(100)
    peaks.enter("zero_grad")
    simulated.hold(-60)
    peaks.leave("zero_grad")
    assert peaks.take() == {"zero_grad": 100}


def test_a_parent_has_the_peaks_of_its_children_and_its_own(simulated):
    peaks = Peaks(simulated.counters())
    peaks.enter("loss")
    simulated.touch(10)
    peaks.enter("normal")
    simulated.touch(70)
    peaks.leave("normal")
    peaks.enter("mask")
    simulated.touch(20)
    peaks.leave("mask")
    simulated.touch(30)
    peaks.leave("loss")
    assert peaks.take() == {"normal": 70, "mask": 20, "loss": 70}


def test_spans_of_one_name_share_the_larger_peak(simulated):
    peaks = Peaks(simulated.counters())
    for size in (5, 9, 3):
        peaks.enter("data")
        simulated.touch(size)
        peaks.leave("data")
    assert peaks.take() == {"data": 9}


def test_a_span_that_ends_in_an_exception_has_its_peak(simulated):
    peaks = Peaks(simulated.counters())
    clock = Clock()
    clock.listener = peaks
    with contextlib.suppress(MemoryError), clock.span("step"), clock.span("render"):
        simulated.touch(40)
        raise MemoryError
    with clock.span("retry"):
        simulated.touch(5)
    assert peaks.take() == {"render": 40, "step": 40, "retry": 5}


def test_the_steps_peak_stays_right_while_spans_reset_the_counter(simulated):
    counters = simulated.counters()
    peaks = Peaks(counters)
    simulated.touch(80 * MB)
    peaks.enter("render")
    simulated.touch(20 * MB)
    peaks.leave("render")
    assert counters.take()["Memory/peak_MB"] == 80
    assert counters.run_peak == 80 * MB


def test_a_span_around_several_steps_is_there_when_it_ends(simulated):
    counters = simulated.counters()
    peaks = Peaks(counters)
    peaks.enter("epoch")
    simulated.touch(60 * MB)
    counters.take()
    assert peaks.take() == {}
    simulated.touch(10 * MB)
    assert counters.take()["Memory/peak_MB"] == 10
    peaks.leave("epoch")
    assert peaks.take() == {"epoch": 60 * MB}


def test_where_nothing_is_counted_there_are_no_peaks(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "pluggable")
    peaks = Peaks(AllocatorCounters(torch.device("cuda:0")))
    peaks.enter("render")
    peaks.leave("render")
    assert peaks.take() == {}


class Oracle:
    """Reference implementation: records the full curve of allocated memory and derives the peaks from it."""

    def __init__(self):
        self.curve = [0]
        self.open = []
        self.spans = {}
        self.began = 0

    def enter(self, name):
        self.open.append((name, len(self.curve) - 1))

    def leave(self):
        name, began = self.open.pop()
        self.spans[name] = max(self.spans.get(name, 0), *self.curve[began:])

    def take(self):
        peak = max(self.curve[self.began :])
        spans = self.spans
        self.began, self.spans = len(self.curve) - 1, {}
        return peak, spans


@given(actions=st.lists(st.one_of(st.integers(-60, 60), st.sampled_from([*NAMES, "leave", "step"])), max_size=60))
def test_random_span_trees_against_the_whole_curve(new_simulated, actions):
    simulated = new_simulated()
    oracle = Oracle()
    counters = simulated.counters()
    peaks = Peaks(counters)
    for action in [*actions, *["leave"] * len(actions), "step"]:
        if isinstance(action, int):
            simulated.hold(max(action, -simulated.allocated))
            oracle.curve.append(simulated.allocated)
        elif action in NAMES:
            peaks.enter(action)
            oracle.enter(action)
        elif action == "step":
            assert (round(counters.take()["Memory/peak_MB"] * MB), peaks.take()) == oracle.take()
        elif oracle.open:
            peaks.leave(oracle.open[-1][0])
            oracle.leave()
    assert counters.run_peak == max(oracle.curve)


def test_overlapping_stretches_are_right_too(simulated):
    simulated.hold(10)
    meter = simulated.counters().meter
    first = meter.begin()
    simulated.touch(50)
    second = meter.begin()
    simulated.touch(20)
    assert meter.end(first) == 60
    simulated.touch(30)
    assert meter.end(second) == 40


def high_water_is_there():
    return Peaks(AllocatorCounters(torch.device("cpu"))).method == "high-water mark"


SPANS = """
import json
import torch
from fieldwatch.measure import AllocatorCounters, Clock, Peaks

MB = 1 << 20
counters = AllocatorCounters(torch.device("cpu"))
peaks, clock = Peaks(counters), Clock()
clock.listener = peaks
torch.ones(1)  # one-time allocations of the first tensor
before = counters.take()["Memory/allocated_MB"]
with clock.span("step"):
    with clock.span("render"):
        torch.ones(96 * MB, dtype=torch.uint8)
    with clock.span("optimizer"):
        torch.ones(48 * MB, dtype=torch.uint8)
taken = {name: value / MB - before for name, value in peaks.take().items()}
print(json.dumps([taken, counters.take()["Memory/peak_MB"] - before]))
"""
"""Runs in a separate process, since in this one a block may reuse pages that other tests have freed."""


def test_on_a_cpu_what_a_span_gave_back_is_still_its_peak():
    if not high_water_is_there():
        pytest.skip("this process may not reset its high-water mark")
    done = subprocess.run([sys.executable, "-c", SPANS], capture_output=True, text=True, check=True)
    taken, left = json.loads(done.stdout)
    assert taken == pytest.approx({"render": 96, "optimizer": 48, "step": 96}, abs=6)
    assert left == pytest.approx(0, abs=6), "means the same on every step"


def test_where_the_mark_may_not_be_set_span_borders_are_what_there_is(monkeypatch):
    def refuse():
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "HighWaterGauge", refuse)
    peaks = Peaks(AllocatorCounters(torch.device("cpu")))
    assert peaks.method == "span borders"
    before = ProcessGauge().read().allocated
    peaks.enter("render")
    torch.ones(320 * MB, dtype=torch.uint8)
    kept = torch.ones(
        160 * MB, dtype=torch.uint8
    )  # more than malloc may have kept at the top of its heap from other tests
    peaks.leave("render")
    assert (peaks.take()["render"] - before) / MB == pytest.approx(kept.nbytes / MB, abs=6)


@pytest.mark.parametrize("status", ["Name:\tpython\nVmRSS:\t 10 kB\n", ""])
def test_a_system_without_a_high_water_mark_says_so(tmp_path, status):
    (tmp_path / "status").write_text(status)
    (tmp_path / "clear_refs").write_text("")
    with pytest.raises(OSError, match="has no VmHWM"):
        HighWaterMark(tmp_path)


def test_real_peaks_on_a_gpu_without_a_wait(gpu):
    base = torch.cuda.memory_allocated(gpu)
    counters = AllocatorCounters(gpu)
    peaks = Peaks(counters)
    clock = Clock()
    clock.listener = peaks
    torch.cuda.set_sync_debug_mode("error")
    try:
        with clock.span("step"):
            with clock.span("render"):
                torch.empty(64 * MB, dtype=torch.uint8, device=gpu)
            with clock.span("optimizer"):
                torch.empty(16 * MB, dtype=torch.uint8, device=gpu)
        taken = peaks.take()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert peaks.method == "allocator counter"
    assert taken == {"render": base + 64 * MB, "optimizer": base + 16 * MB, "step": base + 64 * MB}
    assert counters.take()["Memory/peak_MB"] * MB == base + 64 * MB
    assert isinstance(counters.meter, PeakMeter)
