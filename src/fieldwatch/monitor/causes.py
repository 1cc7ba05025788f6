"""What ended a process, by its exit status, its error, its stacks and what the system says about it."""

import errno
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from fieldwatch.monitor.black_box import Ending, Heartbeat, boot_id
from fieldwatch.monitor.processes import in_own_namespace

Cause = Literal[
    "finished", "exception", "diverged", "cuda", "memory", "disk", "interrupted", "bad-input", "killed", "oom-killer",
    "segfault", "abort", "bus-error", "signal", "hang", "stopped", "power", "left",
]  # fmt: skip
"""One word for what ended a process; docs/reliability.md has a line about each."""

NOT_RETRIED: Final = ("finished", "diverged", "interrupted", "bad-input")
STICKY: Final = (
    "illegal memory access", "device-side assert", "unspecified launch failure", "uncorrectable ECC", "ECC error",
    "misaligned address", "illegal instruction was encountered", "CUDA error: launch failed",
)  # fmt: skip
"""Texts of CUDA errors after which only a new process can use the GPU again."""
DISK_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
_DISK_TEXT: Final = re.compile(r"No space left on device|Disk quota exceeded|Read-only file system|os error 28")
_FATAL: Final[dict[int, tuple[Cause, str]]] = {
    signal.SIGSEGV: ("segfault", "segmentation fault"),
    signal.SIGABRT: ("abort", "aborted by native code (assertion, uncaught C++ exception, damaged heap)"),
    signal.SIGBUS: ("bus-error", "bus error (a mapped file was cut or the disk failed, or /dev/shm is full)"),
    signal.SIGILL: ("signal", "illegal instruction"),
    signal.SIGFPE: ("signal", "arithmetic error in native code"),
}
_IN_STACKS: Final[dict[str, int]] = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Illegal instruction": signal.SIGILL,
    "Floating-point exception": signal.SIGFPE,
}
STOPS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals by which somebody asks for an end."""


@dataclass(frozen=True, kw_only=True)
class Death:
    """What ended a process.

    Attributes:
        cause: one word.
        detail: one sentence.
    """

    cause: Cause
    detail: str

    @property
    def retried(self) -> bool:
        """Whether starting anew may help."""
        return self.cause not in NOT_RETRIED

    def __str__(self) -> str:
        return f"{self.cause}: {self.detail}"


def cause_of_error(error: BaseException) -> Death:
    """Name the cause behind an exception: a full disk is one, whatever was raised on top of it."""
    said = f"{type(error).__name__}: {error}".strip().removesuffix(":")
    chain = list(_chain(error))
    names = {kind.__name__ for one in chain for kind in type(one).__mro__}
    texts = " ".join(str(one) for one in chain)
    cause: Cause = "exception"
    if any(kind.__name__ == "Diverged" for kind in type(error).__mro__):
        cause = "diverged"
    elif isinstance(error, KeyboardInterrupt | SystemExit):
        cause = "interrupted"
    elif any(text in texts for text in STICKY):
        cause = "cuda"
    elif names & {"OutOfMemoryError", "MemoryError"} or "can't allocate memory" in texts:
        cause = "memory"
    elif any(getattr(one, "errno", None) in DISK_ERRORS for one in chain) or _DISK_TEXT.search(texts):
        cause = "disk"
    return Death(cause=cause, detail=said)


def cause_of_end(ending: Ending, error: BaseException | None) -> Death:
    """Name the cause of an end in order: a signal that was obeyed, an exception, or that all was done."""
    if error is None:
        return Death(cause="finished", detail="finished")
    code = getattr(error, "code", None)
    if ending == "interrupted" and isinstance(code, int) and code:
        return cause_of_status(code)
    return cause_of_error(error)


def cause_of_status(status: int) -> Death:
    """Name the cause that an exit status alone tells: negative is a signal's number, as `subprocess` has it."""
    if status >= 0:
        return _of_exit_code(status)
    number = -status
    if number == signal.SIGKILL:
        return Death(cause="killed", detail="killed by SIGKILL; the kernel's out-of-memory killer is not on record")
    if number in STOPS:
        return Death(cause="interrupted", detail=f"ended by {signal_name(number)} before it listened")
    cause, words = _FATAL.get(number, ("signal", "ended by a signal"))
    return Death(cause=cause, detail=f"{words}, {signal_name(number)}")


def _of_exit_code(status: int) -> Death:
    if status - 128 in STOPS:
        return Death(cause="interrupted", detail=f"{signal_name(status - 128)} came; the step was finished and saved")
    if status == 2:
        return Death(cause="bad-input", detail="wrong usage or bad input: its message stands above")
    if status == 0:
        return Death(cause="finished", detail="finished")
    return Death(cause="left", detail=f"it ended with exit code {status} in the middle, and did not say why")


def cause_of_beat(beat: Heartbeat, status: int) -> Death:
    """Name the cause from a process's own last words, and its exit status where it left none."""
    if beat.ending == "finished" and status in (0, 1):
        return Death(cause="finished", detail="finished")
    if beat.ending in ("interrupted", "diverged", "failed"):
        word, _, detail = beat.cause.partition(": ")
        known = _WORDS.get(word)
        return Death(cause=known or "exception", detail=detail or beat.cause or beat.ending)
    return cause_of_status(status or 1) if beat.ending == "running" and status == 0 else cause_of_status(status)


def cause_without_status(beat: Heartbeat, stacks: str) -> Death:
    """Name the cause of a death that nobody saw, from the black box and what `faulthandler` wrote.

    Args:
        beat: the black box of the process.
        stacks: what it wrote of ``stacks.txt``.
    """
    fatal = cause_in_stacks(stacks)
    if fatal is not None:
        return fatal
    where = f"its last sign of life is of {beat.when}"
    if beat.boot and boot_id() and beat.boot != boot_id():
        return Death(cause="power", detail=f"the machine was started anew since (power cut, reboot, moved); {where}")
    if _killed_lines(beat.pid):
        return Death(cause="oom-killer", detail=f"killed by the kernel's out-of-memory killer; {where}")
    return Death(cause="killed", detail=f"killed without a word (SIGKILL, out-of-memory killer); {where}")


def cause_in_stacks(stacks: str) -> Death | None:
    """Name what `faulthandler` wrote about a process's end; None where it wrote nothing."""
    for text in re.findall(r"^Fatal Python error: (.+)$", stacks, re.MULTILINE):
        number = _IN_STACKS.get(text.strip())
        if number is not None:
            return cause_of_status(-number)
        return Death(cause="abort", detail=f"Python could not go on: {text.strip()}")
    if stacks.rstrip() and stacks.rfind("Timeout (") > stacks.rfind("\nIt went on"):
        return Death(cause="hang", detail="it hung and did not go on: the stacks say where")
    return None


def oom_kills() -> int | None:
    """How many processes the out-of-memory killer took in this control group so far; None where nobody counts."""
    for path in _counters():
        try:
            found = re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE)
        except OSError:
            continue
        if found is not None:
            return int(found[1])
    return None


def killed_for_memory(pid: int, before: int | None) -> bool:
    """Whether the out-of-memory killer took a process, by the group's counter since ``before``, or the kernel's log."""
    now = oom_kills()
    return (now is not None and before is not None and now > before) or bool(_killed_lines(pid))


def _counters() -> Iterator[Path]:
    """The files that count, of this process's control group (version 2, then 1) and as a container sees its own."""
    root = Path("/sys/fs/cgroup")
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, names, place = line.split(":", 2)
        if not names:
            yield from (root / place.lstrip("/") / "memory.events", root / "memory.events")
        elif "memory" in names.split(","):
            yield from (root / "memory" / place.lstrip("/") / "memory.oom_control", root / "memory/memory.oom_control")


def _killed_lines(pid: int) -> list[str]:
    """The kernel's lines about a killed process; none where its log is closed to us, or counts pids otherwise."""
    if in_own_namespace():
        return []
    try:
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    lines: list[str] = []
    try:
        while line := os.read(descriptor, 8192):
            lines.append(line.decode(errors="replace"))
    except OSError:  # nothing more to read, or the log went round
        pass
    finally:
        os.close(descriptor)
    return [line for line in lines if re.search(rf"Killed process {pid}\b", line)]


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__


def signal_name(number: int) -> str:
    """A signal by its name; by its number where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


_WORDS: Final[dict[str, Cause]] = {cause: cause for cause in get_args(Cause)}
