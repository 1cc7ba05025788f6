"""Preflight check: before training, a checkpoint of the real size is written to the disk and read back."""

import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import cast

from torch.optim import Optimizer

from fieldwatch.checkpoint.files import make_folder, preallocate
from fieldwatch.checkpoint.folder import Draft, verify_folder
from fieldwatch.checkpoint.incident import CheckpointError, DamageError

MOMENTS = 2
"""Assumed number of optimizer values per parameter after the first step, as in Adam."""


def write_test_checkpoint(folder: Path, draft: Draft, *, growth: int = 0) -> None:
    """Write a checkpoint under a temporary name, sync it, verify it from the disk, and delete it.

    Args:
        folder: future folder of the checkpoints.
        draft: current contents of a checkpoint.
        growth: number of bytes by which the state will grow in the first step.

    Raises:
        CheckpointError: if there is too little space, the disk cannot be written, or it does not return what was
            written. No files remain.
    """
    existed = folder.is_dir()
    draft_folder = folder / f".tmp-step_preflight-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        with ExitStack() as undo:
            if not existed:
                undo.callback(_remove_empty, folder)
            make_folder(folder)
            undo.callback(shutil.rmtree, draft_folder, ignore_errors=True)
            draft_folder.mkdir()
            # The optimizer's state does not exist yet: reserve its space with a file of that size.
            preallocate(draft_folder / "growth", growth)
            draft.write(draft_folder)
            # Reading back detects disks that accept writes but do not store them.
            verify_folder(draft_folder)
    except (OSError, DamageError) as error:
        raise CheckpointError(_describe_failure(folder, draft.nbytes + growth, error)) from error


def optimizer_growth(items: Mapping[str, object]) -> int:
    """Return the maximum number of bytes that the first step of the optimizers among the items adds to a checkpoint."""
    nbytes = 0
    for item in items.values():
        if isinstance(item, Optimizer):
            empty = [
                parameter
                for group in item.param_groups
                for parameter in group["params"]
                if not item.state.get(parameter)
            ]
            nbytes += MOMENTS * sum(parameter.numel() * parameter.element_size() for parameter in empty)
        elif isinstance(item, Mapping):
            nbytes += optimizer_growth(cast("Mapping[str, object]", item))
    return nbytes


def _remove_empty(folder: Path) -> None:
    # The folder stays if it is not empty or the disk is read-only.
    with suppress(OSError):
        folder.rmdir()


def _describe_failure(folder: Path, nbytes: int, error: Exception) -> str:
    # The folder was removed again, so its nearest existing parent is measured.
    near = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(near).free
    what = f"a test checkpoint of {nbytes:,} bytes could not be written to {folder.absolute()}"
    advice = "free space, repair the disk, or choose another run folder; training did not start and no files remain"
    return f"{what}: {error}; {nbytes:,} bytes needed, {free:,} free: {advice}"
