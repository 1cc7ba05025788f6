"""End of a run: the exception for a stop by a signal, and the final state in run.json."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fieldwatch.guard import Diverged
from fieldwatch.monitor import is_requested_stop
from fieldwatch.record import Manifest, NotARun, RunState, holds_run, read_manifest


class Interrupted(SystemExit):
    """Raised after a signal, once the run has ended in order.

    The exit code is 143 for SIGTERM, 130 for SIGINT, 138 for SIGUSR1 and 129 for SIGHUP. Either the step was finished
    and saved, or it was abandoned at a stop point, and the last checkpoint is that of an earlier step.
    """


class ReplayEnded(Interrupted):
    """Raised in the loop of a replayed run once the replay has all that it needs; the run is not marked as failed."""

    def __init__(self) -> None:
        super().__init__(0)


def end_state(error: BaseException | None) -> RunState:
    """Return the final state of a segment that ended with this exception, or None."""
    if error is None:
        return "finished"
    if isinstance(error, Diverged):
        return "diverged"
    # A signal or Ctrl-C is not a failure of the run.
    return "interrupted" if is_requested_stop(error) else "failed"


def record_end(folder: Path, manifest: Manifest | None, state: RunState) -> None:
    """Write the final state of a segment to run.json.

    Args:
        folder: run folder.
        manifest: content of run.json for this segment; None if the segment did not begin.
        state: final state of the segment.
    """
    if manifest is None and holds_run(folder):
        try:
            manifest = read_manifest(folder)
        # The file was damaged before this process started: leave it unchanged.
        except NotARun:
            return
    if manifest is not None:
        # Only the state changes; a manifest from memory also repairs a damaged file.
        replace(manifest, state=state).write(folder)


def print_warnings(sentences: Sequence[str]) -> None:
    """Print warnings to stderr, whether or not a sink prints them as well."""
    for sentence in sentences:
        sys.stderr.write(f"fieldwatch: {sentence}\n")
