"""What an evaluation shows in the sinks: numbers, distributions, and the worst frames and patches as pictures."""

from fieldwatch import Step
from fieldwatch.recon.pipelines.video.evaluation import Evaluation, Part
from fieldwatch.recon.pipelines.video.scene import Scene
from fieldwatch.recon.pipelines.video.strips import Picture, Shown, strip, worst_sheet

PATCHES_SHOWN = 4


def show_evaluation(step: Step, evaluation: Evaluation, scene: Scene, epoch: int) -> None:
    """Record an evaluation at an epoch, beside what needs no network."""
    step.record(evaluation.metrics | dict(scene.references), axis="epoch", position=epoch)
    for name, values in evaluation.histograms.items():
        step.histogram(name, values, position=epoch)
    for name, part in evaluation.parts.items():
        step.image(f"Eval/Worst/{name}_frame", worst_frame(scene, name, part), position=epoch)
        step.image(f"Eval/Worst/{name}_patches", worst_patches(scene, name, part), position=epoch)


def worst_frame(scene: Scene, name: str, part: Part) -> Picture:
    """Truth, prediction and error of a set's worst frame."""
    place = int(part.scores.pooled_psnr.argmin())
    title = f"worst {name} frame {scene.clip.names[part.frames[place]]}: {part.scores.pooled_psnr[place]:.2f} dB"
    return strip(scene.covered(part.frames[place]), part.worst, title=title)


def worst_patches(scene: Scene, name: str, part: Part) -> Picture:
    """The worst patches of a set's worst frame."""
    place = int(part.scores.pooled_psnr.argmin())
    truths = scene.grid.split(scene.covered(part.frames[place])[None])
    drawn = scene.grid.split(part.worst[None])
    shown = [
        Shown(truth=truth, prediction=prediction, psnr=float(psnr), label=f"{name} patch {i}")
        for i, (truth, prediction, psnr) in enumerate(zip(truths, drawn, part.scores.patch_psnr[place], strict=True))
    ]
    return worst_sheet(shown, count=PATCHES_SHOWN)
