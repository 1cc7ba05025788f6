"""A dress rehearsal: before any training, one checkpoint of the real size goes to the disk and back."""

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
"""Numbers per parameter that an optimizer will hold after its first step, as Adam does."""


def write_test_checkpoint(folder: Path, draft: Draft, *, growth: int = 0) -> None:
    """Write a checkpoint under a temporary name, sync it, read it back from the disk, and delete it.

    Args:
        folder: where checkpoints are going to lie.
        draft: what a checkpoint holds now.
        growth: bytes by which the state will have grown after its first step.

    Raises:
        CheckpointError: there is too little space, the disk cannot be written, or it does not give back what was
            written. Nothing is left behind.
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
            # The optimizer's state does not exist yet: its room is tried out by allocating it.
            preallocate(draft_folder / "growth", growth)
            draft.write(draft_folder)
            verify_folder(draft_folder)
    except (OSError, DamageError) as error:
        raise CheckpointError(_describe_failure(folder, draft.nbytes + growth, error)) from error


def optimizer_growth(items: Mapping[str, object]) -> int:
    """Bytes that the optimizers among some items will add to a checkpoint in their first step, at most."""
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
    with suppress(OSError):  # it holds something, or the disk is read-only: then it stays
        folder.rmdir()


def _describe_failure(folder: Path, nbytes: int, error: Exception) -> str:
    near = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(near).free
    what = f"a checkpoint of {nbytes:,} bytes was written to {folder.absolute()} to see whether this run can be saved"
    advice = "free space, mend the disk, or choose another run folder; nothing was trained, nothing is left there"
    return f"{what}: {error}; {nbytes:,} bytes wanted, {free:,} free: {advice}"
