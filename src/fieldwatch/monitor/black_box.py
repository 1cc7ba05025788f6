"""The black box of a run: a memory-mapped file that records the progress of a process, even if it is killed.

``black_box/heartbeat`` is written through a memory map, so writes never wait for the disk, and they survive the death
of the process. A power failure loses what the kernel has not yet written back, at most half a minute.
"""

import mmap
import os
import struct
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self, cast, final, get_args

from fieldwatch.base import open_for_update, output_path

FOLDER: Final = "black_box"
HEARTBEAT: Final = "heartbeat"
STACKS: Final = "stacks.txt"
Ending = Literal["running", "finished", "interrupted", "diverged", "failed", "told"]
"""State of a process's part of a run; "told" is a death for which ``crash/`` contains a post-mortem."""

_MAGIC: Final = b"fw-beat1"
_SIZE: Final = 4096
# Little-endian without padding, so that the layout is the same on every machine.
_IDENTITY: Final = struct.Struct("<8sqqd40s")
_BEAT: Final = struct.Struct("<qddd32s")
_SAVED: Final = struct.Struct("<q")
_ENDING: Final = struct.Struct("<16s800s")
# Offsets in the page: each record is written separately and has its own bytes.
_AT_BEAT = 128
_AT_SAVED = 256
_AT_ENDING = 320
_READ_ATTEMPTS: Final = 20
# Linux: PID_MAX_LIMIT on 64-bit systems.
_LARGEST_PID: Final = 1 << 22
_LATEST: Final = 1e11
"""Largest plausible time in seconds since 1970 (the year 5138) or since the machine was started."""


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """Contents of a black box.

    Attributes:
        pid: process ID of the training.
        attempt: number of the start under a supervisor, from 1; 0 without a supervisor.
        started: time at which the process took the folder, in seconds since 1970.
        boot: boot ID of the kernel; empty if it has none.
        step: 0-based step in progress; -1 before the first one.
        beat: time of the last heartbeat on the machine's monotonic clock, in seconds.
        time: time of the last heartbeat, in seconds since 1970.
        timeout: seconds without a heartbeat after which the process counts as hung; inf for never.
        phase: current activity: ``step``, the name of a span, ``checkpoint``, ...
        saved: step of the last checkpoint that it saved or started from; -1 for none.
        ending: state of the process.
        cause: reason of the end if the process could record it: a word, a colon and a sentence.
    """

    pid: int
    attempt: int
    started: float
    boot: str
    step: int
    beat: float
    time: float
    timeout: float
    phase: str
    saved: int
    ending: Ending
    cause: str

    @property
    def when(self) -> str:
        """Time of the last heartbeat, ISO 8601 in UTC; a damaged time is returned as its raw number."""
        try:
            return datetime.fromtimestamp(self.time, UTC).isoformat(timespec="milliseconds")
        except (ValueError, OverflowError, OSError):
            return f"an unknown time ({self.time})"


@final
class BlackBox:
    """Writes the black box of a run, replacing an earlier one. A heartbeat costs less than a microsecond.

    Args:
        folder: run folder.
        attempt: number of the start under a supervisor; 0 without a supervisor.

    Raises:
        OSError: if the disk is full or read-only.
    """

    def __init__(self, folder: Path, *, attempt: int = 0) -> None:
        path = output_path(folder, FOLDER, HEARTBEAT)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{HEARTBEAT}-{os.getpid()}")
        # A leftover of an earlier process with the same ID, or a link.
        draft.unlink(missing_ok=True)
        with draft.open("x+b") as file:
            # Allocate the page: writing through the map into a hole on a full disk would raise SIGBUS.
            file.write(bytes(_SIZE))
            file.flush()
            os.fsync(file.fileno())
            # The map stays valid after the file is closed and renamed.
            self._map = mmap.mmap(file.fileno(), _SIZE)
        _IDENTITY.pack_into(self._map, 0, _MAGIC, os.getpid(), attempt, time.time(), boot_id().encode())
        self.saved(-1)
        self._write_ending("running", "")
        self.beat(-1, b"start", float("inf"), time.monotonic())
        # Renamed once it is complete, so that a reader never sees a page without its identity.
        draft.replace(path)

    def beat(self, step: int, phase: bytes, timeout: float, now: float) -> None:
        """Write a heartbeat.

        Args:
            step: 0-based step in progress.
            phase: current activity, at most 32 bytes.
            timeout: seconds until the next heartbeat after which the process counts as hung.
            now: time on the monotonic clock, in seconds.
        """
        _BEAT.pack_into(self._map, _AT_BEAT, step, now, time.time(), timeout, phase)

    def saved(self, step: int) -> None:
        """Record the step of the last good checkpoint; -1 for none."""
        # A store of 8 aligned bytes: readers never see a half-written number.
        _SAVED.pack_into(self._map, _AT_SAVED, step)

    def close(self, ending: Ending, cause: str = "") -> None:
        """Record the ending, sync it to disk and close the file."""
        self._write_ending(ending, cause)
        # Heartbeats are not flushed, but the ending must also survive a power failure.
        # msync: waits for the disk.
        self._map.flush()
        self._map.close()

    def __enter__(self) -> Self:
        """Return the black box itself; for tests and scripts."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the black box."""
        self.close("finished" if error is None else "failed", "" if error is None else str(error))

    def _write_ending(self, ending: Ending, cause: str) -> None:
        _ENDING.pack_into(self._map, _AT_ENDING, ending.encode(), _cut(cause, 800))


def read_black_box(folder: Path) -> Heartbeat | None:
    """Read the black box of a run, also while it is being written; None if it is missing or unreadable.

    It has no checksum, because it is written at every step. A page with impossible values counts as unreadable.
    """
    page = b""
    # Repeated until two reads agree, because the page may change while it is read.
    for _ in range(_READ_ATTEMPTS):
        before = page
        page = _page(folder)
        if page == before:
            break
    if len(page) != _SIZE or not page.startswith(_MAGIC):
        return None
    _, pid, attempt, started, boot = _IDENTITY.unpack_from(page)
    step, beat, wall, timeout, phase = _BEAT.unpack_from(page, _AT_BEAT)
    ending, cause = (_text(part) for part in _ENDING.unpack_from(page, _AT_ENDING))
    saved = _SAVED.unpack_from(page, _AT_SAVED)[0]
    # Without a checksum, impossible values are the only sign of damage.
    possible = _is_time(started) and _is_time(wall) and _is_time(beat) and timeout > 0 and ending in get_args(Ending)
    if not possible or not 0 < pid <= _LARGEST_PID or min(step, saved) < -1 or attempt < 0:
        return None
    return Heartbeat(
        pid=pid,
        attempt=attempt,
        started=started,
        boot=_text(boot),
        step=step,
        beat=beat,
        time=wall,
        timeout=timeout,
        phase=_text(phase),
        saved=saved,
        ending=cast("Ending", ending),
        cause=cause,
    )


def mark_explained(folder: Path) -> None:
    """Record that the death of the process has been reported, so that it is not reported again."""
    with open_for_update(output_path(folder, FOLDER, HEARTBEAT)) as file:
        # Only the 16 bytes of the ending are written; the cause after it remains readable.
        file.seek(_AT_ENDING)
        file.write(b"told".ljust(16, b"\0"))
        file.flush()
        os.fsync(file.fileno())


def boot_id() -> str:
    """Return the boot ID of the kernel, which changes with every boot; empty if there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _is_time(seconds: float) -> bool:
    """Return whether a number is a plausible time; False for NaN."""
    return 0 <= seconds < _LATEST


def _page(folder: Path) -> bytes:
    try:
        return (folder / FOLDER / HEARTBEAT).read_bytes()
    except OSError:
        return b""


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")


def _cut(text: str, size: int) -> bytes:
    # Decoding drops a character that the limit cuts in the middle.
    return text.encode()[:size].decode(errors="ignore").encode()
