import json
import subprocess

import orjson
import pytest

from fieldwatch.monitor import MachineReader, read_machine

GB = 2**30
FOREIGN = 2**22 + 1


def notes(machine):
    return "\n".join(machine.notes)


def test_without_a_driver_processor_memory_and_runs_are_told(running):
    folder, pid, _ = running
    machine = read_machine(settle=0.01)
    assert (machine.driver, machine.gpus) == (None, ())
    assert "no NVIDIA driver (NVML" in notes(machine)
    own = [run for run in machine.runs if (run.folder, run.process.pid) == (folder, pid)]
    assert len(own) == 1  # beside others that come and go
    assert own[0].process.cpu_percent is not None
    assert 0 < machine.cpu.memory_used_bytes < machine.cpu.memory_total_bytes


def test_a_driver_without_a_gpu_says_so(with_cards):
    with_cards()
    assert "no GPU" in notes(read_machine(settle=0))


@pytest.fixture
def stranger():
    """The pid of a process without a run. This one may still have the journal of an earlier test open."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process.pid


def test_two_gpus_with_a_run_and_a_stranger(with_cards, nvml, running, stranger):
    folder, pid, _ = running
    with_cards(
        nvml.card(ComputeRunningProcesses=[nvml.process(pid, 3 * GB), nvml.process(stranger, GB)]),
        nvml.card(GraphicsRunningProcesses=[nvml.process(stranger, GB)]),
    )
    machine = read_machine(settle=0)
    first, second = ({process.pid: process for process in gpu.processes} for gpu in machine.gpus)
    assert first[pid].run.folder == folder
    assert first[stranger].run is None
    assert second[stranger].facts.command == "cat"
    assert [gpu.index for gpu in machine.gpus] == [0, 1]
    assert machine.notes == ()


@pytest.mark.parametrize("memory", [None, GB])
def test_memory_per_process_that_is_not_told(with_cards, nvml, running, memory):
    """As on WSL and Windows, and with some drivers since 590: the memory that the run reports is used instead."""
    folder, pid, _ = running
    with_cards(nvml.card(ComputeRunningProcesses=[nvml.process(pid, memory)]))
    machine = read_machine(settle=0)
    (process,) = machine.gpus[0].processes
    assert (process.memory_bytes, process.run.reserved_bytes) == (memory, 200 * 2**20)
    assert ("N/A" in notes(machine)) == (memory is None)
    assert machine.gpus[0].memory_used_bytes == 6 * GB
    assert folder == process.run.folder


def test_pids_of_another_namespace(with_cards, nvml, running):
    with_cards(nvml.card(ComputeRunningProcesses=[nvml.process(FOREIGN, GB)]))
    machine = read_machine(settle=0)
    assert machine.gpus[0].processes[0].facts is None
    assert f"pid {FOREIGN} not visible" in notes(machine)
    assert "no listed pid" in notes(machine)
    assert machine.runs


def test_a_driver_that_lists_no_processes(with_cards, nvml):
    refused = nvml.failure("NO_PERMISSION")
    with_cards(nvml.card(ComputeRunningProcesses=refused, GraphicsRunningProcesses=refused))
    assert "GPU 0: the driver" in notes(read_machine(settle=0))


def test_a_gpu_that_is_lost_while_it_is_watched(with_cards, nvml):
    card = nvml.card()
    with_cards(card, nvml.card())
    with MachineReader() as reader:
        assert reader.read().gpus[0].memory_percent == 25
        card |= dict.fromkeys(card, nvml.failure("GPU_IS_LOST"))
        machine = reader.read()
    assert machine.gpus[0].memory_percent is None
    assert machine.gpus[1].memory_percent == 25
    assert "GPU 0 is lost" in notes(machine)


def test_a_gpu_that_cannot_be_reached(with_cards, nvml):
    with_cards(nvml.card(Handle=nvml.failure("NO_PERMISSION")))
    assert "GPU 0" in notes(read_machine(settle=0))


def test_as_json_tells_everything(with_cards, nvml, running):
    folder, pid, _ = running
    with_cards(nvml.card(ComputeRunningProcesses=[nvml.process(pid, None)]))
    told = json.loads(orjson.dumps(read_machine(settle=0).as_json(), default=str))
    (gpu,) = told["gpus"]
    assert (gpu["status"], gpu["memory_percent"], gpu["missing"]["mig"]) == ("HEALTHY", 25.0, "Not Supported")
    (process,) = gpu["processes"]
    assert (process["pid"], process["memory_bytes"], process["run"]["folder"]) == (pid, None, str(folder))


def test_the_library_is_opened_and_given_back_once(with_cards, nvml):
    fake = with_cards(nvml.card())
    with MachineReader() as reader:
        reader.read()
        reader.read()
    assert (fake.calls.count("nvmlInit"), fake.calls.count("nvmlShutdown")) == (1, 1)
