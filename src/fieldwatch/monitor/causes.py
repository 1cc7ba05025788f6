"""Classification of why a process ended, from its exit status, exception, stack traces and kernel counters."""

import errno
import os
import re
import signal
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from fieldwatch.base import InputError
from fieldwatch.monitor.black_box import Heartbeat, boot_id
from fieldwatch.monitor.processes import in_own_namespace

Cause = Literal[
    "finished", "exception", "diverged", "cuda", "memory", "disk", "data", "interrupted", "bad-input", "killed",
    "oom-killer", "segfault", "abort", "bus-error", "signal", "hang", "stopped", "power", "left",
]  # fmt: skip
"""Cause of the end of a process; docs/reliability.md describes each one."""

NOT_RETRIED: Final = ("finished", "diverged", "interrupted", "bad-input")
_PASSING: Final = ("disk", "data")
"""Causes that pass without changing the training: a full disk, a folder that is not mounted yet."""
_PASSING_AT_START: Final = (*_PASSING, "memory", "cuda")
"""Causes that pass before the first step, when another process may hold the memory or the GPU. Later, the training
itself most likely needs too much."""
BUSY: Final = ("all CUDA-capable devices are busy or unavailable", "CUDA-capable device(s) is/are busy or unavailable")
"""Texts of CUDA errors while another process uses the GPU exclusively."""
SHORTAGES: Final = ("can't allocate memory", "Cannot allocate memory", "CUDA error: out of memory")
"""Texts of out-of-memory errors that are not raised as a MemoryError."""
STICKY: Final = (
    "illegal memory access", "device-side assert", "unspecified launch failure", "uncorrectable ECC", "ECC error",
    "misaligned address", "illegal instruction was encountered", "CUDA error: launch failed",
)  # fmt: skip
"""Texts of CUDA errors that break the context, so that only a new process can use the GPU."""
DISK_ERRORS: Final = (
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EREMOTEIO, errno.EHOSTDOWN,
)  # fmt: skip
"""Error numbers of a full or broken disk, and of an unreachable file server."""
_DISK_TEXT: Final = re.compile(
    r"No space left on device|Disk quota exceeded|Read-only file system|Stale file handle|os error 28"
)
_MISSING: Final = (errno.ENOENT, errno.ENOTDIR)
_FATAL: Final[dict[int, tuple[Cause, str]]] = {
    signal.SIGSEGV: ("segfault", "segmentation fault"),
    signal.SIGABRT: ("abort", "aborted by native code (assertion, uncaught C++ exception, corrupted heap)"),
    signal.SIGBUS: ("bus-error", "bus error (a mapped file was truncated, the disk failed, or /dev/shm is full)"),
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
"""Signals that request an orderly end."""


@dataclass(frozen=True, kw_only=True)
class Death:
    """Why a process ended.

    Attributes:
        cause: cause, one word.
        detail: description, one sentence.
    """

    cause: Cause
    detail: str

    @property
    def retried(self) -> bool:
        """Whether a restart may help."""
        return self.cause not in NOT_RETRIED

    def passes(self, *, at_start: bool) -> bool:
        """Return whether the cause is likely to pass by itself, so that waiting helps.

        Args:
            at_start: whether the process died before its first step.
        """
        return self.cause in (_PASSING_AT_START if at_start else _PASSING)

    def __str__(self) -> str:
        return f"{self.cause}: {self.detail}"


def cause_of_error(error: BaseException) -> Death:
    """Return the cause behind an exception, including chained ones: a full disk may raise any error on top of it."""
    if isinstance(error, SystemExit):
        return _of_exit(error)
    message = f"{type(error).__name__}: {error}".strip().removesuffix(":")
    chain = list(_chain(error))
    # Compared by name, because torch must not be imported here and its classes moved between versions.
    names = {kind.__name__ for link in chain for kind in type(link).__mro__}
    numbers = {getattr(link, "errno", None) for link in chain}
    texts = " ".join(str(link) for link in chain)
    cause: Cause = "exception"
    # The order matters: a broken CUDA context also fails to allocate, and a full disk may raise any error.
    # Only the outermost exception counts here, not its chain.
    if any(kind.__name__ == "Diverged" for kind in type(error).__mro__):
        cause = "diverged"
    elif isinstance(error, KeyboardInterrupt):
        cause = "interrupted"
    elif any(text in texts for text in (*STICKY, *BUSY)):
        cause = "cuda"
    elif names & {"OutOfMemoryError", "MemoryError"} or errno.ENOMEM in numbers or any(s in texts for s in SHORTAGES):
        cause = "memory"
    elif numbers & set(DISK_ERRORS) or _DISK_TEXT.search(texts):
        cause = "disk"
    elif isinstance(error, InputError):
        cause = "bad-input"
    return Death(cause=cause, detail=message)


def cause_of_end(error: BaseException | None) -> Death:
    """Return the cause of an orderly end: a handled signal, an exception, or completion."""
    return Death(cause="finished", detail="finished") if error is None else cause_of_error(error)


def exit_cause(error: BaseException, *, refused: bool) -> tuple[Death, bool]:
    """Return the cause of an exception that ends a process without an open black box.

    Args:
        error: exception that ends the process.
        refused: whether the command line classified it as an error in the user's input.

    Returns:
        The cause, and whether a file or folder was missing.
    """
    death = cause_of_error(error)
    missing = any(
        isinstance(link, FileNotFoundError | NotADirectoryError) or getattr(link, "errno", None) in _MISSING
        for link in _chain(error)
    )
    if refused and death.cause in ("exception", "left", "bad-input"):
        # The message without the class name, as the command line prints it.
        death = Death(cause="bad-input", detail=str(error))
    return death, missing


def is_requested_stop(error: BaseException) -> bool:
    """Return whether an exception is a requested stop: ctrl-C, a handled signal, a plain `sys.exit()`."""
    if isinstance(error, SystemExit):
        return not error.code or (isinstance(error.code, int) and error.code - 128 in STOPS)
    return isinstance(error, KeyboardInterrupt)


def as_cause(word: object) -> Cause | None:
    """Return the cause with a name; None for anything else."""
    return _CAUSES.get(word) if isinstance(word, str) else None


def _of_exit(error: SystemExit) -> Death:
    """Return the cause of a `sys.exit`: a handled signal, a requested stop, or a library that exited unexpectedly."""
    if not is_requested_stop(error):
        return Death(cause="left", detail=f"sys.exit({error.code!r}) was called{_raised_at(error)}")
    if error.code:
        return cause_of_status(int(error.code))
    return Death(cause="interrupted", detail=f"sys.exit() was called{_raised_at(error)}")


def _raised_at(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f" in {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


def cause_of_status(status: int) -> Death:
    """Return the cause for an exit status; negative values are signal numbers, as in `subprocess`."""
    if status >= 0:
        return _of_exit_code(status)
    number = -status
    if number == signal.SIGKILL:
        return Death(
            cause="killed", detail="killed by SIGKILL; there is no record of the kernel's out-of-memory killer"
        )
    if number in STOPS:
        return Death(cause="interrupted", detail=f"ended by {signal_name(number)} before its handler was installed")
    cause, description = _FATAL.get(number, ("signal", "ended by a signal"))
    return Death(cause=cause, detail=f"{description}, {signal_name(number)}")


def _of_exit_code(status: int) -> Death:
    if status - 128 in STOPS:
        return Death(
            cause="interrupted", detail=f"stopped by {signal_name(status - 128)}; the step was finished and saved"
        )
    if status == 0:
        return Death(cause="finished", detail="finished")
    return Death(cause="left", detail=f"exited unexpectedly with code {status} and without a reason")


def cause_of_beat(beat: Heartbeat, status: int) -> Death:
    """Return the cause recorded in the black box, or that of the exit status if none is recorded."""
    # A finished training exits with 1 if there is an error among its findings.
    if beat.ending == "finished" and status in (0, 1):
        return Death(cause="finished", detail="finished")
    if beat.ending in ("interrupted", "diverged", "failed"):
        word, _, detail = beat.cause.partition(": ")
        return Death(cause=as_cause(word) or "exception", detail=detail or beat.cause or beat.ending)
    # Status 0 without a recorded ending means that a library called os._exit during the training.
    return cause_of_status(status or 1) if beat.ending == "running" and status == 0 else cause_of_status(status)


def cause_without_status(beat: Heartbeat, stacks: str) -> Death:
    """Return the cause of a death without an exit status, from the black box and the output of `faulthandler`.

    Args:
        beat: black box of the process.
        stacks: the process' part of ``stacks.txt``.
    """
    fatal = cause_in_stacks(stacks)
    if fatal is not None:
        return fatal
    where = f"its last heartbeat was at {beat.when}"
    # Compared only if both are known: containers may hide the boot ID.
    if beat.boot and boot_id() and beat.boot != boot_id():
        return Death(cause="power", detail=f"the machine was rebooted since (power failure, reboot, moved); {where}")
    if _kernel_kill_lines(beat.pid):
        return Death(cause="oom-killer", detail=f"killed by the kernel's out-of-memory killer; {where}")
    return Death(cause="killed", detail=f"killed without a message (SIGKILL, out-of-memory killer); {where}")


def cause_in_stacks(stacks: str) -> Death | None:
    """Return the cause according to the output of `faulthandler`; None if it wrote nothing."""
    for text in re.findall(r"^Fatal Python error: (.+)$", stacks, re.MULTILINE):
        # faulthandler prints a description instead of the signal's number.
        number = _IN_STACKS.get(text.strip())
        if number is not None:
            return cause_of_status(-number)
        return Death(cause="abort", detail=f"fatal Python error: {text.strip()}")
    # "Timeout (" is written by faulthandler, "It went on" by the watchdog when a hang is over.
    if stacks.rstrip() and stacks.rfind("Timeout (") > stacks.rfind("\nIt went on"):
        return Death(cause="hang", detail="it hung and did not continue: the stack traces show where")
    return None


def oom_kills() -> int | None:
    """Return the number of processes that the out-of-memory killer killed in this control group; None if unknown."""
    for path in _oom_counter_files():
        try:
            found = re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE)
        except OSError:
            continue
        if found is not None:
            return int(found[1])
    return None


def killed_for_memory(pid: int, before: int | None) -> bool:
    """Return whether the out-of-memory killer killed a process, according to the counter or the kernel's log.

    Args:
        pid: process ID.
        before: value of :func:`oom_kills` when the process was started.
    """
    now = oom_kills()
    # The counter may include another process of the container; the log names the pid, but is often not readable.
    return (now is not None and before is not None and now > before) or bool(_kernel_kill_lines(pid))


def _oom_counter_files() -> Iterator[Path]:
    """Yield the possible counter files of this process's control group, for versions 2 and 1, inside or outside."""
    # Inside a container, its group is mounted as the root.
    root = Path("/sys/fs/cgroup")
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        # Format: hierarchy ID, controllers, path.
        _, controllers, group = line.split(":", 2)
        # Version 2 of control groups has one hierarchy, whose line names no controller.
        if not controllers:
            yield from (root / group.lstrip("/") / "memory.events", root / "memory.events")
        elif "memory" in controllers.split(","):
            yield from (root / "memory" / group.lstrip("/") / "memory.oom_control", root / "memory/memory.oom_control")


def _kernel_kill_lines(pid: int) -> list[str]:
    """Return the kernel's log lines about a killed process; empty if the log is not readable."""
    # In a container the kernel logs other process IDs.
    if in_own_namespace():
        return []
    try:
        # Without O_NONBLOCK, a read at the end of the log would wait for the next message.
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    lines: list[str] = []
    try:
        while line := os.read(descriptor, 8192):
            lines.append(line.decode(errors="replace"))
    # EAGAIN at the end of the log, EPIPE if the ring buffer overwrote the next message.
    except OSError:
        pass
    finally:
        os.close(descriptor)
    return [line for line in lines if re.search(rf"Killed process {pid}\b", line)]


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and the chain of its causes."""
    # The chain may be circular, if two exceptions were raised from each other.
    visited: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in visited:
        visited.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def signal_name(number: int) -> str:
    """Return the name of a signal, or its number if it has none."""
    try:
        return signal.Signals(number).name
    # A real-time signal.
    except ValueError:
        return f"signal {number}"


_CAUSES: Final[dict[str, Cause]] = {cause: cause for cause in get_args(Cause)}
