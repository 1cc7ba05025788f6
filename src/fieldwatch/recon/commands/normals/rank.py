"""Ranking of a run's checkpoints by mesh and normals, for ``fieldwatch compare --checkpoints``."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from fieldwatch import CheckpointError, Checkpoints
from fieldwatch.cli.kit import Announce, BadInput, CheckpointRanking, CheckpointRow, refuse_empty_ranking, stored_steps
from fieldwatch.pipeline import Device
from fieldwatch.recon.commands.normals.options import RankOptions
from fieldwatch.recon.pipelines.normals import MOST_NODES, evaluate_surface, model_from, open_run, stored_config

MAE, MAE_HELD_OUT, CHAMFER, IOU = "MAE train", "MAE held out", "Chamfer %", "IoU"


def rank(folder: Path, device: Device, options: RankOptions, on_step: Announce) -> CheckpointRanking:
    """Rank the checkpoints of a normals run by mesh and normals.

    Args:
        folder: run folder.
        device: device to render on.
        options: resolution of the meshes; None means that of the run.
        on_step: callback that receives each step before its checkpoint is evaluated.

    Raises:
        ValueError: the run or its maps cannot be read, or no checkpoint is intact.
    """
    if options.resolution is not None and not 8 <= options.resolution <= MOST_NODES:
        raise BadInput(
            f"--resolution must be 8 to {MOST_NODES} nodes along a side of the box, got {options.resolution}"
        )
    store = Checkpoints(folder / "checkpoints")
    rows: list[CheckpointRow] = []
    left_out: dict[int, str] = {}
    config = stored_config(folder)
    scene = None
    for step in stored_steps(store, folder):
        on_step(step)
        try:
            # Maps and masks are read once, with the first intact checkpoint.
            if scene is None:
                stored = open_run(folder, step, device=device)
                scene, model = stored.scene, stored.model
            else:
                model = model_from(store.read(step), config, scene)
        except CheckpointError as error:
            left_out[step] = str(error)
            continue
        metrics = evaluate_surface(model, scene, config, resolution=options.resolution).metrics
        figures = {
            MAE: metrics.get("Eval/mae"),
            MAE_HELD_OUT: metrics.get("Eval/mae_held_out"),
            CHAMFER: metrics.get("Eval/chamfer_percent"),
            IOU: metrics.get("Eval/iou"),
        }
        rows.append(CheckpointRow(step=step, iteration=round(scene.schedule.iteration(step)), figures=figures))
    refuse_empty_ranking(rows, left_out, folder)
    columns = {MAE: "{:.3f}", MAE_HELD_OUT: "{:.3f}", CHAMFER: "{:.4f}", IOU: "{:.4f}"}
    return by_ratios(rows, columns, left_out)


def by_ratios(
    rows: Sequence[CheckpointRow], columns: Mapping[str, str], left_out: Mapping[int, str]
) -> CheckpointRanking:
    """Rank by the geometric mean of each error over its best value.

    A checkpoint without surface lacks errors that others have, and is ranked last.
    """
    normal = MAE_HELD_OUT if any(row.figures[MAE_HELD_OUT] is not None for row in rows) else MAE
    # The held-out error counts if there is one: the training error rewards overfitting.
    errors = [name for name in (normal, CHAMFER) if any(row.figures[name] is not None for row in rows)]
    least = {name: min(value for row in rows if (value := row.figures[name]) is not None) for name in errors}
    scored: list[CheckpointRow] = []
    for row in rows:
        values = [(row.figures[name], least[name]) for name in errors]
        # Ratios to the best value make errors of different units comparable.
        logs = [math.inf if value is None else math.log(max(value, 1e-12) / max(low, 1e-12)) for value, low in values]
        score = math.exp(sum(logs) / len(logs)) if logs else math.inf
        scored.append(CheckpointRow(step=row.step, iteration=row.iteration, figures=row.figures, score=score))
    ranked_by = " and ".join(errors) or "nothing: no checkpoint shows a surface"
    scored.sort(key=lambda row: (row.score, -row.step))
    return CheckpointRanking(rows=tuple(scored), columns=columns, ranked_by=ranked_by, left_out=left_out)
