"""The two ends of a run: may it begin in this folder, and how did it end."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from fieldwatch.base import ExistingPathError, MissingPathError, refuse_link
from fieldwatch.checkpoint import NoWayBackError
from fieldwatch.guard import Diverged
from fieldwatch.monitor import asks_for_an_end
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
"""What a run writes into its folder whatever it trains; what a pipeline adds is checked when it is written."""

Resume = Literal["auto", "never", "must", "start-over"]
GIVEN_UP = "given-up-"
"""How the folder begins that earlier checkpoints are moved to by ``start-over``."""


class Interrupted(SystemExit):
    """A signal came, the run has ended in order. Exits with 143 (SIGTERM), 130 (SIGINT), 138 (SIGUSR1), 129 (SIGHUP).

    The step was finished and saved; or it was given up at a stop point: then the last checkpoint stands.
    """


def check_folder(folder: Path, config: Mapping[str, Any], resume: Resume) -> bool:
    """Whether the run in this folder is to be continued.

    Raises:
        ConfigMismatch: it holds a run with another config.
        NotARun: its run.json is damaged, and no checkpoint says what it was.
        ExistingPathError: it holds a run, and ``resume`` is ``never``; or it is a file.
        MissingPathError: it holds none, and ``resume`` is ``must``.
    """
    if folder.exists() and not folder.is_dir():
        raise ExistingPathError(f"{folder} is a file: a run needs a folder of its own, choose another with --out")
    exists = holds_run(folder)
    if exists and resume == "never":
        raise ExistingPathError(f"{folder} holds a run already: choose another folder, or continue it (resume='auto')")
    if not exists and resume == "must":
        raise MissingPathError(f"{folder} holds no run to resume: check the path, or start one with `fieldwatch train`")
    if exists:
        stored = _stored_config(folder)
        if stored is not None:
            refuse_mismatch(folder, stored, config)
    return exists and resume != "start-over"


def _stored_config(folder: Path) -> Mapping[str, Any] | None:
    """Return the config of the run in a folder; None where only checkpoints are left, which do not hold it.

    Raises:
        NotARun: run.json is damaged, and nothing else is left of the run.
    """
    try:
        return read_manifest(folder).config
    except NotARun:
        if checkpoint_folders(folder) or checkpoint_folders(folder, set_aside=True):
            return None
        raise


def give_up_checkpoints(folder: Path) -> Path | None:
    """Move the checkpoints of a run's folder to another name, for a run that starts over; nothing is deleted.

    Returns:
        Where they lie now; None where there were none.
    """
    checkpoints = folder / CHECKPOINTS
    if not checkpoints.exists():
        return None
    target = folder / f"{GIVEN_UP}{CHECKPOINTS}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S.%fZ')}"
    checkpoints.rename(target)
    return target


def refuse_step_0(folder: Path) -> None:
    """Refuse to start a run from step 0 in a folder that ever held one of its checkpoints.

    Raises:
        NoWayBackError: it did; the message says what lies there and what can be done.
    """
    checkpoints = checkpoint_folders(folder)
    set_aside = checkpoint_folders(folder, set_aside=True)
    if checkpoints:
        reason = (
            f"{folder} holds the checkpoint {checkpoints[0].name}, and none was restored: call run.resume() before "
            "the loop"
        )
    elif set_aside:
        names = ", ".join(path.name for path in set_aside[:3])
        reason = f"{folder} has only checkpoints that were set aside ({names}): restore one of them from a copy"
    elif any(event["kind"] == "checkpoint" for event in read_events(folder)):
        reason = (
            f"the record of {folder} tells of checkpoints, and {CHECKPOINTS}/ has none: restore that folder from a copy"
        )
    else:
        return
    raise NoWayBackError(
        f"{reason}, use another run folder, or give up what was trained with --resume start-over "
        "(Saving(resume='start-over')), which moves it aside and starts from step 0"
    )


def refuse_links(folder: Path) -> None:
    """Refuse a run folder in which what a run writes is a link: what it leads to would be changed or deleted.

    The folder itself may be a link, for example to a larger disk. Links of other names are nobody's business.

    Raises:
        LinkRefused: names the link.
    """
    for name in _RUN_FILES:
        refuse_link(folder / name)


def end_state(error: BaseException | None) -> RunState:
    """How a segment ended, in one word."""
    if error is None:
        return "finished"
    if isinstance(error, Diverged):
        return "diverged"
    return "interrupted" if asks_for_an_end(error) else "failed"


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
