"""Evaluation of splats runs for ``fieldwatch eval``."""

from dataclasses import replace
from pathlib import Path

from fieldwatch.files import output_path
from fieldwatch.pipeline import EvaluationRequest, Scores
from fieldwatch.recon.commands.splats.job import quality_table
from fieldwatch.recon.losses import find_lpips
from fieldwatch.recon.pipelines.splats import (
    Evaluation,
    StoredRun,
    evaluate,
    open_drawn_run,
    save_picture,
    worst_views,
    write_geometry,
    write_renders,
    write_table,
)


def evaluate_run(request: EvaluationRequest) -> Scores:
    """Evaluate a checkpoint on its held-out photos and on its training photos.

    Raises:
        InputError: the run cannot be opened, or the files cannot be written.
    """
    stored = open_drawn_run(request.run, request.checkpoint, device=request.device)
    lpips, _ = find_lpips()
    with request.console.status("rendering and evaluating") as status:
        held_out = evaluate(stored.model, stored.scene, lpips=lpips)
        trained = on_training_photos(stored, held_out)
        status.update("rendering pictures")
        files = write_files(stored, held_out, trained, request.folder(stored.step))
    training = None if trained is None else trained.metrics
    # The note of the training and `fieldwatch doctor` tell how to get the weights.
    missing = () if lpips else ("  LPIPS is not measured: see fieldwatch doctor",)
    return Scores(
        step=stored.step,
        metrics=held_out.metrics,
        headline=f"{len(held_out.rows)} photos {'held out' if held_out.held_out else 'trained on'}",
        details={"held_out": held_out.held_out, "training": training},
        files=files,
        display=(quality_table(held_out.metrics, training), *missing),
    )


def on_training_photos(stored: StoredRun, held_out: Evaluation) -> Evaluation | None:
    """Evaluate the training photos, too; return None if they have been evaluated already."""
    if not held_out.held_out:
        return None
    # Without a test split, `evaluate` uses the training photos.
    return evaluate(stored.model, replace(stored.scene, photos=stored.scene.photos.having(test=())))


def write_files(stored: StoredRun, held_out: Evaluation, trained: Evaluation | None, folder: Path) -> dict[str, Path]:
    """Write tables and pictures; return the files by content."""
    files = {"per photo": write_table(folder, held_out, stored.step), "metrics": output_path(folder, "metrics.json")}
    if trained is not None:
        files["per training photo"] = write_table(output_path(folder, "train"), trained, stored.step)
    files["worst views"] = save_picture(output_path(folder, "worst_views.png"), worst_views(held_out, stored.scene))
    files["renders"] = write_renders(stored.model, stored.scene, output_path(folder, "renders"))
    files["depth and normals"] = write_geometry(stored.model, stored.scene, output_path(folder, "geometry.png"))
    return files
