"""Where runs go, and the limits around them: is it writable, is the clock right, how many files may be open."""

import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil


def inspect_folders(start: Path) -> dict[str, Any]:
    """Look at where `fieldwatch train` puts runs, started in a folder.

    Returns:
        `runs` (folder, reason why it cannot be written, or None), `clock` (now), `clock_skew_seconds` (of the disk
        against this machine; None where nothing can be written), `shared_memory_bytes` (free in /dev/shm; None where
        there is none), `open_files` (limit of a process; None for no limit that is known).
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
    """Try to write in a folder; nothing stays.

    Returns:
        Why it cannot be written (None if it can), and by how many seconds the disk's clock is ahead of this machine's.
    """
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


def shared_memory(folder: Path = Path("/dev/shm")) -> int | None:  # noqa: S108  only looked at
    """Bytes that are free for processes to share; None where the system has no such folder."""
    return psutil.disk_usage(str(folder)).free if folder.is_dir() else None


def open_files() -> int | None:
    """How many files a process may have open; None for no limit, or where the system does not say."""
    if not hasattr(psutil, "RLIMIT_NOFILE"):
        return None
    limit = psutil.Process().rlimit(psutil.RLIMIT_NOFILE)[0]
    return None if limit == psutil.RLIM_INFINITY else limit
