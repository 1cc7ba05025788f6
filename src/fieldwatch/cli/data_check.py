"""The check of the data before the first step of a training: errors are refused, warnings are recorded."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from fieldwatch.base import duration
from fieldwatch.cli.doctor_report import DataFinding
from fieldwatch.cli.output import BadInput
from fieldwatch.record import Terminal
from fieldwatch.registry import Job

SLOW = 1.0
"""Seconds from which the time of the check is printed."""


def check_data(job: Job, preset: Any, console: Terminal) -> tuple[Mapping[str, Any], ...]:
    """Check the data and the settings of a training and print what is doubtful.

    Args:
        job: the training.
        preset: config from which its settings were derived.
        console: where to print.

    Returns:
        The warnings and notes, for the record of the run.

    Raises:
        BadInput: the data has errors; nothing has been written then.
    """
    if job.check is None:
        return ()
    began = time.perf_counter()
    findings: Sequence[DataFinding] = job.check(preset)
    seconds = time.perf_counter() - began
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        raise BadInput(refusal(errors))
    for finding in findings:
        console.print(Text(f"  {finding.severity}: {finding.message} -> {finding.remedy}"), soft_wrap=True)
    if seconds > SLOW:
        console.print(Text(f"  the data was checked in {duration(seconds)}; --no-doctor leaves this out"))
    return tuple(asdict(finding) for finding in findings)


def refusal(errors: Sequence[DataFinding]) -> str:
    """Return the message of a training that does not start."""
    lines = [f"{error.name}: {error.message} {error.remedy}" for error in errors]
    head = "the data cannot be trained on as it is"
    return "\n  ".join([f"{head} (--no-doctor trains all the same):", *lines])
