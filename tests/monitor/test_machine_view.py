import dataclasses
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from fieldwatch.monitor import (
    Cpu,
    Gpu,
    GpuProcess,
    Machine,
    MigInstance,
    ProcessFacts,
    RunFacts,
    machine_line,
    render_machine,
)

GB = 2**30
EMPTY = Machine(
    time=datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC),
    host="workstation",
    driver=None,
    cuda=None,
    gpus=(),
    cpu=Cpu(cores=16, utilisation_percent=45.2, memory_used_bytes=20 * GB, memory_total_bytes=64 * GB),
    runs=(),
    notes=("no NVIDIA driver (NVML Shared Library Not Found): only CPU, memory and runs are shown",),
)


def facts(pid, command="python train.py"):
    return ProcessFacts(pid=pid, name="python", command=command, user="ada", cpu_percent=101.0, resident_bytes=3 * GB)


def run(pid, folder="/home/ada/projects/runs/splats/bear", allocated=11):
    memory = {"allocated_bytes": allocated and allocated * GB, "reserved_bytes": allocated and 14 * GB}
    return RunFacts(folder=Path(folder), process=facts(pid), step=14999 if allocated else None, **memory)


def process(pid, memory=GB, told="python train.py", of=None):
    known = facts(pid, told) if told else None
    return GpuProcess(pid=pid, kind="compute", memory_bytes=memory, instance=None, facts=known, run=of)


def card(index=0, **changes):
    usual = Gpu(
        index=index,
        name="NVIDIA GeForce RTX 5060 Ti",
        memory_used_bytes=round(15.6 * GB),
        memory_total_bytes=16 * GB,
        utilisation_percent=98.0,
        power_watts=171.2,
        power_limit_watts=180.0,
        temperature_celsius=71.0,
        clock_mhz=2617,
    )
    return dataclasses.replace(usual, **changes)


def machine(*gpus, **changes):
    return dataclasses.replace(EMPTY, driver="590.44.01", cuda="13.1", gpus=gpus, notes=(), **changes)


def drawn(told, rows=24, width=80):
    out = StringIO()
    Console(file=out, width=width, highlight=False).print(render_machine(told, rows=rows))
    return out.getvalue().splitlines()


def test_one_card_in_a_line_as_the_original_printed_it():
    assert machine_line(machine(card())) == "GPU Memory: 15.6 GiB / 16.0 GiB (97%) CRITICAL"


def test_several_cards_are_numbered():
    told = machine_line(machine(card(), card(1, memory_used_bytes=13 * GB)))
    assert told.split("  ")[1] == "GPU 1 Memory: 13.0 GiB / 16.0 GiB (81%) HIGH"
    assert told.startswith("GPU 0 Memory: 15.6 GiB")


def test_without_a_card_the_line_tells_the_processor():
    assert machine_line(EMPTY) == "CPU: 45%  Memory: 20.0 GiB / 64.0 GiB (31%)"


def test_what_is_not_told_reads_so():
    assert machine_line(machine(Gpu(index=0))) == "GPU Memory: N/A / N/A (N/A) N/A"
    (first, second) = drawn(machine(Gpu(index=0)))[1:3]
    assert first == "GPU 0  N/A  busy N/A  N/A of N/A W  N/A °C  N/A MHz"
    assert second.endswith("  N/A / N/A (N/A)")


def test_a_card_at_a_glance():
    lines = drawn(machine(card(limited_by=("power cap", "sync boost"), throttled=True, ecc_errors=2)))
    assert lines[1] == "GPU 0  NVIDIA GeForce RTX 5060 Ti  busy 98%  171 of 180 W  71 °C  2,617 MHz"
    assert lines[2] == "  " + "█" * 23 + "░  15.6 GiB / 16.0 GiB (97%) CRITICAL"
    assert lines[3].endswith(" power cap, sync boost")
    assert "2 uncorrected memory errors (ECC)" in lines[4]


def test_processes_and_runs_are_told_apart():
    mine = run(4242)
    gpu = card(processes=(process(4242, None, of=mine), process(77777, told=None), process(9, told="[bold]x[/y] -a")))
    lines = drawn(machine(gpu, runs=(mine, run(4243, "runs/bunny", allocated=None))))
    rows = {tuple(row.split()) for row in lines}
    assert ("0", "4242", "ada", "N/A", "101%", "run", "…/splats/bear") in rows
    assert ("0", "77777", "N/A", "1.0", "GiB", "N/A", "not", "visible", "from", "here") in rows
    assert ("0", "9", "ada", "1.0", "GiB", "101%", "[bold]x[/y]", "-a") in rows
    assert ("14999", "4242", "11.0", "GiB", "14.0", "GiB", "101%", "3.0", "GiB", "…/splats/bear") in rows
    assert ("N/A", "4243", "N/A", "N/A", "101%", "3.0", "GiB", "runs/bunny") in rows


def test_instances_are_listed_under_their_card():
    part = MigInstance(
        gpu_instance=1,
        compute_instance=0,
        name="MIG 3g.40gb",
        uuid="MIG-1",
        memory_used_bytes=GB,
        memory_total_bytes=40 * GB,
    )
    assert "  instance 1/0  MIG 3g.40gb  1.0 GiB / 40.0 GiB" in drawn(machine(card(mig=True, instances=(part,))))


@pytest.mark.parametrize("cards", [0, 1, 2, 4])
@pytest.mark.parametrize("processes", [0, 3, 40])
@pytest.mark.parametrize("runs", [0, 2, 30])
def test_it_fits_80_by_24_and_counts_what_it_leaves_out(cards, processes, runs):
    several = tuple(process(1000 + i, told="python " + "very_long_name " * 9) for i in range(processes))
    told = machine(
        *(card(i, limited_by=("power cap",), processes=several) for i in range(cards)),
        runs=tuple(run(i, f"/home/ada/projects/a-long-name-of-a-project/runs/run-{i}") for i in range(runs)),
    )
    lines = drawn(dataclasses.replace(told, notes=EMPTY.notes))
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    left_out = sum(int(row.split()[2]) for row in lines if row.startswith("... and"))
    shown = sum("very_long" in row for row in lines) + sum("/run-" in row for row in lines)
    assert shown + left_out == cards * processes + runs


def test_with_room_everything_is_shown():
    told = machine(card(processes=tuple(process(1000 + i) for i in range(60))))
    assert sum("train.py" in row for row in drawn(told, rows=10**9)) == 60
