"""Recording of an evaluation: scalars, histograms, and images of the worst frames and patches."""

from fieldwatch import Run, Step
from fieldwatch.recon.pipelines.video.evaluation import EvaluatedSet, VideoEvaluation
from fieldwatch.recon.pipelines.video.scene import VideoScene
from fieldwatch.recon.pipelines.video.strips import Picture, SheetEntry, strip, worst_sheet

PICTURED_PATCHES = 4


def record_evaluation(run: Run, step: Step, evaluation: VideoEvaluation, scene: VideoScene, epoch: int) -> None:
    """Record an evaluation at an epoch, together with the baselines."""
    # References are constant, but recorded each time so that charts show them as lines.
    step.record(evaluation.metrics | dict(scene.references), axis="epoch", position=epoch)
    for name, values in evaluation.histograms.items():
        step.histogram(name, values, position=epoch)
    for name, evaluated in evaluation.sets.items():
        frames = [scene.clip.names[frame] for frame in evaluated.frames]
        scores = dict(zip(frames, evaluated.scores.pooled_psnr.tolist(), strict=True))
        run.event("sample_scores", metric=f"Eval/Pooled/{name}_psnr", better="higher", values=scores)
        step.image(f"Eval/Worst/{name}_frame", worst_frame(scene, name, evaluated), position=epoch)
        step.image(f"Eval/Worst/{name}_patches", worst_patches(scene, name, evaluated), position=epoch)


def worst_frame(scene: VideoScene, name: str, evaluated: EvaluatedSet) -> Picture:
    """Return ground truth, prediction and error of a set's worst frame."""
    row = int(evaluated.scores.pooled_psnr.argmin())
    title = f"worst {name} frame {scene.clip.names[evaluated.frames[row]]}: {evaluated.scores.pooled_psnr[row]:.2f} dB"
    return strip(scene.covered(evaluated.frames[row]), evaluated.worst, title=title)


def worst_patches(scene: VideoScene, name: str, evaluated: EvaluatedSet) -> Picture:
    """Return the worst patches of a set's worst frame."""
    row = int(evaluated.scores.pooled_psnr.argmin())
    # Split again: an evaluation keeps only the joined worst frame.
    truths = scene.grid.split(scene.covered(evaluated.frames[row])[None])
    predictions = scene.grid.split(evaluated.worst[None])
    entries = [
        SheetEntry(truth=truth, prediction=prediction, psnr=float(psnr), label=f"{name} patch {i}")
        for i, (truth, prediction, psnr) in enumerate(
            zip(truths, predictions, evaluated.scores.patch_psnr[row], strict=True)
        )
    ]
    return worst_sheet(entries, count=PICTURED_PATCHES)
