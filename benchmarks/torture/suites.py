"""Promises that tests prove: the tests are run, and what they say stands in the table."""

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rows import Row, judged, not_run

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Tests that stand for a promise.

    Attributes:
        promise: which one.
        what: what they do.
        files: patterns below ``tests``.
        choose: pytest's ``-k``; empty for all.
    """

    promise: str
    what: str
    files: tuple[str, ...]
    choose: str = ""


SUITES = (
    Suite(
        promise="P4",
        what="state that is put back, item by item; a run killed and resumed twenty times",
        files=("checkpoint/test_resume.py", "stories/test_twenty_resumes.py"),
    ),
    Suite(
        promise="P6",
        what="intervals that keep the stall budget and the loss limit",
        files=("checkpoint/test_interval.py", "run/test_saving.py"),
    ),
    Suite(promise="P8", what="guarded updates and refusals", files=("guard/test_update.py", "guard/test_refusals.py")),
    Suite(promise="P9", what="rollback of spikes", files=("**/test_*rollback*.py", "**/test_*spike*.py")),
    Suite(promise="P10", what="signals to a run", files=("checkpoint/test_signals.py", "run/test_stop_points.py")),
    Suite(
        promise="P14",
        what="validation beside training",
        files=("run/test_aside.py", "pipelines/**/test_*validation*.py"),
    ),
    Suite(
        promise="P17",
        what="hostile checkpoints: no stored code runs, little memory is taken",
        files=("checkpoint/test_damage.py",),
        choose="hostile or stored_code or huge or deep or dtype or bool",
    ),
    Suite(promise="P18", what="retention, over random histories", files=("checkpoint/test_retention.py",)),
)


def run_suites(folder: Path) -> list[Row]:
    """One row per suite."""
    return [run_suite(suite, folder) for suite in SUITES]


def run_suite(suite: Suite, folder: Path) -> Row:
    """Run its tests in a process of their own."""
    files = sorted({path for pattern in suite.files for path in (ROOT / "tests").glob(pattern)})
    what = f"tests: {suite.what}"
    if not files:
        return not_run(suite.promise, what, "all pass", "there are no such tests yet")
    names = [str(path.relative_to(ROOT)) for path in files]
    options = ["-q", "-p", "no:cacheprovider", f"--basetemp={folder / suite.promise}"]
    command = [sys.executable, "-m", "pytest", *options, *(["-k", suite.choose] if suite.choose else []), *names]
    began = time.monotonic()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    counts = {name: int(number) for number, name in re.findall(r"(\d+) (passed|failed|errors?|skipped)", done.stdout)}
    shown = ", ".join(f"{number} {name}" for name, number in counts.items())
    wrong = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return judged(
        *(suite.promise, f"{what} ({len(files)} files)", "all pass"),
        f"{shown or 'nothing'} in {time.monotonic() - began:.0f} s",
        good=done.returncode == 0 and counts.get("passed", 0) > 0,
        why=", ".join(wrong[:3]),
    )
