"""Checks of the run folder before a run starts, and renaming of its checkpoints for a new start."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from fieldwatch.base import ExistingPathError, MissingPathError, refuse_link
from fieldwatch.checkpoint import CheckpointSelector, Retention
from fieldwatch.record import CHECKPOINTS, NotARun, checkpoint_folders, holds_run, read_manifest
from fieldwatch.record.config import as_stored_now, plain_values, refuse_mismatch

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
    "trackio",
    "wandb",
)
"""Files that every run writes to its folder; those of a pipeline are checked when they are written."""

Resume = Literal["auto", "never", "must", "start-over"]
GIVEN_UP = "given-up-"
"""Prefix of the folders to which ``start-over`` moves what the earlier training left."""
_RESULTS = (CHECKPOINTS, "crash", "evaluations", "products", "validation_failures")
"""Folders with results of a training, which would be taken for those of the one that starts over."""


def check_folder(folder: Path, config: Any, resume: Resume) -> bool:
    """Return whether the folder holds a run that should be continued.

    Args:
        folder: the run folder.
        config: configuration of the run, a dataclass or a mapping.
        resume: whether a run in the folder is continued, replaced or refused.

    Raises:
        ConfigMismatch: the folder holds a run with another config, and ``resume`` is not ``start-over``.
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
        # A run that starts over may have other settings: nothing of the earlier training is continued.
        if stored is not None and resume != "start-over":
            refuse_mismatch(folder, as_stored_now(type(config), stored), plain_values(config))
    return exists and resume != "start-over"


def refuse_missing_checkpoint(folder: Path, which: CheckpointSelector, keep: Retention | None) -> None:
    """Refuse to resume from a checkpoint that the folder does not have; only manifests are read.

    Args:
        folder: the run folder.
        which: checkpoint to resume from; "last" is not checked, because it may come from a mirror.
        keep: retention policy, whose metric ranks the checkpoints; None for the default.

    Raises:
        CheckpointError: there is no such checkpoint; the message lists the steps that have one.
    """
    if which != "last":
        from fieldwatch.checkpoint import Checkpoints  # noqa: PLC0415  at first use

        Checkpoints(folder / CHECKPOINTS, keep=keep or Retention()).find(which)


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


def give_up_training(folder: Path) -> None:
    """Rename the checkpoints, products and other results of a run that starts over; nothing is deleted."""
    # Microseconds keep the names unique if a run starts over repeatedly.
    time = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    for name in _RESULTS if holds_run(folder) else ():
        if (folder / name).exists():
            (folder / name).rename(folder / f"{GIVEN_UP}{name}-{time}")


def refuse_links(folder: Path) -> None:
    """Refuse a run folder in which a file written by the run is a link, whose target would be changed or deleted.

    The folder itself may be a link, for example to a larger disk. Links with other names are allowed.

    Raises:
        LinkRefused: a file is a link; the message names it.
    """
    for name in _RUN_FILES:
        refuse_link(folder / name)
