"""Ranking of a run's checkpoints by PSNR, for ``fieldwatch compare --checkpoints``."""

from pathlib import Path

from fieldwatch import CheckpointError, Checkpoints
from fieldwatch.cli.kit import Announce, CheckpointRanking, CheckpointRow, refuse_empty_ranking, stored_steps
from fieldwatch.pipeline import Device
from fieldwatch.recon.pipelines.splats import evaluate as evaluate_photos
from fieldwatch.recon.pipelines.splats import open_drawn_run

PSNR, SSIM = "PSNR", "SSIM"


def rank(folder: Path, device: Device, _options: None, tell: Announce) -> CheckpointRanking:
    """Rank the checkpoints of a splats run by PSNR.

    Args:
        folder: run folder.
        device: device to render on.
        tell: callback that receives each step before its checkpoint is evaluated.

    Raises:
        InputError: the run or its photos cannot be read, or no checkpoint is intact.
    """
    rows = list[CheckpointRow]()
    left_out = dict[int, str]()
    held_out = False
    for step in stored_steps(Checkpoints(folder / "checkpoints"), folder):
        tell(step)
        try:
            stored = open_drawn_run(folder, step, device=device)
        # A damaged checkpoint must not prevent ranking the others.
        except CheckpointError as error:
            left_out[step] = str(error)
            continue
        evaluation = evaluate_photos(stored.model, stored.scene)
        held_out = evaluation.held_out
        figures = {PSNR: evaluation.metrics["Test/psnr"], SSIM: evaluation.metrics.get("Test/ssim")}
        # Steps of a scaled schedule are converted to iterations of the papers.
        rows.append(CheckpointRow(step=step, iteration=round(step / stored.scene.plan.scale), figures=figures))
    refuse_empty_ranking(rows, left_out, folder)
    # Lower scores are better: the score is the distance to the best PSNR, in dB.
    best = max(row.figures[PSNR] or 0.0 for row in rows)
    scored = [
        CheckpointRow(step=r.step, iteration=r.iteration, figures=r.figures, score=best - (r.figures[PSNR] or 0.0))
        for r in rows
    ]
    return CheckpointRanking(
        # Among equals the latest step comes first.
        rows=tuple(sorted(scored, key=lambda row: (row.score, -row.step))),
        columns={PSNR: "{:.3f}", SSIM: "{:.4f}"},
        ranked_by=f"PSNR of the {'held-out' if held_out else 'training'} photos",
        left_out=left_out,
    )
