"""Ranking the checkpoints of a run by PSNR, for ``fieldwatch compare --checkpoints``."""

from pathlib import Path

from fieldwatch import CheckpointError, Checkpoints
from fieldwatch.cli.kit import Compared, Row, Tell, refuse_none, stored_steps
from fieldwatch.pipeline import Device
from fieldwatch.recon.pipelines.splats import evaluate as evaluate_photos
from fieldwatch.recon.pipelines.splats import open_drawn_run

PSNR, SSIM = "PSNR", "SSIM"


def rank(folder: Path, device: Device, _options: None, tell: Tell) -> Compared:
    """Score the checkpoints of a splats run by PSNR.

    Args:
        folder: the run.
        device: where to draw.
        tell: called with each step before its checkpoint is scored.

    Raises:
        InputError: the run or its photos cannot be read, or there is no sound checkpoint.
    """
    rows = list[Row]()
    left_out = dict[int, str]()
    held_out = False
    for step in stored_steps(Checkpoints(folder / "checkpoints"), folder):
        tell(step)
        try:
            stored = open_drawn_run(folder, step, device=device)
        except CheckpointError as error:
            left_out[step] = str(error)
            continue
        found = evaluate_photos(stored.model, stored.scene)
        held_out = found.held_out
        figures = {PSNR: found.metrics["Test/psnr"], SSIM: found.metrics.get("Test/ssim")}
        rows.append(Row(step=step, iteration=round(step / stored.scene.plan.scale), figures=figures))
    refuse_none(rows, left_out, folder)
    most = max(row.figures[PSNR] or 0.0 for row in rows)
    scored = [
        Row(step=r.step, iteration=r.iteration, figures=r.figures, score=most - (r.figures[PSNR] or 0.0)) for r in rows
    ]
    return Compared(
        rows=tuple(sorted(scored, key=lambda row: (row.score, -row.step))),
        columns={PSNR: "{:.3f}", SSIM: "{:.4f}"},
        ranked_by=f"PSNR of the photos {'held out' if held_out else 'trained on'}",
        left_out=left_out,
    )
