"""Start and end of a run: checks of the run folder, and the final state in run.json."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from fieldwatch.base import ExistingPathError, MissingPathError, refuse_link
from fieldwatch.checkpoint import NoWayBackError
from fieldwatch.guard import Diverged
from fieldwatch.monitor import is_requested_stop
from fieldwatch.record import (
    CHECKPOINTS,
    Manifest,
    NotARun,
    RunState,
    checkpoint_folders,
    holds_run,
    read_events,
    read_manifest,
)
from fieldwatch.record.config import refuse_mismatch

_RUN_FILES = (
    ".lock",
    "black_box",
    "checkpoints",
    "crash",
    "evaluations",
    "events.jsonl",
    "journal.jsonl",
    "log.txt",
    "memory.jsonl",
    "metrics.csv",
    "mlflow.db",
    "products",
    "profiles",
    "run.json",
    "snapshots",
    "tensorboard",
    "wandb",
)
"""Files that every run writes to its folder; those of a pipeline are checked when they are written."""

Resume = Literal["auto", "never", "must", "start-over"]
GIVEN_UP = "given-up-"
"""Prefix of the folder to which ``start-over`` moves earlier checkpoints."""


class Interrupted(SystemExit):
    """Raised after a signal, once the run has ended in order.

    The exit code is 143 for SIGTERM, 130 for SIGINT, 138 for SIGUSR1 and 129 for SIGHUP. Either the step was finished
    and saved, or it was abandoned at a stop point, and the last checkpoint is that of an earlier step.
    """


def check_folder(folder: Path, config: Mapping[str, Any], resume: Resume) -> bool:
    """Return whether the folder holds a run that should be continued.

    Raises:
        ConfigMismatch: the folder holds a run with another config.
        NotARun: its run.json is damaged, and no checkpoint can replace it.
        ExistingPathError: the folder holds a run, but ``resume`` is ``never``; or the path is a file.
        MissingPathError: the folder holds no run, but ``resume`` is ``must``.
    """
    if folder.exists() and not folder.is_dir():
        raise ExistingPathError(f"{folder} is a file, but a run needs a folder: choose another path with --out")
    exists = holds_run(folder)
    if exists and resume == "never":
        raise ExistingPathError(f"{folder} already holds a run: choose another folder, or continue it (resume='auto')")
    if not exists and resume == "must":
        raise MissingPathError(f"{folder} holds no run to resume: check the path, or start one with `fieldwatch train`")
    if exists:
        stored = _stored_config(folder)
        if stored is not None:
            refuse_mismatch(folder, stored, config)
    return exists and resume != "start-over"


def _stored_config(folder: Path) -> Mapping[str, Any] | None:
    """Return the config of the run in a folder; None if only checkpoints are left, which do not contain it.

    Raises:
        NotARun: run.json is damaged, and there are no checkpoints either.
    """
    try:
        return read_manifest(folder).config
    except NotARun:
        # Checkpoints that were set aside also prove that the folder held a run.
        if checkpoint_folders(folder) or checkpoint_folders(folder, set_aside=True):
            return None
        raise


def give_up_checkpoints(folder: Path) -> Path | None:
    """Rename the checkpoint folder of a run that starts over; nothing is deleted.

    Returns:
        The new folder; None if there were no checkpoints.
    """
    checkpoints = folder / CHECKPOINTS
    if not checkpoints.exists():
        return None
    # Microseconds keep the name unique if a run starts over repeatedly.
    target = folder / f"{GIVEN_UP}{CHECKPOINTS}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S.%fZ')}"
    checkpoints.rename(target)
    return target


def refuse_step_0(folder: Path) -> None:
    """Refuse to start a run from step 0 in a folder that contains, or once contained, its checkpoints.

    Raises:
        NoWayBackError: checkpoints exist or are missing; the message says which, and what to do.
    """
    checkpoints = checkpoint_folders(folder)
    set_aside = checkpoint_folders(folder, set_aside=True)
    if checkpoints:
        reason = (
            f"{folder} holds the checkpoint {checkpoints[0].name}, but none was restored: call run.resume() before "
            "the loop"
        )
    elif set_aside:
        names = ", ".join(path.name for path in set_aside[:3])
        reason = f"{folder} has only checkpoints that were set aside ({names}): restore one of them from a backup"
    # The event log still mentions checkpoints after their folder was deleted.
    elif any(event["kind"] == "checkpoint" for event in read_events(folder)):
        reason = (
            f"the record of {folder} mentions checkpoints, but {CHECKPOINTS}/ has none: restore that folder from a "
            "backup"
        )
    else:
        return
    raise NoWayBackError(
        f"{reason}, use another run folder, or discard the training with --resume start-over "
        "(Saving(resume='start-over')), which moves the checkpoints aside and starts from step 0"
    )


def refuse_links(folder: Path) -> None:
    """Refuse a run folder in which a file written by the run is a link, whose target would be changed or deleted.

    The folder itself may be a link, for example to a larger disk. Links with other names are allowed.

    Raises:
        LinkRefused: a file is a link; the message names it.
    """
    for name in _RUN_FILES:
        refuse_link(folder / name)


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
