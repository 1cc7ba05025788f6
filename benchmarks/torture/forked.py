"""Runs work in forked processes: a fork takes milliseconds, a new process that imports torch takes seconds.

The parent must do no tensor work itself, because the threads of torch's pools do not survive a fork. It imports what
every child needs: torch's first optimizer imports its compiler, which takes a second in each of hundreds of children.
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

import torch._dynamo  # noqa: F401  see above

import fieldwatch.run.session  # noqa: F401  the rest of a run

PATIENCE = 120.0
"""Seconds without output after which a child counts as hung."""


@dataclass
class Child:
    """A forked process and the pipe that it writes to."""

    pid: int
    pipe: int
    heard: bytes = b""

    def listen(self, size: int, seconds: float = PATIENCE) -> bool:
        """Wait until the child has written this many bytes; return False if it ended or was silent for too long."""
        end = time.monotonic() + seconds
        while len(self.heard) < size and (left := end - time.monotonic()) > 0:
            ready, _, _ = select.select([self.pipe], [], [], left)
            got = os.read(self.pipe, 65536) if ready else b""
            if ready and not got:
                return False
            self.heard += got
        return len(self.heard) >= size

    def end(self, number: int = 0) -> int:
        """Send a signal (0 for none), read the remaining output, and return the exit code."""
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
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):  # as in a new process
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    code = 1
    try:
        work(lambda text: os.write(writer, text))
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except KeyboardInterrupt:  # Python, too, ends such a process with the signal itself
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001  the child ends here, whatever was raised
        traceback.print_exc()
    finally:
        os._exit(code)


def spawned(command: Sequence[str]) -> Child:
    """Run another program, which gets the descriptor to write to as its last argument."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    pid = os.posix_spawn(command[0], [*command, str(writer)], os.environ)
    os.close(writer)
    return Child(pid, reader)


def answer(work: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Return the result of ``work()`` in a child, passed on as JSON.

    Returns:
        The returned value, or ``{"raised": "Type: message"}``, also if the child was killed or hung.
    """

    def tell(say: Callable[[bytes], Any]) -> None:
        try:
            result = {"returned": work()}
        except BaseException as error:  # noqa: BLE001  passed on to the parent, whatever was raised
            result = {"raised": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        say(json.dumps(result).encode())

    child = forked(tell)
    child.listen(1 << 30, seconds)
    code = child.end(signal.SIGKILL)
    if not child.heard:
        return {"raised": f"the process exited with {code} and without output"}
    result = json.loads(child.heard)
    return result.get("returned", result)
