"""SIGKILL and an error at every system call of a save, and the order of the calls: by strace, or by Python's calls.

strace is attached to a waiting forked child, so that a trial takes a fraction of a second. The N-th call of each name
fails, for every N that occurs in the save.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accidents import provoke, tests_module
from forked import Child, forked
from kill import loaded
from methods import Method, Ours, filled
from rows import Row, judged, not_run

CALLS = (
    "open,openat,mkdir,mkdirat,fallocate,write,writev,pwrite64,pwritev,fsync,fdatasync,rename,renameat,renameat2,"
    "unlink,unlinkat,rmdir,ftruncate,getdents64,link,linkat,symlink,symlinkat"
)
"""Calls that may touch a disk; reading alone cannot lose anything."""
ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EACCES")
SIZE = 20_000
READY = b"ready "
"""Output of a child before it is traced."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One failed call.

    Attributes:
        call: its name and number.
        fault: ``KILL`` or the error's name.
        promised: the last acknowledged step.
        found: result of the load (``step`` and ``whole``, or ``raised``).
        again: whether the next save, without a fault, succeeded and left nothing but itself.
        said: error of the save; empty for none.
    """

    call: str
    fault: str
    promised: int
    found: dict[str, Any]
    again: bool
    said: str

    @property
    def kept(self) -> bool:
        """Whether nothing acknowledged is lost."""
        return bool(self.found.get("whole")) and self.found.get("step", -1) >= self.promised


def can_trace() -> str:
    """Return why strace cannot be used here; empty if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    probe = subprocess.run(["strace", "-f", "-o", os.devnull, "true"], capture_output=True, check=False)
    return "this machine forbids ptrace" if probe.returncode else ""


def traced(work: Callable[[Callable[[bytes], Any]], Any], log: Path, *options: str) -> tuple[Child, int]:
    """Run ``work(say)`` in a child under strace; return the child and its exit code."""
    gate, opener = os.pipe()

    def waiting(say: Callable[[bytes], Any]) -> None:
        os.close(opener)
        filled(1, SIZE)  # torch's lookups for its first tensor are not part of a save
        say(READY)
        os.read(gate, 1)
        work(say)

    child = forked(waiting)
    os.close(gate)
    child.listen(len(READY))  # an earlier fault would not be part of the save
    command = ["strace", "-f", "-y", "-s", "0", "-o", str(log), *options, "-p", str(child.pid)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as tracer:
        if tracer.stderr is not None:
            tracer.stderr.readline()  # "Process ... attached"
        os.write(opener, b"g")
        os.close(opener)
        try:
            code = child.end()
        finally:
            tracer.wait(timeout=30)
    return child, code


def second_save(method: Method, folder: Path) -> Callable[[Callable[[bytes], Any]], None]:
    """Save step 2 next to a step 1 that gets deleted; report when the save begins and when it is done."""

    def work(say: Callable[[bytes], Any]) -> None:
        say(b"begin")
        method.save(folder, 2, filled(2, SIZE))
        say(b"done")

    return work


def first_save(method: Method, folder: Path) -> None:
    """Save step 1 in a child, since the parent of forks must not start threads."""
    folder.mkdir(parents=True, exist_ok=True)
    code = forked(lambda _: method.save(folder, 1, filled(1, SIZE))).end()
    if code:
        raise RuntimeError(f"{method.name} could not save to {folder} at all (exit {code}): see its traceback above")


def recorded(method: Method, folder: Path) -> list[str]:
    """Return the system calls of one save that deletes an older one, as strace writes them."""
    first_save(method, folder)
    log = folder.with_name(f"{folder.name}.log")
    traced(second_save(method, folder), log, "-e", f"trace={CALLS}")
    lines = log.read_text().splitlines()
    own = [i for i, line in enumerate(lines) if " write(" in line and "<pipe:" in line]
    return lines[own[0] + 1 : own[-1]]


def counted(lines: list[str]) -> Counter[str]:
    """Count each call in a log, for the thread that has most of them."""
    calls = Counter[tuple[str, str]]()
    for line in lines:
        match = re.match(r"(\d+) +(\w+)\(", line)
        if match:
            calls[match[1], match[2]] += 1
    return Counter({name: max(n for (_, other), n in calls.items() if other == name) for _, name in calls})


def trials(method: Method, folder: Path, faults: dict[str, str], only: Collection[str] = ()) -> Iterator[Trial]:
    """Let every call of a save (or the named ones) fail in every way: fault name to strace's ``inject`` clause."""
    calls = counted(recorded(method, folder / "recorded"))
    calls["write"] += 2  # the child's writes to its pipe count, too
    for fault, clause in faults.items():
        for name, count in calls.items() if not only else [(name, calls[name]) for name in only]:
            for number in range(1, count + 1):
                yield _trial(method, folder / f"{fault}-{name}-{number}", fault, f"{name}:{clause}:when={number}")


def _trial(method: Method, place: Path, fault: str, inject: str) -> Trial:
    first_save(method, place)
    said: list[str] = []

    def work(say: Callable[[bytes], Any]) -> None:
        try:
            second_save(method, place)(say)
        except (OSError, RuntimeError) as error:
            said.append(str(error))
            os._exit(7)

    name = inject.partition(":")[0]
    child, code = traced(work, place.with_name("log"), "-e", f"trace={name}", "-e", f"inject={inject}")
    promised = 2 if child.heard.endswith(b"done") else 1
    found = loaded(method, place, SIZE)
    again = forked(lambda _: method.save(place, 3, filled(3, SIZE))).end() == 0
    left = [path.name for path in place.iterdir()]
    shutil.rmtree(place)
    outcome = {0: "", 7: "raised", -signal.SIGKILL: "killed"}.get(code, f"ended with {code}")
    return Trial(
        call=place.name, fault=fault, promised=promised, found=found, again=again and len(left) == 1, said=outcome
    )


def run_syscalls(folder: Path) -> list[Row]:
    """Return the rows of P1, P2 and P7 about single system calls."""
    why = can_trace()
    return run_by_python(folder, why) if why else [*call_rows(folder), order_row(folder / "order")]


def call_rows(folder: Path, errors: Collection[str] = ERRORS, only: Collection[str] = ()) -> list[Row]:
    """Kill a save, and let it fail, at every system call or at the named ones."""
    method = Ours(last=1)
    began = time.monotonic()
    kills = list(trials(method, folder / "kills", {"KILL": "signal=KILL"}, only))
    failed = list(trials(method, folder / "errors", {name: f"error={name}" for name in errors}, only))
    seconds = f"{time.monotonic() - began:.0f} s"
    return [
        _row("P1", f"kill -9 at every system call of a save (strace, {seconds})", kills),
        _row("P7", f"{', '.join(errors)} at every system call of a save (strace)", failed),
    ]


def _row(promise: str, what: str, results: list[Trial]) -> Row:
    kept = sum(one.kept for one in results)
    again = sum(one.again for one in results)
    odd = [one for one in results if one.said.startswith("ended")]
    wrong = next((str(one) for one in results if not (one.kept and one.again) or one in odd), "")
    found = f"{kept} of {len(results)} loadable at the acknowledged step, {again} healed by the next save"
    hit = sum(one.said != "" for one in results)
    good = kept == again == len(results) and hit > len(results) // 2 and not odd
    return judged(promise, what, "100 %", f"{found}; {hit} saves ended early", good=good, why=wrong)


def order_row(folder: Path) -> Row:
    """Assert write < fsync < rename < fsync of the parent < acknowledged < deletion of the older one."""
    wanted = "write < fsync < rename < fsync(parent) < delete"
    what = "order of the system calls of a save (strace)"
    checks = tests_module("test_crash")
    lines = [line for line in recorded(Ours(last=1), folder) if str(folder) in line]
    calls = [checks.parsed(line) for line in lines if re.match(r"\d+ +(?!open|getdents)\w+\(", line)]
    try:
        checks.check_order(calls)
    except (AssertionError, LookupError, ValueError) as error:  # an expected call may be missing
        return judged("P2", what, wanted, f"{len(calls)} calls, another order", good=False, why=str(error)[:300])
    return judged("P2", what, wanted, f"{len(calls)} calls, in this order", good=True)


def run_by_python(folder: Path, why: str) -> list[Row]:
    """Return the same rows if strace cannot be used."""
    found = provoke(folder, "kill_at_every_call", "error_at_every_call", "recorded_order")
    kills = found["kill_at_every_call"]
    errors = found["error_at_every_call"]
    kept = sum(one["whole"] and one["step"] >= one["promised"] for one in kills)
    intact = sum(one["step"] >= one["promised"] for one in errors)
    rows = [
        judged(
            *("P1", f"kill -9 at every Python call of a save, half of a write done ({why})", "100 %"),
            f"{kept} of {len(kills)} loadable at the acknowledged step",
            good=kept == len(kills),
        ),
        judged(
            *("P7", f"{', '.join(ERRORS)} at every Python call of a save", "100 %"),
            f"{intact} of {len(errors)} loadable at the acknowledged step",
            good=intact == len(errors),
        ),
    ]
    try:
        tests_module("test_crash").check_order(found["recorded_order"])
        order = judged("P2", "order of the Python calls of a save", "durable", "in order", good=True)
    except AssertionError as error:
        order = judged(
            "P2", "order of the Python calls of a save", "durable", "not in order", good=False, why=str(error)
        )
    return [*rows, order, not_run("P2", "order of the system calls (strace)", "in order", why)]
