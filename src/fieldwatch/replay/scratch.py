"""Folder in which a replay may train: a copy of a run at one of its checkpoints, or an empty one for its beginning."""

import os
import shutil
from pathlib import Path

from fieldwatch.base import InputError
from fieldwatch.checkpoint import Checkpoints, DamageError, StoredStateError
from fieldwatch.monitor import read_black_box
from fieldwatch.record import CHECKPOINTS, checkpoint_folders, holds_run, read_events, read_manifest

NOT_COPIED = frozenset({
    ".lock", "black_box", CHECKPOINTS, "crash", "evaluations", "log.txt", "memory.jsonl", "metrics.csv", "mlflow.db",
    "products", "profiles", "ranks", "report.html", "snapshots", "tensorboard", "trackio", "validation_failures",
    "wandb",
})  # fmt: skip
"""Files of a run folder that a resumed run does not read; the chosen checkpoint is copied on its own."""
ATTEMPTS = 3
"""How often another checkpoint is chosen if a running training deletes the chosen one while it is copied."""


def known_checkpoints(run: Path) -> list[int]:
    """Return the steps of a run that have a checkpoint, in ascending order."""
    return Checkpoints(run / CHECKPOINTS).steps()


def check_step(run: Path, step: int, last_recorded: int) -> None:
    """Refuse a step that the run cannot have reached.

    Args:
        run: run folder.
        step: step to replay.
        last_recorded: last step in the journal; -1 for none.

    Raises:
        InputError: the step is negative, beyond the planned steps, or beyond what was trained.
    """
    beat = read_black_box(run)
    # The last rows of a killed process are lost, but its black box and its checkpoints have the step.
    reached = max([last_recorded, *(saved - 1 for saved in known_checkpoints(run)), -1 if beat is None else beat.step])
    planned = [event.get("steps") for event in read_events(run) if event["kind"] == "plan"]
    total = planned[-1] if planned and isinstance(planned[-1], int) else None
    # The step after the last one may be the one that failed.
    most = reached + 1 if total is None else min(reached + 1, total - 1)
    if not 0 <= step <= most:
        plan = f" of {total} planned ones" if total is not None else ""
        raise InputError(
            f"--step {step}: {run} has reached step {reached}{plan}, expected a step from 0 to {most} (steps count "
            "from 0)"
        )


def copy_run(run: Path, scratch: Path, step: int, start: int | None = None) -> int | None:
    """Copy a run with its nearest whole checkpoint at or before a step.

    Without one, nothing is copied: the loop trains in the new folder from its beginning.

    Args:
        run: run folder; it is only read, and may still be training.
        scratch: folder to create.
        step: step to replay.
        start: step of the checkpoint to start from, 0 for the beginning; None for the nearest.

    Returns:
        The step of the checkpoint; None if there is none, so that the loop has to begin at step 0.

    Raises:
        InputError: there is no whole checkpoint of the step ``start``.
    """
    read_manifest(run)
    problems: list[str] = []
    for _ in range(ATTEMPTS):
        for candidate in _candidates(run, step, start):
            problem = _copy_checkpoint(candidate, scratch)
            if not problem:
                shutil.copytree(run, scratch, ignore=_left_out(run), ignore_dangling_symlinks=True, dirs_exist_ok=True)
                return _step_of(candidate, scratch)
            problems.append(f"{candidate.name}: {problem}")
    if start:
        available = ", ".join(map(str, known_checkpoints(run))) or "none"
        damage = f" ({'; '.join(dict.fromkeys(problems))})" if problems else ""
        raise InputError(
            f"--start {start}: expected 0, or the step of a checkpoint at or before step {step}, got {start}; {run} "
            f"has {available}{damage}"
        )
    return None


def _candidates(run: Path, step: int, start: int | None) -> list[Path]:
    steps = Checkpoints(run / CHECKPOINTS)
    chosen = [s for s in reversed(steps.steps()) if (s <= step if start is None else s == start <= step)]
    by_name = {path.name: path for path in checkpoint_folders(run)}
    found: list[Path] = []
    for each in chosen:
        try:
            found.append(by_name[steps.find(each).path.name])
        # Damaged, or deleted meanwhile by the training.
        except (DamageError, StoredStateError, KeyError):
            continue
    return found


def _copy_checkpoint(checkpoint: Path, scratch: Path) -> str:
    """Copy a checkpoint and verify its hashes; return the problem, or an empty string."""
    target = scratch / CHECKPOINTS / checkpoint.name
    try:
        shutil.copytree(checkpoint, target)
        Checkpoints(scratch / CHECKPOINTS).read(_step_of(checkpoint, scratch))
    except (DamageError, FileNotFoundError, shutil.Error) as error:
        shutil.rmtree(target, ignore_errors=True)
        return str(error)
    return ""


def _step_of(checkpoint: Path, scratch: Path) -> int:
    store = Checkpoints(scratch / CHECKPOINTS)
    return next(step for step in store.steps() if store.find(step).path.name == checkpoint.name)


def _left_out(run: Path):  # noqa: ANN202  the type that shutil wants
    root = os.fspath(run)

    def left_out(folder: str, names: list[str]) -> set[str]:
        place = Path(folder)
        # Runs inside of this run, such as refinements, are runs of their own.
        inner = {name for name in names if (place / name).is_dir() and holds_run(place / name)}
        odd = {name for name in names if not ((place / name).is_file() or (place / name).is_dir())}
        top = NOT_COPIED & set(names) if folder == root else set[str]()
        set_aside = {name for name in names if name.startswith("given-up-")} if folder == root else set[str]()
        return inner | odd | top | set_aside

    return left_out
