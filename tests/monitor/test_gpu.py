import dataclasses
from types import SimpleNamespace

import pytest

from fieldwatch.monitor.gpu import read_gpu
from fieldwatch.monitor.nvml import Nvml

GB = 2**30


@pytest.fixture
def read(with_cards):
    def read(*cards, index=0):
        with_cards(*cards)
        return read_gpu(Nvml(), index)

    return read


def test_everything_a_card_tells(read, nvml):
    gpu = read(nvml.card())
    assert (gpu.memory_used_bytes, gpu.memory_total_bytes, gpu.memory_reserved_bytes) == (6 * GB, 24 * GB, GB)
    assert (gpu.memory_percent, gpu.status) == (25.0, "HEALTHY")
    assert (gpu.utilisation_percent, gpu.memory_utilisation_percent) == (98.0, 61.0)
    assert (gpu.power_watts, gpu.power_limit_watts, gpu.temperature_celsius) == (412.345, 450.0, 71.0)
    assert (gpu.limited_by, gpu.throttled) == (("power cap",), True)
    assert gpu.missing == {"ecc_errors": "Not Supported", "mig": "Not Supported"}


@pytest.mark.parametrize(
    ("used", "status"), [(80, "HEALTHY"), (80.1, "HIGH"), (95, "HIGH"), (95.1, "CRITICAL"), (100, "CRITICAL")]
)
def test_the_original_limits_of_memory(read, nvml, used, status):
    memory = SimpleNamespace(total=1000, used=round(10 * used), free=0, reserved=0)
    assert read(nvml.card(MemoryInfo=memory)).status == status


@pytest.mark.parametrize("reason", ["NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND", "UNKNOWN"])
@pytest.mark.parametrize(
    ("call", "fields"),
    [
        ("Name", {"name"}),
        ("UtilizationRates", {"utilisation_percent", "memory_utilisation_percent"}),
        ("PowerUsage", {"power_watts"}),
        ("EnforcedPowerLimit", {"power_limit_watts"}),
        ("Temperature", {"temperature_celsius"}),
        ("ClockInfo", {"clock_mhz", "memory_clock_mhz"}),
        ("CurrentClocksEventReasons", {"limited_by", "throttled"}),
        ("MemoryInfo", {"memory_used_bytes", "memory_total_bytes", "memory_reserved_bytes"}),
    ],
)
def test_one_value_that_cannot_be_had_hides_no_other(read, nvml, call, fields, reason):
    whole = read(nvml.card())
    less = read(nvml.card(**{call: nvml.failure(reason)}))
    values = dataclasses.asdict(whole)
    left = dataclasses.asdict(less)
    assert {name for name in values if values[name] != left[name]} - {"missing"} == fields
    assert all(left[name] is None for name in fields)
    assert less.missing.keys() > whole.missing.keys()
    assert str(nvml.failure(reason)) in less.missing.values()


def test_a_lost_gpu_is_told_and_its_neighbor_read(read, nvml):
    lost = nvml.card(Handle=nvml.failure("GPU_IS_LOST"))
    assert dict(read(lost, nvml.card()).missing) == {"gpu": "GPU is lost"}
    assert read(lost, nvml.card(), index=1).memory_percent == 25.0


def test_other_drivers_have_other_names_for_the_same(read, nvml):
    def memory(version=None):
        return nvml.failure("FUNCTION_NOT_FOUND") if version else SimpleNamespace(total=8 * GB, used=GB, free=7 * GB)

    new = {"Temperature": nvml.failure("FUNCTION_NOT_FOUND"), "TemperatureV": 42}
    old = {"CurrentClocksEventReasons": nvml.failure("FUNCTION_NOT_FOUND"), "CurrentClocksThrottleReasons": 0x21}
    gpu = read(nvml.card(MemoryInfo=memory, **old, **new))
    assert (gpu.memory_used_bytes, gpu.memory_reserved_bytes) == (GB, None)
    assert gpu.limited_by == ("heat (driver)",)
    assert gpu.temperature_celsius == 42
    assert gpu.missing.keys() == {"mig", "ecc_errors"}


@pytest.mark.parametrize(
    ("bits", "limits", "throttled"),
    [
        (0, (), False),
        (0x1, (), False),
        (0x2, ("clock setting",), False),
        (0x10C, ("power cap", "hardware slowdown", "display clock"), True),
        (0xE0, ("heat (driver)", "heat (hardware)", "power brake"), True),
    ],
)
def test_what_holds_the_clocks_down(read, nvml, bits, limits, throttled):
    gpu = read(nvml.card(CurrentClocksEventReasons=bits))
    assert (gpu.limited_by, gpu.throttled) == (limits, throttled)


def test_a_process_that_computes_and_draws_is_listed_once(read, nvml):
    compute = [nvml.process(30, 3 * GB), nvml.process(20, None)]
    graphics = [nvml.process(10, GB), nvml.process(20, 2 * GB)]
    gpu = read(nvml.card(ComputeRunningProcesses=compute, GraphicsRunningProcesses=graphics))
    told = [(process.pid, process.kind, process.memory_bytes) for process in gpu.processes]
    assert told == [(10, "graphics", GB), (20, "compute+graphics", 2 * GB), (30, "compute", 3 * GB)]


def test_mig_instances_are_listed_and_empty_places_left_out(read, nvml):
    part = nvml.card(
        Name="NVIDIA A100 MIG 3g.20gb",
        UUID="MIG-1",
        GpuInstanceId=2,
        ComputeInstanceId=0,
        MemoryInfo=SimpleNamespace(total=20 * GB, used=GB, free=19 * GB, reserved=0),
    )
    gpu = read(
        nvml.card(
            MigMode=[1, 1],
            UtilizationRates=nvml.failure("NOT_SUPPORTED"),
            MaxMigDeviceCount=7,
            MigDeviceHandleByIndex=lambda i: part if i == 1 else nvml.failure("NOT_FOUND"),
            ComputeRunningProcesses=[nvml.process(30, GB, 2), nvml.process(30, GB, 3)],
        )
    )
    (instance,) = gpu.instances
    assert (instance.gpu_instance, instance.uuid, instance.memory_total_bytes) == (2, "MIG-1", 20 * GB)
    assert gpu.mig
    assert [process.instance for process in gpu.processes] == [2, 3]
    assert (gpu.utilisation_percent, gpu.missing["utilisation_percent"]) == (None, "Not Supported")
