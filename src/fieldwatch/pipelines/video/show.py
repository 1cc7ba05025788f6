"""What an evaluation shows in the sinks: numbers, distributions, and the worst frames and patches as pictures."""

from fieldwatch import Step
from fieldwatch.pipelines.video.evaluate import Evaluation
from fieldwatch.pipelines.video.scene import Scene
from fieldwatch.pipelines.video.strips import sheet, strip, worst

PATCHES_SHOWN = 4


def show_evaluation(step: Step, evaluation: Evaluation, scene: Scene, epoch: int) -> None:
    """Record an evaluation at an epoch, beside what needs no network."""
    step.record(evaluation.metrics | scene.references, axis="epoch", position=epoch)
    for name, values in evaluation.histograms.items():
        step.histogram(name, values, position=epoch)
    for name, part in evaluation.parts.items():
        place = worst(part.scores.pooled_psnr, 1)[0]
        truth = scene.covered(part.frames[place])
        caption = f"worst {name} frame {scene.clip.names[part.frames[place]]}: {part.scores.pooled_psnr[place]:.2f} dB"
        step.image(f"Eval/Worst/{name}_frame", strip(truth, part.worst, caption), position=epoch)
        patches = zip(scene.grid.split(truth[None]), scene.grid.split(part.worst[None]), strict=True)
        pairs = list(patches)
        values = part.scores.patch_psnr[place]
        rows = [strip(*pairs[i], f"patch {i}: {values[i]:.2f} dB") for i in worst(values, PATCHES_SHOWN)]
        step.image(f"Eval/Worst/{name}_patches", sheet(rows), position=epoch)
