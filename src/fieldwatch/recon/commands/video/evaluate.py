"""Evaluation of neural videos for ``fieldwatch eval``."""

from collections.abc import Iterator

from fieldwatch.cli.kit import BadInput, counting_frames
from fieldwatch.pipeline import EvaluationRequest, Scores
from fieldwatch.recon.commands.video.job import quality_table
from fieldwatch.recon.pipelines.video import EvaluationFiles, frames_to_render, open_run, write_evaluation


def evaluate(request: EvaluationRequest) -> Scores:
    """Evaluate a checkpoint on training and held-out frames, with references that need no network.

    Raises:
        InputError: the number of frames is negative, the run cannot be opened, or the files cannot be written.
    """
    frames = request.options.positions_frames
    if frames < 0:
        raise BadInput(f"--positions-frames {frames}: expected a number of frames, 0 for none")
    stored = open_run(request.run, request.checkpoint, device=request.device)
    with counting_frames(request.console, "rendering", frames_to_render(stored, frames)) as on_frame:
        evaluated = write_evaluation(stored, request.folder(stored.step), positions_frames=frames, on_frame=on_frame)
    return Scores(
        step=stored.step,
        metrics=evaluated.metrics,
        headline=f"targets by {stored.scene.teacher}",
        details={"teacher": stored.scene.teacher, "embeddings": evaluated.report},
        files=evaluated.files,
        display=(quality_table(evaluated.metrics), *_lines(evaluated, patches=stored.model.unit == "patch")),
    )


def _lines(evaluated: EvaluationFiles, *, patches: bool) -> Iterator[str]:
    """Yield a line for each kind of untrained position, and one about the embeddings."""
    # A network that renders whole frames has no untrained positions.
    for row in evaluated.positions if patches else ():
        if row["split"] == "all" and row["category"] != "trained_center":
            # Trained centers are the reference of the drop.
            drop = float(row["PSNR_drop"] or 0)
            compared = f"{abs(drop):.2f} dB {'below' if drop > 0 else 'above'} the patch centers"
            yield f"  {row['category']}: {row['PSNR_mean']:.2f} dB, {compared}"
    if evaluated.report is None:
        yield "  no semantic report: the semantic head of this checkpoint is untrained"
    else:
        score = evaluated.report["score"]
        yield f"  embeddings: {evaluated.report['verdict']} ({score['total']} of {score['of']} points)"
