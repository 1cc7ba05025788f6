"""Work in forked processes: a fork takes milliseconds where a new process that imports torch takes seconds.

Whoever forks does no tensor work of its own, so that no thread of a pool is missing in the child.
"""

import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

PATIENCE = 120.0
"""Seconds after which a child that says nothing counts as hung."""


@dataclass
class Child:
    """A forked process and the pipe on which it speaks."""

    pid: int
    pipe: int
    heard: bytes = b""

    def listen(self, size: int, seconds: float = PATIENCE) -> bool:
        """Wait until at least so many bytes came; False when it ended or was silent for too long."""
        end = time.monotonic() + seconds
        while len(self.heard) < size and (left := end - time.monotonic()) > 0:
            ready, _, _ = select.select([self.pipe], [], [], left)
            got = os.read(self.pipe, 65536) if ready else b""
            if ready and not got:
                return False
            self.heard += got
        return len(self.heard) >= size

    def end(self, number: int = 0) -> int:
        """Send a signal (none for 0), hear the rest, and return how it ended, as ``os.waitstatus_to_exitcode``."""
        if number:
            os.kill(self.pid, number)
        while got := os.read(self.pipe, 65536):
            self.heard += got
        os.close(self.pipe)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def forked(work: Callable[[Callable[[bytes], Any]], Any]) -> Child:
    """Run ``work(say)`` in a child, which exits with 0, or with 1 after a traceback."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(writer)
        return Child(pid, reader)
    os.close(reader)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):  # as a new process has them
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    code = 1
    try:
        work(lambda text: os.write(writer, text))
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except KeyboardInterrupt:  # Python ends such a process by the signal itself
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001  the child ends here, whatever it was
        traceback.print_exc()
    finally:
        os._exit(code)


def spawned(command: Sequence[str]) -> Child:
    """Run a program of its own, which is given the descriptor to speak on as its last argument."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    pid = os.posix_spawn(command[0], [*command, str(writer)], os.environ)
    os.close(writer)
    return Child(pid, reader)


def answer(work: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Return what ``work()`` returns in a child, through JSON.

    Returns:
        What it returned, or ``{"raised": "Type: message"}``; also for a child that was killed or hung.
    """

    def tell(say: Callable[[bytes], Any]) -> None:
        try:
            result = {"returned": work()}
        except BaseException as error:  # noqa: BLE001  the parent is told, whatever it was
            result = {"raised": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        say(json.dumps(result).encode())

    child = forked(tell)
    child.listen(1 << 30, seconds)
    code = child.end(signal.SIGKILL)
    if not child.heard:
        return {"raised": f"the process ended with {code} and said nothing"}
    result = json.loads(child.heard)
    return result.get("returned", result)
