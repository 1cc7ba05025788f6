"""The suite does not depend on what the shell that starts it does with signals."""

import os
import signal
import subprocess
import sys


def test_every_slow_test_exists(root):
    """A renamed test would be back in `make quick` without anybody noticing: `make slow` lists it again."""
    tests = root / "tests"
    missing = []
    for line in (tests / "slow.txt").read_text().split():
        place, _, function = line.partition("::")
        path = tests / place
        if not path.exists() or (function and f"def {function}(" not in path.read_text()):
            missing.append(line)
    assert missing == []


INTERRUPTED = (
    "tests/cli/test_gpu.py::test_ctrl_c_ends_it_with_0",
    "tests/contracts/test_suite.py::test_ctrl_c_reaches_this_process_and_those_that_it_starts",
)
"""Tests that send the signal of Ctrl-C."""


def test_the_suite_passes_where_the_shell_ignores_ctrl_c(root):
    pytest_line = f"exec {sys.executable} -m pytest -q -p no:cacheprovider -p no:xdist {' '.join(INTERRUPTED)}"
    line = ["sh", "-c", f"trap '' INT; {pytest_line}"]
    done = subprocess.run(line, cwd=root, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert f"{len(INTERRUPTED)} passed" in done.stdout


def test_ctrl_c_reaches_this_process_and_those_that_it_starts():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    asked = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert told.stdout == "True\n"
