"""How a run ended: the signal that ends it in order, and what run.json says of the end."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fieldwatch.guard import Diverged
from fieldwatch.monitor import is_requested_stop
from fieldwatch.record import Manifest, NotARun, RunState, holds_run, read_manifest


class Interrupted(SystemExit):
    """A signal came, the run has ended in order. Exits with 143 (SIGTERM), 130 (SIGINT), 138 (SIGUSR1), 129 (SIGHUP).

    The step was finished and saved; or it was given up at a stop point: then the last checkpoint stands.
    """


def end_state(error: BaseException | None) -> RunState:
    """How a segment ended, in one word."""
    if error is None:
        return "finished"
    if isinstance(error, Diverged):
        return "diverged"
    return "interrupted" if is_requested_stop(error) else "failed"


def record_end(folder: Path, manifest: Manifest | None, state: RunState) -> None:
    """Write the end into run.json.

    Args:
        folder: the run's.
        manifest: what run.json says since this process began its segment; None where it did not get so far.
        state: how the segment ended.
    """
    if manifest is None and holds_run(folder):
        try:
            manifest = read_manifest(folder)
        except NotARun:  # damaged before this process came: it stays as it is
            return
    if manifest is not None:
        replace(manifest, state=state).write(folder)


def print_warnings(sentences: Sequence[str]) -> None:
    """Say in the terminal what was survived, whether or not a sink prints it."""
    for sentence in sentences:
        sys.stderr.write(f"fieldwatch: {sentence}\n")
