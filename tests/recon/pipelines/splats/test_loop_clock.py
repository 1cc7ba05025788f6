"""Speeds and remaining times from readings of a known clock."""

import time

import psutil
import pytest
import torch

from fieldwatch.recon.pipelines.splats.loop_clock import MACHINE_SECONDS, WINDOW, LoopClock
from fieldwatch.recon.pipelines.splats.tags import SPLATS_METRICS


@pytest.fixture
def clock():
    return LoopClock(1000, torch.device("cpu"))


def test_minutes_per_iteration_are_that_and_not_the_total(clock):
    clock.metrics(9, 6.0)
    values = clock.metrics(19, 12.0)
    assert values["Time/minutes_per_iter"] == pytest.approx(0.01)
    assert values["Time/elapsed_minutes"] == pytest.approx(0.2)
    assert values["Performance/iterations_per_sec"] == pytest.approx(1 / 0.6)
    assert values["Performance/eta_minutes"] == pytest.approx(980 * 0.01)


def test_a_pause_changes_the_speed_now_and_the_time_to_come_only_a_little(clock):
    for reading in range(10):
        clock.metrics(10 * reading + 9, float(reading))
    values = clock.metrics(109, 30.0)
    assert values["Performance/iterations_per_sec"] == pytest.approx(10 / 21)
    assert values["Performance/eta_minutes"] == pytest.approx(890 * 0.3 / 60)


def test_old_looks_are_forgotten(clock):
    clock.metrics(0, 0.0)
    for reading in range(WINDOW):
        clock.metrics(500 + reading, 5000.0 + reading)
    assert clock.metrics(500 + WINDOW, 5000.0 + WINDOW)["Performance/eta_minutes"] == pytest.approx((499 - WINDOW) / 60)


def test_the_first_look_and_a_clock_that_stands_still_have_no_speed(clock):
    assert "Time/minutes_per_iter" not in clock.metrics(9, 6.0)
    assert "Performance/eta_minutes" not in clock.metrics(19, 6.0)


def test_a_cpu_has_no_vram_and_every_name_is_declared(clock):
    clock.metrics(9, 6.0)
    values = clock.metrics(19, 12.0)
    assert not any(name.startswith("VRAM/") for name in values)
    assert 0 < values["System/RAM_percent"] <= 100
    assert [name for name in values if name not in SPLATS_METRICS] == []


def test_looks_close_together_repeat_what_the_machine_said(clock, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(psutil, "cpu_percent", iter([10.0, 20.0, 30.0]).__next__)
    seen = []
    for later in (0.0, 0.9 * MACHINE_SECONDS, 0.2 * MACHINE_SECONDS, 0.5 * MACHINE_SECONDS, MACHINE_SECONDS):
        now[0] += later
        seen.append(clock.metrics(len(seen), now[0])["System/CPU_percent"])
    assert seen == [10.0, 10.0, 20.0, 20.0, 30.0]


def test_on_a_gpu_the_process_is_measured_and_not_the_device(monkeypatch):
    """Torch's functions are replaced by fixed answers."""
    card = type("Card", (), {"total_memory": 16 * 2**30})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 3 * 2**30)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 4 * 2**30)
    values = LoopClock(10, torch.device("cuda", 0)).metrics(0, 1.0)
    vram = {name: value for name, value in values.items() if name.startswith("VRAM/")}
    assert vram == {"VRAM/allocated_GB": 3, "VRAM/reserved_GB": 4, "VRAM/percent": 25}
