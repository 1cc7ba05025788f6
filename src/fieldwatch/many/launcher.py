"""Starts one training process: it never outlives whoever started this program, and always gets to save.

Run as a file, by the interpreter alone: `python -I launcher.py GRACE WORD...`. Standard input is a pipe that nobody
writes to: when its other end is closed, by a wish or because the process there died, the training gets SIGTERM, and
SIGKILL after GRACE seconds. What the training prints goes to standard error; how it ended goes to standard output, with
what it said through the channel of its own that `fieldwatch.monitor.SupervisorLink` describes.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.1


def main(grace: float, command: list[str]) -> int:
    """Start the command and stay until it ended."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the pipe says when it is over
    began = time.monotonic()
    start = prepare_child if sys.platform == "linux" else default_signals
    # The same protocol as between a supervisor and its training, but nobody restarts anything here.
    channel, theirs = os.pipe()
    os.set_blocking(channel, False)
    supervised = {"supervisor": os.getpid(), "attempt": 0, "channel": theirs, "ends_hangs": False}
    with subprocess.Popen(  # noqa: S603  the words come from the plan, no shell reads them
        command,
        env={**os.environ, "FIELDWATCH_SUPERVISED": json.dumps(supervised)},
        pass_fds=(theirs,),
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.buffer,
        stderr=sys.stderr.buffer,
        preexec_fn=start,  # noqa: PLW1509  this process has one thread
    ) as child:
        os.close(theirs)
        report(pid=child.pid)
        said = ChannelReader(channel)
        asked = wait_for(child, grace, said)
        said.drain()
    facts = {"code": child.returncode, "asked": asked, "seconds": round(time.monotonic() - began, 3), "pid": child.pid}
    report(**facts, said=said.text())
    return 0


class ChannelReader:
    """What the training writes into its channel.

    Args:
        channel: descriptor of the pipe's end for reading; reading does not wait.
    """

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._raw = b""

    def drain(self) -> None:
        """Take what is new, so that the training never waits for room in the pipe."""
        try:
            while new := os.read(self._channel, 65536):
                # Bounded: the last messages are those that matter.
                self._raw = (self._raw + new)[-65536:]
        except BlockingIOError:
            return

    def text(self) -> str:
        """All of it, at most the last 64 KiB."""
        return self._raw.decode("ascii", "backslashreplace")


def wait_for(child: subprocess.Popen[bytes], grace: float, said: ChannelReader) -> bool:
    """Wait for the child's end; True where it had to be told to end."""
    deadline = float("inf")
    asked = False
    while child.poll() is None:
        said.drain()
        if asked:
            time.sleep(POLL_SECONDS)
        # An empty read is the end of the file: the other end was closed, or its process died.
        elif select.select([sys.stdin], [], [], POLL_SECONDS)[0] and not os.read(sys.stdin.fileno(), 1):
            asked = True
            deadline = time.monotonic() + grace
            child.terminate()
        if time.monotonic() > deadline:
            child.kill()
    return asked


def report(**facts: object) -> None:
    """One line of JSON for whoever started this; nobody may be there any more."""
    try:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()
    except (BrokenPipeError, ValueError):
        # The flush at exit must not fail on the broken pipe again.
        sys.stdout = sys.stderr


def default_signals() -> None:
    """Give the child the signals that this program ignores."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def prepare_child() -> None:
    """The same, and SIGTERM from the kernel if this program is killed."""
    default_signals()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
