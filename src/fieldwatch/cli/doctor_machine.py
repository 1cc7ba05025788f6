"""Description of this machine and of the software installed on it."""

import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fieldwatch.cli.doctor_checks import checked, gibibytes, torch_build
from fieldwatch.cli.doctor_folders import inspect_folders
from fieldwatch.cli.doctor_report import DataFinding, MachineCheck, print_checks
from fieldwatch.monitor import Gpu, read_machine
from fieldwatch.registry import pipeline_names, resolve, working_pipelines


class Library(NamedTuple):
    """An optional library: its package on PyPI, its purpose, and the command that installs it."""

    package: str
    purpose: str
    remedy: str


LIBRARIES = (
    Library("tensorboard", "dashboards", "pip install tensorboard"),
    Library("nvidia-ml-py", "GPU readings", "pip install nvidia-ml-py"),
    Library("wandb", "Weights & Biases", "pip install 'fieldwatch[wandb]'"),
    Library("mlflow-skinny", "MLflow", "pip install 'fieldwatch[mlflow]'"),
    Library("trackio", "Trackio", "pip install 'fieldwatch[trackio]'"),
    Library("ray", "many scenes at once", "pip install 'fieldwatch[ray]'"),
)
"""Optional libraries of the toolkit; pipelines list theirs in `Pipeline.libraries`."""

PROGRAMS = {
    "colmap": "camera poses of photos",
    "nsys": "GPU timelines",
    "tmux": "trainings that survive a lost connection",
    "chromium": "pictures of reports, tests of pages",
    "ffmpeg": "cutting videos; reading and writing them needs no program",
    "cc": "builds the native kernels",
    "git-lfs": "large files in repositories",
}
# Distributions that provide the same module under another name.
_STANDS_FOR = {"mlflow-skinny": ("mlflow-skinny", "mlflow"), "nvidia-ml-py": ("nvidia-ml-py", "pynvml")}


@dataclass(frozen=True, kw_only=True)
class MachineReport:
    """Description of a machine, and findings about it.

    Attributes:
        machine: processor, cores, memory, GPUs, disk, limits, clock.
        software: Python, torch, kernels, TensorBoard plugin.
        libraries: installed version by package, None if it is not installed.
        programs: path by program, None if it is not found.
        findings: problems and their remedies, the most severe first.
        checks: results of the pipelines' checks.
    """

    machine: Mapping[str, Any]
    software: Mapping[str, Any]
    libraries: Mapping[str, str | None]
    programs: Mapping[str, str | None]
    findings: tuple[DataFinding, ...]
    checks: tuple[MachineCheck, ...] = ()

    @property
    def has_problems(self) -> bool:
        """Whether a finding is worse than a note."""
        return any(finding.severity != "note" for finding in self.findings)


def describe_machine() -> MachineReport:
    """Describe this machine. If torch sees a GPU, the pipelines try it, which creates a CUDA context."""
    # No settling time: processor load is not reported here.
    reading = read_machine(settle=0.0)
    limit = memory_limit()
    total = reading.cpu.memory_total_bytes
    checks = pipeline_checks()
    folder = Path.cwd()
    machine = {
        "host": reading.host,
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processor": processor(),
        "cores": {"logical": reading.cpu.cores, "physical": psutil.cpu_count(logical=False), "usable": usable_cores()},
        "memory_bytes": total,
        "memory_free_bytes": total - reading.cpu.memory_used_bytes,
        # Some systems report "no limit" as a number far beyond the machine's memory.
        "memory_limit_bytes": limit if limit is not None and limit < total else None,
        "gpus": [_gpu(gpu) for gpu in reading.gpus],
        "driver": reading.driver,
        "disk": {"folder": str(folder), "free_bytes": shutil.disk_usage(folder).free},
        **inspect_folders(folder),
    }
    software = {
        "fieldwatch": version("fieldwatch"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_build": torch_build(),
        "torch_threads": torch.get_num_threads(),
        # `about_the_gpu` explains False if there is a GPU.
        "torch_sees_gpu": torch.cuda.is_available(),
        "pipelines": list(pipeline_names()),
        "tensorboard_tab": "fieldwatch" in metadata.entry_points(group="tensorboard_plugins").names,
    }
    for check in checks:
        software.update(check.facts)
    libraries = {library.package: installed(library.package) for library in libraries_here()}
    others = [*broken_pipelines(), *(finding for check in checks for finding in check.findings)]
    programs = {name: shutil.which(name) for name in PROGRAMS}
    return MachineReport(
        machine=machine,
        software=software,
        libraries=libraries,
        programs=programs,
        findings=checked(machine, software, others),
        checks=tuple(checks),
    )


def libraries_here() -> tuple[Library, ...]:
    """Return the libraries that the toolkit and the installed pipelines can use."""
    added = (Library(*fields) for pipeline in working_pipelines()[0] for fields in pipeline.libraries)
    # Two pipelines may list the same library.
    return tuple(dict.fromkeys((*LIBRARIES, *added)))


def pipeline_checks() -> list[MachineCheck]:
    """Run the machine checks of the installed pipelines; a check that several share runs once."""
    references = dict.fromkeys(each.machine_check for each in working_pipelines()[0] if each.machine_check)
    return [resolve(reference)() for reference in references]


def broken_pipelines() -> list[DataFinding]:
    """Report packages whose pipeline cannot be loaded, and the absence of any pipeline."""
    working, broken = working_pipelines()
    findings = [
        DataFinding(
            name="pipelines",
            severity="error",
            message=str(error),
            remedy="repair or uninstall the package that provides it",
        )
        for error in broken.values()
    ]
    # An editable install from before the entry points existed has none.
    if not working and not broken:
        findings.append(
            DataFinding(
                name="pipelines",
                severity="error",
                message="no pipeline is installed: the installed package is older than its source",
                remedy="install the package again: pip install -e . (or make env)",
            )
        )
    return findings


def installed(package: str) -> str | None:
    """Return the version of a package, or of its equivalent; None if neither is installed."""
    versions = (version(name) for name in _STANDS_FOR.get(package, (package,)))
    return next((text for text in versions if text is not None), None)


def version(package: str) -> str | None:
    """Return the version of a package from its metadata, without importing it; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def usable_cores() -> int:
    """Return the number of logical cores that this process may use (taskset, Slurm, or a container limits them)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_limit(file: Path = Path("/sys/fs/cgroup/memory.max")) -> int | None:
    """Return the memory limit of this container in bytes; None if unlimited or unknown."""
    # cgroup v2 writes "max" if there is no limit.
    text = file.read_text("ascii").strip() if file.is_file() else ""
    return int(text) if text.isdecimal() else None


def processor(file: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the processor."""
    # platform.processor() is empty on most Linux systems; ARM boards write "Hardware" instead of "model name".
    if file.is_file():
        for line in file.read_text("utf-8", "replace").splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpu(gpu: Gpu) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "name": gpu.name,
        "memory_total_bytes": gpu.memory_total_bytes,
        "memory_used_bytes": gpu.memory_used_bytes,
        "missing": dict(gpu.missing),
    }


def print_machine(console: Console, report: MachineReport) -> None:
    """Print the description of a machine, and its findings."""
    machine = report.machine
    software = report.software
    cores = machine["cores"]
    table = Table.grid(padding=(0, 2))
    table.add_row("machine", Text(f"{machine['host']}, {machine['system']}"))
    cores_text = f"{cores['logical']} cores ({cores['physical'] or 'unknown'} physical, {cores['usable']} usable)"
    table.add_row("processor", Text(f"{machine['processor']}, {cores_text}"))
    limit = machine["memory_limit_bytes"]
    within = f", limited to {gibibytes(limit)}" if limit else ""
    free = gibibytes(machine["memory_free_bytes"])
    table.add_row("memory", Text(f"{gibibytes(machine['memory_bytes'])}, {free} free{within}"))
    for gpu in machine["gpus"]:
        size = gpu["memory_total_bytes"]
        table.add_row(f"GPU {gpu['index']}", Text(f"{gpu['name']}, {gibibytes(size) if size else 'memory unknown'}"))
    if not machine["gpus"]:
        table.add_row("GPU", "none")
    _add_limits(table, machine)
    build = f"{software['torch']} ({software['torch_build']}, {software['torch_threads']} threads)"
    table.add_row("python", Text(f"{software['python']}, fieldwatch {software['fieldwatch']}"))
    table.add_row("torch", Text(build))
    table.add_row("pipelines", Text(", ".join(software["pipelines"]) or "none"))
    for check in report.checks:
        table.add_row(check.label, Text(check.text))
    table.add_row("tab", Text("in TensorBoard" if software["tensorboard_tab"] else "not in TensorBoard"))
    for library in libraries_here():
        installed_version = report.libraries[library.package]
        table.add_row(
            library.package, Text(f"{installed_version or 'not installed: ' + library.remedy}  ({library.purpose})")
        )
    for name, purpose in PROGRAMS.items():
        table.add_row(name, Text(f"{report.programs[name] or 'not found'}  ({purpose})"))
    console.print(table)
    print_checks(console, report.findings)


def _add_limits(table: Table, machine: Mapping[str, Any]) -> None:
    """Add rows for disk, limits, folder of runs, and clock."""
    free = gibibytes(machine["disk"]["free_bytes"])
    table.add_row("disk", Text(f"{free} free in {machine['disk']['folder']}"))
    shared = machine["shared_memory_bytes"]
    files = machine["open_files"]
    shared_text = f"{gibibytes(shared)} free" if shared is not None else "unknown"
    table.add_row("limits", Text(f"{files or 'unlimited'} open files, shared memory {shared_text}"))
    runs = machine["runs"]
    table.add_row("runs", Text(f"{runs['folder']}: {runs['reason'] or 'writable'}"))
    table.add_row("clock", Text(machine["clock"]))
