"""Rendering of the machine's state in a terminal: a view of 80 x 24 characters, or one plain line."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fieldwatch.base import nbytes, number, percent
from fieldwatch.monitor.readings import Cpu, Gpu, GpuProcess, Machine, RunFacts, Status

COLORS: Final[dict[Status, str]] = {"HEALTHY": "green", "HIGH": "yellow", "CRITICAL": "bold red"}
BAR: Final = 24
UNKNOWN: Final = "N/A"


def render_machine(machine: Machine, *, rows: int = 24) -> RenderableType:
    """Render the machine as text and tables, at most ``rows`` lines at 80 columns.

    Args:
        machine: state of the machine.
        rows: number of available lines; long lists are truncated, and the remaining entries are counted.
    """
    lines: list[RenderableType] = [_heading(machine)]
    for gpu in machine.gpus:
        lines += _gpu(gpu)
    lines.append(_cpu(machine.cpu))
    notes = [Text(note, style="yellow") for note in machine.notes]
    used = len(lines) + sum(2 if len(note) > 80 else 1 for note in notes)
    # Two lines are reserved for the heading of a table and for the count of omitted entries.
    table_rows = max(rows - used - 2, 2)
    listed = [(gpu.index, process) for gpu in machine.gpus for process in gpu.processes]
    # GPU processes get two thirds of the lines.
    runs = machine.runs[: max(1, table_rows // 3)] if listed else machine.runs[:table_rows]
    if listed:
        lines += _list(_processes(listed[: max(table_rows - len(runs) - 2, 1)]), len(listed))
    if runs:
        lines += _list(_runs(runs), len(machine.runs))
    return Group(*lines, *notes)


def machine_line(machine: Machine) -> str:
    """Return the machine in one line: ``GPU Memory: 15.6 GiB / 16.0 GiB (97%)``.

    Several GPUs are numbered (``GPU 0 Memory: ...``). Without a GPU, the line shows CPU and main memory.
    """
    numbered = len(machine.gpus) > 1
    gpus = [f"GPU{f' {gpu.index}' if numbered else ''} Memory: {_gpu_line(gpu)}" for gpu in machine.gpus]
    cpu = machine.cpu
    memory = f"{_size(cpu.memory_used_bytes)} / {_size(cpu.memory_total_bytes)} ({_percent(_memory_percent(cpu))})"
    return "  ".join(gpus) or f"CPU: {_percent(cpu.utilisation_percent)}  Memory: {memory}"


def _size(count: int | None) -> str:
    """Format a number of bytes; ``N/A`` if unknown, as nvidia-smi does."""
    return UNKNOWN if count is None else nbytes(count)


def _gpu_line(gpu: Gpu) -> str:
    used = _size(gpu.memory_used_bytes)
    total = _size(gpu.memory_total_bytes)
    return f"{used} / {total} ({_percent(gpu.memory_percent)}) {gpu.status or UNKNOWN}"


def _heading(machine: Machine) -> Text:
    driver = f"NVIDIA driver {machine.driver}, CUDA {machine.cuda or UNKNOWN}" if machine.driver else "no NVIDIA driver"
    clock = machine.time.astimezone().strftime("%H:%M:%S")
    return Text.assemble((machine.host, "bold"), f"  {clock}  {driver}", overflow="ellipsis", no_wrap=True)


def _gpu(gpu: Gpu) -> Iterator[RenderableType]:
    yield Text.assemble((f"GPU {gpu.index}  ", "bold"), gpu.name or UNKNOWN, "  ", _load(gpu), no_wrap=True)
    yield _memory(gpu.memory_used_bytes, gpu.memory_total_bytes, gpu.memory_percent, gpu.status)
    if gpu.limited_by:
        style = "red" if gpu.throttled else "dim"
        yield Text(f"  clocks limited by {', '.join(gpu.limited_by)}", style=style, overflow="ellipsis", no_wrap=True)
    if gpu.ecc_errors:
        yield Text(f"  {gpu.ecc_errors} uncorrected memory errors (ECC) since the driver was loaded", style="bold red")
    for instance in gpu.instances:
        used = _size(instance.memory_used_bytes)
        total = _size(instance.memory_total_bytes)
        numbers = f"{instance.gpu_instance}/{instance.compute_instance}"
        yield Text(f"  instance {numbers}  {instance.name or UNKNOWN}  {used} / {total}")


def _load(gpu: Gpu) -> str:
    power = f"{_number(gpu.power_watts)} of {_number(gpu.power_limit_watts)} W"
    heat = f"{_number(gpu.temperature_celsius)} °C"
    clock = f"{_number(gpu.clock_mhz)} MHz"
    return f"busy {_percent(gpu.utilisation_percent)}  {power}  {heat}  {clock}"


def _cpu(cpu: Cpu) -> Text:
    used = _size(cpu.memory_used_bytes)
    total = _size(cpu.memory_total_bytes)
    memory = f"memory {used} / {total} ({_percent(_memory_percent(cpu))})"
    return Text.assemble(("CPU  ", "bold"), f"{_percent(cpu.utilisation_percent)} of {cpu.cores} cores  {memory}")


def _memory(used: int | None, total: int | None, used_percent: float | None, status: Status | None) -> Text:
    filled = round(BAR * (used_percent or 0) / 100)
    color = "dim" if status is None else COLORS[status]
    bar = ("█" * filled, color), ("░" * (BAR - filled), "dim")
    return Text.assemble(
        "  ",
        *bar,
        f"  {_size(used)} / {_size(total)} ({_percent(used_percent)})",
        (f" {status}" if status else "", color),
    )


def _processes(listed: Sequence[tuple[int, GpuProcess]]) -> Table:
    table = _table("GPU", "pid", "user", "memory", "CPU", "process")
    for index, process in listed:
        facts = process.facts
        description = "not visible from here" if facts is None else facts.command or facts.name or UNKNOWN
        table.add_row(
            str(index) if process.instance is None else f"{index}/{process.instance}",
            str(process.pid),
            Text((facts and facts.user) or UNKNOWN),
            _size(process.memory_bytes),
            _percent(facts and facts.cpu_percent),
            Text(description if process.run is None else f"run {_short(process.run.folder)}"),
        )
    return table


def _runs(runs: Sequence[RunFacts]) -> Table:
    table = _table("step", "pid", "tensors", "reserved", "CPU", "RSS", "run")
    for run in runs:
        process = run.process
        table.add_row(
            UNKNOWN if run.step is None else str(run.step),
            str(process.pid),
            _size(run.allocated_bytes),
            _size(run.reserved_bytes),
            _percent(process.cpu_percent),
            _size(process.resident_bytes),
            Text(_short(run.folder)),
        )
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", expand=True)
    for column in columns[:-1]:
        table.add_column(column, justify="left" if column == "user" else "right", no_wrap=True)
    table.add_column(columns[-1], no_wrap=True, overflow="ellipsis", ratio=1)
    return table


def _list(table: Table, whole: int) -> Iterator[RenderableType]:
    yield table
    if whole > table.row_count:
        yield Text(f"... and {whole - table.row_count} more", style="dim")


def _short(folder: Path) -> str:
    """Return the last two parts of a path, in which runs differ; the JSON output has the full path."""
    return folder.as_posix() if len(folder.parts) <= 2 else f"…/{'/'.join(folder.parts[-2:])}"


def _memory_percent(cpu: Cpu) -> float:
    return 100 * cpu.memory_used_bytes / cpu.memory_total_bytes


def _percent(value: float | None) -> str:
    return UNKNOWN if value is None else percent(value / 100, 0)


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else number(round(value))
