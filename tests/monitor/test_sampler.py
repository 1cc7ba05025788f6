import os

import pytest

from fieldwatch.monitor import MachineSampler
from fieldwatch.record import TOOLKIT

GB = 2**30
GPU = "Machine/GPU0/"


@pytest.fixture
def sampler(with_cards):
    def sampler(*cards):
        with_cards(*cards)
        return MachineSampler()

    return sampler


class Clock:
    """A clock that advances only by the cost of each sample."""

    def __init__(self):
        self.now = self.cost = 0.0

    def __call__(self):
        self.now += self.cost
        return self.now


def test_without_a_driver_the_processor_is_sampled():
    sampler = MachineSampler()
    sum(range(2_000_000))  # half a tick at least
    values = sampler.sample()
    sampler.close()
    assert {name.rpartition("/")[0] for name in values} == {"Machine/CPU"}
    assert 0 < values["Machine/CPU/process_MB"] < values["Machine/CPU/memory_used_MB"]
    assert values["Machine/CPU/memory_used_MB"] < values["Machine/CPU/memory_total_MB"]
    assert 0 <= values["Machine/CPU/utilisation_percent"] <= 100
    assert values["Machine/CPU/process_percent"] > 0


def test_every_name_is_declared(sampler, nvml):
    values = sampler(nvml.card(ComputeRunningProcesses=[nvml.process(os.getpid(), GB)]), nvml.card()).sample()
    assert {name.split("/")[1] for name in values} == {"CPU", "GPU0", "GPU1"}
    assert len([name for name in values if name.startswith(GPU)]) == 7
    for name in values:
        TOOLKIT.require(name)


def test_what_a_card_tells(sampler, nvml):
    values = sampler(nvml.card()).sample()
    assert values[f"{GPU}memory_used_MB"] == 6 * 1024
    assert values[f"{GPU}memory_total_MB"] == 24 * 1024
    assert values[f"{GPU}utilisation_percent"] == 98
    assert values[f"{GPU}power_W"] == 412.345
    assert values[f"{GPU}temperature_C"] == 71
    assert values[f"{GPU}throttled"] == 1


@pytest.mark.parametrize(
    ("processes", "others"),
    [
        ([], 0),
        ([("own", 3)], 0),
        ([("own", 3), ("parent", 2)], 2048),
        ([("parent", 2)], 2048),
        ([("own", None), ("parent", 2)], 2048),
        ([("own", 3), ("parent", None)], None),
        ([("own", 3), ("foreign", 2)], 2048),
        ([("foreign", 2)], None),
    ],
)
def test_memory_of_others_is_told_only_where_it_is_known(sampler, nvml, processes, others):
    """Foreign pids without ours: the driver uses another pid namespace, and one of the pids may be this process."""
    pids = {"own": os.getpid(), "parent": os.getppid(), "foreign": 2**22 + 1}
    listed = [nvml.process(pids[who], memory and memory * GB) for who, memory in processes]
    values = sampler(nvml.card(ComputeRunningProcesses=listed)).sample()
    assert values.get(f"{GPU}others_MB") == others


def test_a_failing_value_is_left_out_and_asked_for_again(sampler, nvml):
    card = nvml.card(PowerUsage=nvml.failure("NOT_SUPPORTED"))
    machine = sampler(card)
    whole = machine.sample()
    assert f"{GPU}power_W" not in whole
    assert f"{GPU}temperature_C" in whole
    card["PowerUsage"] = 100_000
    assert machine.sample()[f"{GPU}power_W"] == 100


def test_a_gpu_that_is_lost_leaves_the_others(sampler, nvml):
    values = sampler(nvml.card(Handle=nvml.failure("GPU_IS_LOST")), nvml.card()).sample()
    assert {name.split("/")[1] for name in values} == {"CPU", "GPU1"}


def test_it_is_due_at_once_and_then_after_the_pause():
    clock = Clock()
    sampler = MachineSampler(10.0, clock)
    assert sampler.due()
    sampler.sample()
    clock.now += 9.9
    assert not sampler.due()
    clock.now += 0.2
    assert sampler.due()


@pytest.mark.parametrize("cost", [0.001, 0.05, 3.0])
def test_a_slow_driver_is_asked_less_often(cost):
    clock = Clock()
    sampler = MachineSampler(10.0, clock)
    clock.cost = cost
    sampler.sample()
    clock.cost, began = 0.0, clock.now
    pause = max(10.0, 2000 * cost)
    clock.now = began + 0.99 * pause
    assert not sampler.due()
    clock.now = began + 1.01 * pause
    assert sampler.due()


def test_after_closing_only_the_processor_is_left(sampler, nvml):
    machine = sampler(nvml.card())
    machine.close()
    machine.close()
    assert not [name for name in machine.sample() if name.startswith(GPU)]


@pytest.mark.parametrize("pause", [0.0, -1.0, float("nan")])
def test_a_pause_must_be_positive(pause):
    with pytest.raises(ValueError, match=r"sample every .* s:"):
        MachineSampler(pause)
