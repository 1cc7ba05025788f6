"""Process that runs the stages of a capture, so that a crash of COLMAP is a message. Started by `process.py`.

It reads a job as one line of JSON from standard input, and writes lines of JSON to standard output: ``{"stage", "done",
"total"}`` for progress, ``{"refused"}`` for input that cannot be used. It ends when its standard input ends: it never
outlives the process that started it.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, TextIO

from fieldwatch import InputError
from fieldwatch.cli.kit import FolderLock, reading_input
from fieldwatch.recon.data.capture import CaptureSettings, find_source, record_for, run_stages

REFUSED = 2


def work(job: dict[str, Any], tell: TextIO) -> None:
    """Run the stages of a job that are not complete.

    Args:
        job: "input", "out", "settings" and "overwrite".
        tell: file for lines of JSON.

    Raises:
        InputError: the input or the folder cannot be used, or another process writes into the folder.
    """

    def report(stage: str, done: int, total: int) -> None:
        tell.write(json.dumps({"stage": stage, "done": done, "total": total}) + "\n")
        tell.flush()

    out = Path(job["out"])
    source = find_source(Path(job["input"]))
    settings = CaptureSettings(**job["settings"])
    # Before the lock, which creates the folder.
    record_for(out, source, overwrite=job["overwrite"])
    begun = out.exists()
    with FolderLock(out):
        # Again: another process may have written to the folder meanwhile.
        record = record_for(out, source, overwrite=job["overwrite"])
        if not record.stages and not record.begun:
            record.delete()
        try:
            run_stages(source, record, settings, report)
        except InputError:
            # Input that cannot be used leaves nothing behind; later stages keep what they have, for other settings.
            if not record.is_complete("frames", settings):
                record.delete()
                (out / ".lock").unlink(missing_ok=True)
                if not begun:
                    out.rmdir()
            raise


def end_with_parent() -> None:
    """End this process as soon as its standard input ends; the kernel closes it when the parent ends, however."""
    while sys.stdin.readline():
        pass
    os._exit(1)


def main() -> int:
    """Run the job of the first line of standard input.

    Returns:
        0 if done, 2 if the input cannot be used; other errors keep their traceback.
    """
    # Ctrl-C in the terminal reaches the whole group; the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=end_with_parent, daemon=True).start()
    # Libraries that print must not mix with the lines of JSON.
    tell = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        with reading_input():
            work(job, tell)
    except InputError as error:
        tell.write(json.dumps({"refused": str(error)}) + "\n")
        tell.flush()
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
