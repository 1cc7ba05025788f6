"""The folder of runs and its limits: write access, clock, shared memory, open files."""

import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil


def inspect_folders(start: Path) -> dict[str, Any]:
    """Inspect the folder to which `fieldwatch train`, started in ``start``, writes runs.

    Returns:
        `runs` (folder, and the reason why it cannot be written, or None), `clock` (current time), `clock_skew_seconds`
        (disk minus this machine; None if nothing can be written), `shared_memory_bytes` (free in /dev/shm; None if it
        does not exist), `open_files` (limit per process; None if unlimited or unknown).
    """
    folder = start / "runs"
    reason, skew = try_writing(folder if folder.exists() else start)
    return {
        "runs": {"folder": str(folder), "reason": reason},
        "clock": datetime.now().astimezone().isoformat(timespec="seconds"),
        "clock_skew_seconds": skew,
        "shared_memory_bytes": shared_memory(),
        "open_files": open_files(),
    }


def try_writing(folder: Path) -> tuple[str | None, float | None]:
    """Write a temporary file into a folder, and remove it.

    Returns:
        Reason why it cannot be written (None if it can), and seconds by which the disk's clock is ahead of this
        machine's.
    """
    # Access bits alone would miss read-only mounts, quotas and full disks.
    before = time.time()
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as file:
            file.write(b"x")
            file.flush()
            written = Path(file.name).stat().st_mtime
    except OSError as error:
        return f"cannot be written ({error.strerror or error})", None
    after = time.time()
    # Zero while the file's time lies between both readings of our clock.
    return None, round(written - min(max(written, before), after), 1)


def shared_memory(folder: Path = Path("/dev/shm")) -> int | None:  # noqa: S108  only its free space is read
    """Return the free bytes of shared memory; None if the system has no such folder."""
    return psutil.disk_usage(str(folder)).free if folder.is_dir() else None


def open_files() -> int | None:
    """Return the number of files that a process may open; None if unlimited or unknown."""
    # psutil has resource limits on Linux and FreeBSD only.
    if not hasattr(psutil, "RLIMIT_NOFILE"):
        return None
    limit = psutil.Process().rlimit(psutil.RLIMIT_NOFILE)[0]
    return None if limit == psutil.RLIM_INFINITY else limit
