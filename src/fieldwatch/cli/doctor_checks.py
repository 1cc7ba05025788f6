"""Problems of a machine that affect training, and their remedies."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from fieldwatch.base import nbytes
from fieldwatch.cli.doctor_report import DataFinding

GIBIBYTE = 1 << 30
# Thresholds of the warnings: bytes, number of files, seconds, and a year before this code existed.
LOW_DISK = 10 * GIBIBYTE
LOW_MEMORY = 4 * GIBIBYTE
LOW_SHARED_MEMORY = GIBIBYTE // 4
FEW_FILES = 256
CLOCK_SKEW = 5.0
EARLIEST_YEAR = "2025"
DRIVERS = {"11": 450, "12": 525, "13": 580}
"""Oldest Linux driver for each major version of CUDA (NVIDIA's CUDA compatibility table)."""
OLDEST_DRIVER = DRIVERS["12"]
"""Oldest driver for which `make env` installs a CUDA build of torch."""


def checked(
    machine: Mapping[str, Any], software: Mapping[str, Any], others: Iterable[DataFinding] = ()
) -> tuple[DataFinding, ...]:
    """Return all findings, the most severe first."""
    findings = [
        *about_the_gpu(machine, software),
        *about_what_is_installed(software),
        *about_room(machine),
        *about_runs(machine),
        *others,
    ]
    order = ("error", "warning", "note")
    return tuple(sorted(findings, key=lambda finding: order.index(finding.severity)))


def unused_gpu(gpus: Sequence[object], driver: str | None) -> tuple[str, ...]:
    """Return a note if "auto" trains on the CPU although the machine has a GPU, unless the user hides the GPU.

    Args:
        gpus: GPUs of the machine, from the driver.
        driver: version of the driver.
    """
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in {"", "-1", "NoDevFiles"}
    if hidden:
        return ()
    machine = {"gpus": gpus, "driver": driver}
    software = {"torch_sees_gpu": torch.cuda.is_available(), "torch_build": torch_build()}
    return tuple(
        f"THE GPU IS NOT USED, the CPU trains: {finding.message}; {finding.remedy}"
        for finding in about_the_gpu(machine, software)
    )


def torch_build() -> str:
    """Return what torch was built for: a version of CUDA, or the CPU only."""
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"


def about_the_gpu(machine: Mapping[str, Any], software: Mapping[str, Any]) -> Iterator[DataFinding]:
    """Check that torch can use the GPU; if not, find out why."""
    if not machine["gpus"] or software["torch_sees_gpu"]:
        return
    build = software["torch_build"]
    driver = machine["driver"]
    # A CPU build has no entry; a CUDA build newer than this table has none either.
    oldest = DRIVERS.get(build.removeprefix("CUDA ").partition(".")[0])
    major = str(driver or "").partition(".")[0]
    if oldest is not None and major.isdecimal() and int(major) < oldest:
        message = f"torch is built for {build}, which needs driver {oldest} or newer; the installed one is {driver}"
        remedy = "install a newer driver, or a torch that is built for an older CUDA (pytorch.org)"
    elif oldest is None and major.isdecimal() and int(major) < OLDEST_DRIVER:
        message = f"the machine has a GPU, but its driver {driver} is older than {OLDEST_DRIVER}, which torch needs"
        remedy = "install a newer driver, then: make env"
    elif oldest is None:
        message = f"the machine has a GPU, but torch ({build}) does not see it"
        remedy = "install a CUDA build of torch (pytorch.org): make env does so on machines with a GPU"
    else:
        message = f"the machine has a GPU, but torch ({build}) does not see it"
        remedy = "check whether CUDA_VISIBLE_DEVICES hides it, and whether nvidia-smi works in this container"
    yield DataFinding(name="gpu", severity="error", message=message, remedy=remedy)


def about_what_is_installed(software: Mapping[str, Any]) -> Iterator[DataFinding]:
    """Check that TensorBoard finds the plugin."""
    if not software["tensorboard_tab"]:
        yield DataFinding(
            name="tab",
            severity="note",
            message="TensorBoard has no tab fieldwatch: the installed package is older than its source",
            remedy="install the package again: pip install -e . (or make env)",
        )


def about_room(machine: Mapping[str, Any]) -> Iterator[DataFinding]:
    """Check disk, memory, shared memory, and the limit of open files."""
    disk = machine["disk"]
    if disk["free_bytes"] < LOW_DISK:
        free = gibibytes(disk["free_bytes"])
        yield _short("disk", f"only {free} free in {disk['folder']}", "choose another disk for the run with --out")
    # In a container the limit counts, not the memory of the host.
    free = min(machine["memory_free_bytes"], machine["memory_limit_bytes"] or machine["memory_free_bytes"])
    if free < LOW_MEMORY:
        yield _short("memory", f"only {gibibytes(free)} of memory free", "close other programs, or use --preset cpu")
    shared = machine["shared_memory_bytes"]
    if shared is not None and shared < LOW_SHARED_MEMORY:
        remedy = "start the container with more (docker run --shm-size 2g): workers and ranks exchange data there"
        yield _short("shared memory", f"only {gibibytes(shared)} free in /dev/shm", remedy)
    files = machine["open_files"]
    if files is not None and files < FEW_FILES:
        remedy = "raise the limit in the shell that trains: ulimit -n 4096"
        yield _short("open files", f"a process may open only {files} files", remedy)


def about_runs(machine: Mapping[str, Any]) -> Iterator[DataFinding]:
    """Check that runs can be written, and that the clocks agree."""
    runs = machine["runs"]
    skew = machine["clock_skew_seconds"]
    if runs["reason"] is not None:
        message = f"{runs['folder']} {runs['reason']}"
        yield _short("runs", message, "train from a writable folder, or choose one with --out")
    # ISO dates compare as text.
    if machine["clock"] < EARLIEST_YEAR:
        message = f"the clock shows {machine['clock']}"
        yield _short("clock", message, "set it (timedatectl set-ntp true): rows, events and resumes are dated with it")
    elif skew is not None and abs(skew) > CLOCK_SKEW:
        message = f"the disk's clock differs from this machine's by {skew:g} s"
        yield _short("clock", message, "synchronize both with NTP: live views detect a hang by file times")


def gibibytes(count: float) -> str:
    """Format a number of bytes in GiB."""
    return nbytes(count, unit="GiB")


def _short(name: str, message: str, remedy: str) -> DataFinding:
    return DataFinding(name=name, severity="warning", message=message, remedy=remedy)
