"""What is wrong with a machine for training, and what to do about it."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fieldwatch.base import nbytes
from fieldwatch.cli.doctor_report import DataFinding

GIBIBYTE = 1 << 30
LOW_DISK = 10 * GIBIBYTE
LOW_MEMORY = 4 * GIBIBYTE
LOW_SHARED_MEMORY = GIBIBYTE // 4
FEW_FILES = 256
CLOCK_SKEW = 5.0
EARLIEST_YEAR = "2025"
DRIVERS = {"11": 450, "12": 525, "13": 580}
"""The first driver for Linux that runs programs of each major version of CUDA (CUDA compatibility, NVIDIA)."""


def checked(
    machine: Mapping[str, Any], software: Mapping[str, Any], others: Iterable[DataFinding] = ()
) -> tuple[DataFinding, ...]:
    """Everything that is wrong, the gravest first."""
    findings = [
        *about_the_gpu(machine, software),
        *about_what_is_installed(software),
        *about_room(machine),
        *about_runs(machine),
        *others,
    ]
    order = ("error", "warning", "note")
    return tuple(sorted(findings, key=lambda finding: order.index(finding.severity)))


def about_the_gpu(machine: Mapping[str, Any], software: Mapping[str, Any]) -> Iterator[DataFinding]:
    """A GPU that torch cannot use, and why."""
    if not machine["gpus"] or software["torch_sees_gpu"]:
        return
    build = software["torch_build"]
    driver = machine["driver"]
    wanted = DRIVERS.get(build.removeprefix("CUDA ").partition(".")[0])
    newest = str(driver or "").partition(".")[0]
    if wanted is not None and newest.isdecimal() and int(newest) < wanted:
        message = f"torch is built for {build}, which needs a driver from {wanted} on; this one is {driver}"
        remedy = "install a newer driver, or a torch that is built for an older CUDA (pytorch.org)"
    elif wanted is None:
        message = f"there is a GPU, and torch ({build}) does not see it"
        remedy = "install a CUDA build of torch (pytorch.org): make env does so on machines with a GPU"
    else:
        message = f"there is a GPU, and torch ({build}) does not see it"
        remedy = "look whether CUDA_VISIBLE_DEVICES hides it, and whether nvidia-smi works in this container"
    yield DataFinding(name="gpu", severity="error", message=message, remedy=remedy)


def about_what_is_installed(software: Mapping[str, Any]) -> Iterator[DataFinding]:
    """TensorBoard's tab."""
    if not software["tensorboard_tab"]:
        yield DataFinding(
            name="tab",
            severity="note",
            message="TensorBoard does not know the tab fieldwatch: the installed package is older than its source",
            remedy="install the package again: pip install -e . (or make env)",
        )


def about_room(machine: Mapping[str, Any]) -> Iterator[DataFinding]:
    """Disk, memory, shared memory, open files."""
    disk = machine["disk"]
    if disk["free_bytes"] < LOW_DISK:
        free = gibibytes(disk["free_bytes"])
        yield _short("disk", f"{free} are free in {disk['folder']}", "checkpoints and pictures need some: use --out")
    free = min(machine["memory_free_bytes"], machine["memory_limit_bytes"] or machine["memory_free_bytes"])
    if free < LOW_MEMORY:
        yield _short("memory", f"{gibibytes(free)} of memory are free", "close what is not needed, or use --preset cpu")
    shared = machine["shared_memory_bytes"]
    if shared is not None and shared < LOW_SHARED_MEMORY:
        remedy = "start the container with more (docker run --shm-size 2g): workers and ranks hand data over there"
        yield _short("shared memory", f"{gibibytes(shared)} are free in /dev/shm", remedy)
    files = machine["open_files"]
    if files is not None and files < FEW_FILES:
        remedy = "raise it in the shell that trains: ulimit -n 4096"
        yield _short("open files", f"a process may have {files} files open", remedy)


def about_runs(machine: Mapping[str, Any]) -> Iterator[DataFinding]:
    """Where runs go, and the clock that dates them."""
    runs = machine["runs"]
    skew = machine["clock_skew_seconds"]
    if runs["reason"] is not None:
        message = f"{runs['folder']} {runs['reason']}"
        yield _short("runs", message, "train from a folder of yours, or name one by --out")
    if machine["clock"] < EARLIEST_YEAR:
        message = f"the clock says {machine['clock']}"
        yield _short("clock", message, "set it (timedatectl set-ntp true): rows, events and resumes are dated by it")
    elif skew is not None and abs(skew) > CLOCK_SKEW:
        message = f"the disk's clock is {skew:g} s from this machine's"
        yield _short("clock", message, "let both take the time from a server (NTP): live views tell a hang by it")


def gibibytes(count: float) -> str:
    """Format a number of bytes in GiB."""
    return nbytes(count, unit="GiB")


def _short(name: str, message: str, remedy: str) -> DataFinding:
    return DataFinding(name=name, severity="warning", message=message, remedy=remedy)
