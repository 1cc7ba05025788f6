"""Launch one training process that cannot outlive the program that started this launcher, and that can always save.

Run it as a script with an isolated interpreter: `python -I launcher.py GRACE ARGUMENT...`. Standard input is a pipe
that is never written to. When its other end is closed, on purpose or because that process died, the training gets
SIGTERM, and SIGKILL after GRACE seconds. The training's output goes to standard error. Its exit status goes to standard
output, with its messages from the channel that `fieldwatch.monitor.SupervisorLink` describes.
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
    """Start the command and wait until it ends."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the closed pipe ends the launcher
    began = time.monotonic()
    # PR_SET_PDEATHSIG exists on Linux only; elsewhere, a killed launcher leaves the training running.
    start = prepare_child if sys.platform == "linux" else default_signals
    # The same protocol as between a supervisor and its training, but without restarts.
    channel, theirs = os.pipe()
    # Non-blocking, so that draining the channel never delays the checks for the end of the child.
    os.set_blocking(channel, False)
    supervised = {"supervisor": os.getpid(), "attempt": 0, "channel": theirs, "ends_hangs": False}
    with subprocess.Popen(  # noqa: S603  the arguments come from the plan and are not passed to a shell
        command,
        env={**os.environ, "FIELDWATCH_SUPERVISED": json.dumps(supervised)},
        pass_fds=(theirs,),
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.buffer,
        stderr=sys.stderr.buffer,
        preexec_fn=start,  # noqa: PLW1509  safe, since this process has a single thread
    ) as child:
        # Only the child may hold the write end, so that the channel reports end of file when it exits.
        os.close(theirs)
        # Report the PID early, in case this launcher is killed.
        report(pid=child.pid)
        reader = ChannelReader(channel)
        stopped = wait_for(child, grace, reader)
        reader.drain()
    facts = {
        "code": child.returncode,
        "asked": stopped,
        "seconds": round(time.monotonic() - began, 3),
        "pid": child.pid,
    }
    report(**facts, said=reader.text())
    return 0


class ChannelReader:
    """Collects the messages that the training writes to its channel.

    Args:
        channel: non-blocking file descriptor of the pipe's read end.
    """

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._raw = b""

    def drain(self) -> None:
        """Read all new data, so that the training never blocks on a full pipe."""
        try:
            while new := os.read(self._channel, 65536):
                # Keep only the end: the last messages matter, and memory stays bounded.
                self._raw = (self._raw + new)[-65536:]
        except BlockingIOError:
            return

    def text(self) -> str:
        """Return the messages, limited to the last 64 KiB."""
        return self._raw.decode("ascii", "backslashreplace")


def wait_for(child: subprocess.Popen[bytes], grace: float, reader: ChannelReader) -> bool:
    """Wait until the child ends; return whether the launcher had to stop it."""
    deadline = float("inf")
    stopping = False
    while child.poll() is None:
        reader.drain()
        if stopping:
            time.sleep(POLL_SECONDS)
        # An empty read means end of file: the other end was closed, or its process died.
        elif select.select([sys.stdin], [], [], POLL_SECONDS)[0] and not os.read(sys.stdin.fileno(), 1):
            stopping = True
            deadline = time.monotonic() + grace
            child.terminate()
        # The grace period is over: a checkpoint that takes longer is lost.
        if time.monotonic() > deadline:
            child.kill()
    return stopping


def report(**facts: object) -> None:
    """Write one line of JSON to standard output; ignore a closed pipe."""
    try:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()
    except (BrokenPipeError, ValueError):
        # Otherwise, the flush at exit would fail on the broken pipe again.
        sys.stdout = sys.stderr


def default_signals() -> None:
    """Restore the default handlers of the signals that this program ignores."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def prepare_child() -> None:
    """Restore default signals, and request SIGTERM from the kernel in case this program is killed."""
    default_signals()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
