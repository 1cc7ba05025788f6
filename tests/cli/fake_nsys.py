"""A stand-in for nsys on PATH: notes how it was called, runs the command, writes a report, prints known statistics.

It ends with 0 whatever the command's exit code is, and keeps sessions in files of $TMPDIR, as the real one does.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

verb = sys.argv[1]
words = sys.argv[2:]
options = dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)
command = words[next((i for i, word in enumerate(words) if not word.startswith("--")), len(words)) :]
with Path(os.environ["FAKE_NSYS_LOG"]).open("a") as log:
    log.write(json.dumps([verb, *words]) + "\n")
if os.environ.get("FAKE_NSYS_FAILS") == verb:
    sys.exit("The target application terminated with a message of its own.")


def session(name):
    return Path(tempfile.gettempdir()) / f"fake-nsys-{name}"


def write(report):
    Path(f"{report}.nsys-rep").write_text("a report")


if verb == "profile":
    subprocess.run(command, check=False)
    if not ("--capture-range" in options and os.environ.get("FAKE_NSYS_NO_RANGE")):
        write(options["--output"])
elif verb == "launch":
    session(options["--session-new"]).write_text("")
    subprocess.run(command, check=False)
elif verb == "start":
    assert session(options["--session"]).exists(), "no such session"
    session(options["--session"]).write_text(options["--output"])
elif verb == "stop":
    write(session(options["--session"]).read_text())
elif verb == "stats":
    assert Path(command[0]).read_text() == "a report"
    sys.stdout.write(Path(os.environ["FAKE_NSYS_STATISTICS"]).read_text())
