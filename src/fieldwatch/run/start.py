"""May a run begin in this folder, and what of the run that is there already."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from fieldwatch.base import ExistingPathError, MissingPathError, refuse_link
from fieldwatch.record import CHECKPOINTS, NotARun, checkpoint_folders, holds_run, read_manifest
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


def refuse_links(folder: Path) -> None:
    """Refuse a run folder in which what a run writes is a link: what it leads to would be changed or deleted.

    The folder itself may be a link, for example to a larger disk. Links of other names are nobody's business.

    Raises:
        LinkRefused: names the link.
    """
    for name in _RUN_FILES:
        refuse_link(folder / name)
