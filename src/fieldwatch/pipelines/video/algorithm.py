"""Training a neural video: the loop, step by step."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Unpack

import torch
from jaxtyping import Int64
from torch import Tensor

from fieldwatch import Parts, Run, Shuffled, Step, Window
from fieldwatch.pipelines.video.config import VideoConfig
from fieldwatch.pipelines.video.evaluate import Evaluation, evaluate
from fieldwatch.pipelines.video.models import MODELS, VideoModel, build_model
from fieldwatch.pipelines.video.objective import (
    Drawn,
    EpochMeans,
    batch_metrics,
    semantic_window,
    unit_errors,
    video_terms,
)
from fieldwatch.pipelines.video.scene import Scene
from fieldwatch.pipelines.video.schedule import parse_schedule
from fieldwatch.pipelines.video.show import show_evaluation
from fieldwatch.pipelines.video.start import start_run
from fieldwatch.run import Outcome, RunChoices

BATCH_TAGS = {
    "Train/PSNR": "Train_Batch/PSNR",
    "Train/Loss/pixel_loss": "Train_Batch/pixel_loss",
    "Train/Loss/clip_loss": "Train_Batch/clip_loss",
    "Train/Loss/total_loss": "Train_Batch/total_loss",
}
"""Epoch tags that are means of a batch tag."""
NORMS = ("total", "rgb_head", "clip_head", "decoder")
"""Gradient norms that have an epoch mean."""
EPOCH_MEANS = (*BATCH_TAGS, *(f"Train/Gradients/{name}_norm" for name in NORMS))
"""All tags that are means over the batches of an epoch."""


def train_video(config: VideoConfig, scene: Scene, folder: Path, **how: Unpack[RunChoices]) -> Outcome[Evaluation]:
    """Train a network on a clip, in a run folder; a run found there is continued.

    Raises:
        Diverged: the run could not go on; the message says where to resume.
        Interrupted: a signal came; the step was finished and saved.
    """
    torch.manual_seed(config.seed)
    model = build_model(config.model, scene.geometry, config.options).to(scene.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr, betas=(config.beta1, config.beta2), fused=True)
    units = scene.units(model.unit, scene.drawn)
    order = Shuffled(len(units), config.batch, config.seed, drop_last=len(units) >= config.batch)
    means = EpochMeans(EPOCH_MEANS, scene.device)
    schedule, total = parse_schedule(config.lr_type), config.epochs * order.batches_per_epoch
    learner = Learner(config, scene, model, semantic_window(config, order.batches_per_epoch))
    parts, looks = Parts("batch", most=config.batch), Parts("evaluation", most=most_looks(model, scene))
    evaluation: Evaluation | None = None

    with start_run(config, scene, folder, order.batches_per_epoch, **how) as run:
        run.watch(**model.groups())
        run.keep(model=model, optimizer=optimizer, order=order, means=means, parts=parts, looks=looks)
        run.hold(**scene.held())
        for step in run.steps(total):
            batch = units[next(order)]
            chosen = step.own(batch)
            rate = set_learning_rate(optimizer, config.lr * schedule.factor(step.index / total))
            drawn = run.attempts.result(parts, partial(learner.gradients, run, step, optimizer, chosen, parts))
            step.observe(drawn.terms, sample=scene.names(model.unit, batch), sample_loss=drawn.errors)
            with step.span("optimizer"):
                step.update(optimizer, clip=config.clip_norm)

            terms = step.terms  # of the whole batch now, as its errors
            step.record(batch_metrics(terms, step.sample_loss, scene.stands_in(model.unit, batch)))
            means.add(epoch_values(step), refused=step.values["Guard/refused"])
            if step.every(order.batches_per_epoch):
                epoch = (step.index + 1) // order.batches_per_epoch
                active = "clip" in terms
                step.record(epoch_metrics(means.take(), config, rate, active=active), axis="epoch", position=epoch)
                if epoch % 10 == 0:
                    step.record(head_statistics(model), axis="epoch", position=epoch)
                if evaluation_due(config, epoch):
                    first = partial(look, run, step, model, scene, epoch, looks)
                    evaluation = run.ranks.only_first(first, "an evaluation")
    return Outcome.of(run, evaluation)


class Learner:
    """Makes the gradients of a step: draws its units, in as many parts as memory wants, and goes backward through each.

    Args:
        config: settings.
        scene: the clip.
        model: what is trained.
        semantic: the steps at which embeddings are drawn, too; None for none.
    """

    def __init__(self, config: VideoConfig, scene: Scene, model: VideoModel, semantic: Window | None) -> None:
        self._config, self._scene, self._model, self._semantic = config, scene, model, semantic
        self._draw = torch.compile(model) if config.compile else model

    def gradients(
        self, run: Run, step: Step, optimizer: torch.optim.Optimizer, chosen: Int64[Tensor, " units"], parts: Parts
    ) -> Drawn:
        """Make the gradients of a step on the chosen units: those of the mean, however many parts there are."""
        optimizer.zero_grad(set_to_none=True)
        slices = parts.slices(len(chosen))
        return Drawn.joined([self._add(run, step, chosen[part], len(chosen)) for part in slices])

    def _add(self, run: Run, step: Step, units: Int64[Tensor, " units"], whole: int) -> Drawn:
        """Add the share of some units; their graph is the only one alive, and is let go of."""
        config, model, share = self._config, self._model, len(units) / whole
        with step.span("data"), run.stop_point.waiting():
            batch = self._scene.batch(model.unit, units, with_frames=model.needs_frames, training=True)
            stands_in = self._scene.stands_in(model.unit, units)
        with step.span("forward"), autocast(config, self._scene.device):
            prediction = self._draw(batch.query, embed=self._semantic is not None and step.index in self._semantic)
        with step.span("loss"):
            terms = video_terms(config, prediction, batch, stands_in, step.span)
        step.attribute(terms, every=config.attribute_every)
        with step.span("backward"):
            (terms.total * share).backward()
        return Drawn.of(share, terms, unit_errors(prediction, batch), batch.names, stands_in)


def look(run: Run, step: Step, model: VideoModel, scene: Scene, epoch: int, parts: Parts) -> Evaluation | None:  # noqa: PLR0913, PLR0917  when, at what, and in how many parts
    """Evaluate, show it and rank the checkpoint by it; None where that failed, which the training does not notice."""
    between = partial(run.stop_point, "an evaluation")
    with step.span("evaluation"), run.aside("evaluation"):
        evaluation = run.attempts.result(parts, partial(evaluate, model, scene, between=between, parts=parts))
        show_evaluation(step, evaluation, scene, epoch)
        run.save_after_step({"psnr": evaluation.score})
        return evaluation
    return None


def most_looks(model: VideoModel, scene: Scene) -> int:
    """Units of a frame: as many can be drawn one after the other."""
    return scene.grid.patches if model.unit == "patch" else 1


def total_steps(config: VideoConfig, scene: Scene) -> int:
    """Steps of the whole training."""
    patches = scene.grid.patches if MODELS[config.model].unit == "patch" else 1
    units = len(scene.drawn) * patches
    return config.epochs * max(units // config.batch, 1)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> float:
    """Set the rate of every parameter group, and return it."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    return rate


def autocast(config: VideoConfig, device: torch.device) -> torch.autocast:
    """bfloat16 autocast where the config asks for it; it needs no loss scaling."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=config.amp)


def evaluation_due(config: VideoConfig, epoch: int) -> bool:
    """After every ``eval_freq`` epochs, and after the 4th, 2nd and last before the end, as the original does."""
    return epoch % config.eval_freq == 0 or epoch in {config.epochs - 4, config.epochs - 2, config.epochs}


def epoch_values(step: Step) -> dict[str, float | Tensor]:
    """What is averaged over an epoch: the batch tags and the gradient norms, under their epoch tags."""
    recorded: Mapping[str, float | Tensor] = {**step.numbers, **step.values}
    found: dict[str, float | Tensor] = {tag: recorded[own] for tag, own in BATCH_TAGS.items() if own in recorded}
    for name in NORMS:  # a head outside the graph has no gradient: the guide's 0
        found[f"Train/Gradients/{name}_norm"] = recorded.get(f"Gradients/{name}_norm", 0.0)
    return found


def epoch_metrics(
    means: dict[str, Tensor], config: VideoConfig, rate: float, *, active: bool
) -> dict[str, float | Tensor]:
    """An epoch's tags; the two ratios are left out where their denominator is zero by construction."""
    metrics: dict[str, float | Tensor] = dict(means)
    metrics["Train/learning_rate"] = rate
    metrics["Train/clip_loss_active"] = float(active)
    metrics["Train/Loss/clip_loss_weighted"] = means["Train/Loss/clip_loss"] * config.clip_loss_weight
    if active:
        metrics["Train/Loss/pixel_to_clip_ratio"] = means["Train/Loss/pixel_loss"] / means["Train/Loss/clip_loss"]
        heads = means["Train/Gradients/rgb_head_norm"], means["Train/Gradients/clip_head_norm"]
        metrics["Train/Gradients/rgb_to_clip_ratio"] = heads[0] / heads[1]
    return metrics


def head_statistics(model: VideoModel) -> dict[str, Tensor]:
    """Mean and sample standard deviation over all weights and biases of each head."""
    found: dict[str, Tensor] = {}
    for name in ("rgb_head", "clip_head"):
        entries = torch.cat([parameter.detach().reshape(-1) for parameter in model.groups()[name].parameters()])
        std, mean = torch.std_mean(entries)
        found |= {f"Model/Params/{name}_mean": mean, f"Model/Params/{name}_std": std}
    return found
