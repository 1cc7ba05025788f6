"""What ended a process, by its exit status, its error, its stacks and what the system says about it."""

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
"""One word for what ended a process; docs/reliability.md has a line about each."""

NOT_RETRIED: Final = ("finished", "diverged", "interrupted", "bad-input")
_PASSING: Final = ("disk", "data")
"""Causes that pass without anything being changed in the training: a full disk, a folder that is not mounted yet."""
_PASSING_AT_START: Final = (*_PASSING, "memory", "cuda")
"""Before the first step another process may have the memory or the GPU; later the training most likely needs less."""
BUSY: Final = ("all CUDA-capable devices are busy or unavailable", "CUDA-capable device(s) is/are busy or unavailable")
"""Texts of CUDA errors while another process has the GPU for itself."""
SHORTAGES: Final = ("can't allocate memory", "Cannot allocate memory", "CUDA error: out of memory")
"""Texts of errors about memory that are raised as something else than a MemoryError."""
STICKY: Final = (
    "illegal memory access", "device-side assert", "unspecified launch failure", "uncorrectable ECC", "ECC error",
    "misaligned address", "illegal instruction was encountered", "CUDA error: launch failed",
)  # fmt: skip
"""Texts of CUDA errors after which only a new process can use the GPU again."""
DISK_ERRORS: Final = (
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EREMOTEIO, errno.EHOSTDOWN,
)  # fmt: skip
"""Error numbers of a disk that is full or broken, and of a file server that is away."""
_DISK_TEXT: Final = re.compile(
    r"No space left on device|Disk quota exceeded|Read-only file system|Stale file handle|os error 28"
)
_MISSING: Final = (errno.ENOENT, errno.ENOTDIR)
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

    def passes(self, *, at_start: bool) -> bool:
        """Whether the cause is likely to pass by itself, so that waiting helps.

        Args:
            at_start: whether the process died before its first step.
        """
        return self.cause in (_PASSING_AT_START if at_start else _PASSING)

    def __str__(self) -> str:
        return f"{self.cause}: {self.detail}"


def cause_of_error(error: BaseException) -> Death:
    """Name the cause behind an exception: a full disk is one, whatever was raised on top of it."""
    if isinstance(error, SystemExit):
        return _of_exit(error)
    message = f"{type(error).__name__}: {error}".strip().removesuffix(":")
    chain = list(_chain(error))
    # By name: torch must not be imported here, and its classes moved between versions.
    names = {kind.__name__ for link in chain for kind in type(link).__mro__}
    numbers = {getattr(link, "errno", None) for link in chain}
    texts = " ".join(str(link) for link in chain)
    cause: Cause = "exception"
    # The order decides: a CUDA context that is broken also fails to allocate, and a full disk raises anything.
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
    """Name the cause of an end in order: a signal that was obeyed, an exception, or that all was done."""
    return Death(cause="finished", detail="finished") if error is None else cause_of_error(error)


def exit_cause(error: BaseException, *, refused: bool) -> tuple[Death, bool]:
    """Name the cause of an exception that ends a process before it has a black box, or after it closed it.

    Args:
        error: what ends it.
        refused: whether the command line called it an error of the user's input.

    Returns:
        The cause, and whether a file or folder was missing.
    """
    death = cause_of_error(error)
    missing = any(
        isinstance(link, FileNotFoundError | NotADirectoryError) or getattr(link, "errno", None) in _MISSING
        for link in _chain(error)
    )
    if refused and death.cause in ("exception", "left", "bad-input"):
        death = Death(cause="bad-input", detail=str(error))
    return death, missing


def is_requested_stop(error: BaseException) -> bool:
    """Whether an exception is somebody's wish to end: ctrl-C, an obeyed signal, a plain `sys.exit()`."""
    if isinstance(error, SystemExit):
        return not error.code or (isinstance(error.code, int) and error.code - 128 in STOPS)
    return isinstance(error, KeyboardInterrupt)


def as_cause(word: object) -> Cause | None:
    """A cause by its word; None for anything else."""
    return _CAUSES.get(word) if isinstance(word, str) else None


def _of_exit(error: SystemExit) -> Death:
    """Name what `sys.exit` means: a signal that was obeyed, a wish, or a library that gave up in the middle."""
    if not is_requested_stop(error):
        return Death(cause="left", detail=f"sys.exit({error.code!r}) was called{_raised_at(error)}")
    if error.code:
        return cause_of_status(int(error.code))
    return Death(cause="interrupted", detail=f"sys.exit() was called{_raised_at(error)}")


def _raised_at(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f" in {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


def cause_of_status(status: int) -> Death:
    """Name the cause that an exit status alone tells: negative is a signal's number, as `subprocess` has it."""
    if status >= 0:
        return _of_exit_code(status)
    number = -status
    if number == signal.SIGKILL:
        return Death(cause="killed", detail="killed by SIGKILL; the kernel's out-of-memory killer is not on record")
    if number in STOPS:
        return Death(cause="interrupted", detail=f"ended by {signal_name(number)} before it listened")
    cause, description = _FATAL.get(number, ("signal", "ended by a signal"))
    return Death(cause=cause, detail=f"{description}, {signal_name(number)}")


def _of_exit_code(status: int) -> Death:
    if status - 128 in STOPS:
        return Death(cause="interrupted", detail=f"{signal_name(status - 128)} came; the step was finished and saved")
    if status == 0:
        return Death(cause="finished", detail="finished")
    return Death(cause="left", detail=f"it ended with exit code {status} in the middle, and did not say why")


def cause_of_beat(beat: Heartbeat, status: int) -> Death:
    """Name the cause from a process's own last words, and its exit status where it left none."""
    # 1 is the status of a finished training with an error among its findings.
    if beat.ending == "finished" and status in (0, 1):
        return Death(cause="finished", detail="finished")
    if beat.ending in ("interrupted", "diverged", "failed"):
        word, _, detail = beat.cause.partition(": ")
        return Death(cause=as_cause(word) or "exception", detail=detail or beat.cause or beat.ending)
    # Status 0 without an ending is a library that called os._exit in the middle.
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
    if _kernel_kill_lines(beat.pid):
        return Death(cause="oom-killer", detail=f"killed by the kernel's out-of-memory killer; {where}")
    return Death(cause="killed", detail=f"killed without a word (SIGKILL, out-of-memory killer); {where}")


def cause_in_stacks(stacks: str) -> Death | None:
    """Name what `faulthandler` wrote about a process's end; None where it wrote nothing."""
    for text in re.findall(r"^Fatal Python error: (.+)$", stacks, re.MULTILINE):
        number = _IN_STACKS.get(text.strip())
        if number is not None:
            return cause_of_status(-number)
        return Death(cause="abort", detail=f"Python could not go on: {text.strip()}")
    # faulthandler's own words; "It went on" is written when a hang is over.
    if stacks.rstrip() and stacks.rfind("Timeout (") > stacks.rfind("\nIt went on"):
        return Death(cause="hang", detail="it hung and did not go on: the stacks say where")
    return None


def oom_kills() -> int | None:
    """How many processes the out-of-memory killer took in this control group so far; None where nobody counts."""
    for path in _oom_counter_files():
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
    # The group's counter may count another process of the container; the log names the pid, but is often closed.
    return (now is not None and before is not None and now > before) or bool(_kernel_kill_lines(pid))


def _oom_counter_files() -> Iterator[Path]:
    """The files that count, of this process's control group (version 2, then 1) and as a container sees its own."""
    root = Path("/sys/fs/cgroup")
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        # Version 2 of control groups has one hierarchy, whose line names no controller.
        if not controllers:
            yield from (root / group.lstrip("/") / "memory.events", root / "memory.events")
        elif "memory" in controllers.split(","):
            yield from (root / "memory" / group.lstrip("/") / "memory.oom_control", root / "memory/memory.oom_control")


def _kernel_kill_lines(pid: int) -> list[str]:
    """The kernel's lines about a killed process; none where its log is closed to us, or counts pids otherwise."""
    if in_own_namespace():
        return []
    try:
        # Without O_NONBLOCK a read at the end of the log would wait for the next message.
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
    # Causes can be circular: an exception raised from one that was raised from it.
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


_CAUSES: Final[dict[str, Cause]] = {cause: cause for cause in get_args(Cause)}
