"""A run's black box: a page of memory kept in a file, which says how far a process came even if it was killed.

``black_box/heartbeat`` is written through a memory map: nobody waits for a disk, and what was written stays in the
system when the process dies. A power cut loses what the system had not written back yet, at most half a minute.
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
"""How a process's part of a run stands; "told" is a death about which a post-mortem lies in ``crash/``."""

_MAGIC: Final = b"fw-beat1"
_SIZE: Final = 4096
_IDENTITY: Final = struct.Struct("<8sqqd40s")
_BEAT: Final = struct.Struct("<qddd32s")
_SAVED: Final = struct.Struct("<q")
_ENDING: Final = struct.Struct("<16s800s")
# Offsets in the page: each record is written alone, and none touches the bytes of another.
_AT_BEAT = 128
_AT_SAVED = 256
_AT_ENDING = 320
_READ_ATTEMPTS: Final = 20
_LARGEST_PID: Final = 1 << 22
_LATEST: Final = 1e11
"""Seconds since 1970, or since a machine was started, that no clock says before the year 5138."""


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """What a black box says.

    Attributes:
        pid: the process that trains, or trained.
        attempt: which start it is under a supervisor, from 1; 0 without one.
        started: when it took the folder, seconds since 1970.
        boot: the machine's boot, as the kernel names it; empty where it does not.
        step: the 0-based step it is in; -1 before the first one.
        beat: time of the last sign of life on the machine's monotonic clock, in seconds.
        time: the same in seconds since 1970.
        timeout: seconds without a sign of life after which it counts as hung; inf: never.
        phase: what it was doing: ``step``, a span's name, ``checkpoint``, ...
        saved: step of the last checkpoint that it made or started from; -1 for none.
        ending: how it ended.
        cause: why, where it could say so itself: a short word, a colon, a sentence.
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
        """The last sign of life, ISO 8601 in UTC; a damaged time is named as it stands there."""
        try:
            return datetime.fromtimestamp(self.time, UTC).isoformat(timespec="milliseconds")
        except (ValueError, OverflowError, OSError):
            return f"an unknown time ({self.time})"


@final
class BlackBox:
    """Writes a run's black box; what was there before is gone. A sign of life costs less than a microsecond.

    Args:
        folder: the run folder.
        attempt: which start it is under a supervisor; 0 without one.

    Raises:
        OSError: the disk is full or read-only.
    """

    def __init__(self, folder: Path, *, attempt: int = 0) -> None:
        path = output_path(folder, FOLDER, HEARTBEAT)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{HEARTBEAT}-{os.getpid()}")
        draft.unlink(missing_ok=True)  # of a process with the same number, or a link from elsewhere
        with draft.open("x+b") as file:
            file.write(bytes(_SIZE))  # a hole in a file on a full disk would be a bus error
            file.flush()
            os.fsync(file.fileno())
            self._map = mmap.mmap(file.fileno(), _SIZE)
        _IDENTITY.pack_into(self._map, 0, _MAGIC, os.getpid(), attempt, time.time(), boot_id().encode())
        self.saved(-1)
        self._write_ending("running", "")
        self.beat(-1, b"start", float("inf"), time.monotonic())
        # Renamed once it is complete: a reader never meets a page without its identity.
        draft.replace(path)

    def beat(self, step: int, phase: bytes, timeout: float, now: float) -> None:
        """Give a sign of life: the step, at most 32 bytes about the phase, the timeout in seconds, the time."""
        _BEAT.pack_into(self._map, _AT_BEAT, step, now, time.time(), timeout, phase)

    def saved(self, step: int) -> None:
        """Note the step of the last good checkpoint; -1 for none."""
        _SAVED.pack_into(self._map, _AT_SAVED, step)

    def close(self, ending: Ending, cause: str = "") -> None:
        """Note how it ended, on the disk, and let go of the file."""
        self._write_ending(ending, cause)
        # Ordinary beats are not flushed; the ending has to survive a power cut as well.
        self._map.flush()
        self._map.close()

    def __enter__(self) -> Self:
        """Begin; for tests and scripts."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close it."""
        self.close("finished" if error is None else "failed", "" if error is None else str(error))

    def _write_ending(self, ending: Ending, cause: str) -> None:
        _ENDING.pack_into(self._map, _AT_ENDING, ending.encode(), _cut(cause, 800))


def read_black_box(folder: Path) -> Heartbeat | None:
    """Read a run's black box, also while it is written; None where there is none, or none that can be read.

    It has no checksum, since it is written at every step: what no process can have written counts as unreadable.
    """
    page = b""
    for _ in range(_READ_ATTEMPTS):  # until nothing changed while it was read
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
    # Without a checksum, values that no process writes are the only sign of damage.
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
    """Note that the death of the process that wrote the black box has been told: nobody tells it again."""
    with open_for_update(output_path(folder, FOLDER, HEARTBEAT)) as file:
        # Only the ending's 16 bytes: the cause behind it stays readable.
        file.seek(_AT_ENDING)
        file.write(b"told".ljust(16, b"\0"))
        file.flush()
        os.fsync(file.fileno())


def boot_id() -> str:
    """The kernel's name for the time since it was started; empty where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _is_time(seconds: float) -> bool:
    """Whether a clock can say so; NaN is no time."""
    return 0 <= seconds < _LATEST


def _page(folder: Path) -> bytes:
    try:
        return (folder / FOLDER / HEARTBEAT).read_bytes()
    except OSError:
        return b""


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")


def _cut(text: str, size: int) -> bytes:
    return text.encode()[:size].decode(errors="ignore").encode()
