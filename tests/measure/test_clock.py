import itertools
import time

import pytest
import torch

from fieldwatch.measure import Clock, Listeners, SpanLabels


class Diary:
    """A listener that records its calls."""

    def __init__(self, lines, name=""):
        self.lines = lines
        self.name = name

    def enter(self, name):
        self.lines.append(f"{self.name}+{name}")

    def leave(self, name):
        self.lines.append(f"{self.name}-{name}")


class Ranges:
    """A fake of torch's NVTX binding."""

    def __init__(self):
        self.lines = []

    def rangePushA(self, name):  # noqa: N802  torch's name
        self.lines.append(f"+{name}")

    def rangePop(self):  # noqa: N802  torch's name
        self.lines.append("-")


class Event:
    """A fake CUDA event that completes when the test sets it."""

    now = 0.0
    passed = True

    def __init__(self, *, enable_timing):
        assert enable_timing

    def record(self):
        self.at = Event.now

    def query(self):
        return Event.passed

    def elapsed_time(self, last):
        return last.at - self.at


@pytest.fixture
def ranges(monkeypatch):
    found = Ranges()
    monkeypatch.setattr(torch._C, "_nvtx", found, raising=False)
    monkeypatch.setattr(torch.cuda.nvtx, "_nvtx", found)
    return found


@pytest.fixture
def events(monkeypatch, unchecked):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    Event.now = 0.0
    Event.passed = True
    return Event


def test_batches_come_again_and_again_and_may_be_none():
    taken = list(itertools.islice(Clock().timed([1, None, 3]), 7))
    assert taken == [1, None, 3, 1, None, 3, 1]


def test_the_wait_for_a_batch_is_measured():
    clock = Clock()
    next(clock.timed([1]))
    assert clock.take()["Time/data"] >= 0
    assert clock.take() == {}


def test_spans_of_one_name_add_up():
    clock = Clock()
    clock.add("render", 2.0)
    clock.add("render", 3.0)
    assert clock.take() == {"Time/render": 5.0}


def test_nothing_to_iterate_over_is_an_error():
    with pytest.raises(ValueError, match=r"run\.batches\("):
        next(Clock().timed([]))


def test_a_span_holds_the_spans_inside_it_and_keeps_plain_names():
    clock = Clock()
    with clock.span("step"), clock.span("render"):
        time.sleep(0.002)
    taken = clock.take()
    assert list(taken) == ["Time/render", "Time/step"]
    assert 2.0 <= taken["Time/render"] <= taken["Time/step"]


def test_a_span_that_ends_in_an_exception_is_measured_and_the_exception_goes_on():
    clock = Clock()
    lines = []
    clock.listener = Diary(lines)
    with pytest.raises(KeyError, match="view"), clock.span("render"):
        raise KeyError("view")
    assert list(clock.take()) == ["Time/render"]
    assert lines == ["+render", "-render"]


def test_a_listener_hears_of_every_span_in_order():
    clock = Clock()
    lines = []
    clock.listener = Diary(lines)
    with clock.span("loss"):
        with clock.span("normal"):
            pass
        with clock.span("mask"):
            pass
    next(clock.timed([1]))
    assert lines == ["+loss", "+normal", "-normal", "+mask", "-mask", "-loss", "+data", "-data"]


def test_a_span_tells_the_listener_that_was_there_when_it_began():
    clock = Clock()
    lines = []
    clock.listener = Diary(lines, "first")
    with clock.span("render"):
        clock.listener = None
        with clock.span("splat"):
            clock.listener = Diary(lines, "second")
    assert lines == ["first+render", "first-render"]


def test_several_listeners_leave_in_the_reverse_order():
    clock = Clock()
    lines = []
    clock.listener = Listeners(Diary(lines, "a"), Diary(lines, "b"))
    with clock.span("loss"):
        pass
    assert lines == ["a+loss", "b+loss", "b-loss", "a-loss"]


def test_what_a_listener_does_is_not_part_of_the_span():
    class Slow(Diary):
        def enter(self, name):
            super().enter(name)
            time.sleep(0.02)

        def leave(self, name):
            super().leave(name)
            time.sleep(0.02)

    clock = Clock()
    clock.listener = Slow([])
    with clock.span("render"):
        pass
    assert clock.take()["Time/render"] < 20


def test_labels_name_the_innermost_span():
    clock = Clock()
    told = []
    clock.listener = SpanLabels(told.append, outside="outside")
    with clock.span("loss"):
        with clock.span("normal"):
            pass
        with clock.span("mask"):
            pass
    assert told == ["loss", "normal", "loss", "mask", "loss", "outside"]


def test_ranges_are_off_unless_asked_for(ranges, monkeypatch):
    monkeypatch.delenv("NSYS_PROFILING_SESSION_ID", raising=False)
    clock = Clock()
    with clock.span("render"):
        pass
    assert not clock.nvtx
    assert ranges.lines == []


def test_ranges_are_on_under_nsight(ranges, monkeypatch):
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "4711")
    clock = Clock()
    with pytest.raises(KeyError), clock.span("render"), clock.span("splat"):
        raise KeyError("view")
    assert clock.nvtx
    assert ranges.lines == ["+render", "+splat", "-", "-"]


def test_ranges_stay_balanced_when_switched_inside_a_span(ranges):
    clock = Clock(nvtx=False)
    with clock.span("render"):
        clock.nvtx = True
        with clock.span("splat"):
            clock.nvtx = False
    assert ranges.lines == ["+splat", "-"]


def test_nsight_without_ranges_in_torch_stops_nobody(monkeypatch):
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "4711")
    monkeypatch.delattr(torch._C, "_nvtx", raising=False)
    assert not Clock().nvtx


def test_asking_for_ranges_that_torch_does_not_have_is_an_error(monkeypatch):
    monkeypatch.delattr(torch._C, "_nvtx", raising=False)
    with pytest.raises(RuntimeError, match=r"NVTX.*CUDA"):
        Clock(nvtx=True)


def test_device_time_is_read_once_it_has_passed(events):
    clock = Clock()
    with clock.span("render"):
        events.now = 4.0
        with clock.span("splat"):
            events.now = 5.5
    events.passed = False
    assert clock.take() == {}
    events.passed = True
    assert clock.take() == {"Time/splat": 1.5, "Time/render": 5.5}


def test_a_span_that_began_before_cuda_was_used_is_measured_on_the_host(monkeypatch):
    clock = Clock()
    with clock.span("start"):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert list(clock.take()) == ["Time/start"]


def test_spans_on_a_gpu_measure_the_device_and_never_wait(gpu):
    a = torch.rand(2048, 2048, device=gpu)
    clock = Clock()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with clock.span("product"):
            for _ in range(20):
                a = a @ a
        clock.take()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    with clock.span("nothing"):
        pass
    torch.cuda.synchronize()
    taken = clock.take()
    assert taken["Time/nothing"] < 1


def test_ranges_work_on_a_gpu(gpu):
    clock = Clock(nvtx=True)
    with clock.span("render"):
        pass
    torch.cuda.synchronize()
    assert clock.take()["Time/render"] >= 0
