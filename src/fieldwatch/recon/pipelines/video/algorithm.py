"""The training loop of a neural video, step by step."""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Unpack

import torch
from jaxtyping import Int64
from torch import Tensor

from fieldwatch import MicroBatches, Run, Shuffled, Step, StepOutput
from fieldwatch.pipeline import Outcome, RunChoices, seed_everything
from fieldwatch.recon.optimizers import Adam
from fieldwatch.recon.pipelines import RENAMED_ITEMS
from fieldwatch.recon.pipelines.video.config import VideoConfig
from fieldwatch.recon.pipelines.video.evaluation import VideoEvaluation, evaluate
from fieldwatch.recon.pipelines.video.evaluation_record import record_evaluation
from fieldwatch.recon.pipelines.video.graphs import EAGER_STEPS, GraphedNetwork
from fieldwatch.recon.pipelines.video.models import MODELS, Prediction, Query, VideoModel, build_model
from fieldwatch.recon.pipelines.video.objective import (
    EpochMeans,
    batch_metrics,
    semantic_window,
    unit_errors,
    video_terms,
)
from fieldwatch.recon.pipelines.video.scene import VideoBatch, VideoScene
from fieldwatch.recon.pipelines.video.schedule import parse_schedule
from fieldwatch.recon.pipelines.video.start import start_run

BATCH_TAGS = {
    "Train/PSNR": "Train_Batch/PSNR",
    "Train/Loss/pixel_loss": "Train_Batch/pixel_loss",
    "Train/Loss/clip_loss": "Train_Batch/clip_loss",
    "Train/Loss/total_loss": "Train_Batch/total_loss",
}
"""Epoch tags that average a batch tag over the epoch."""
NORMS = ("total", "rgb_head", "clip_head", "decoder")
"""Parameter groups whose gradient norm is averaged over the epoch."""
EPOCH_MEANS = (*BATCH_TAGS, *(f"Train/Gradients/{name}_norm" for name in NORMS))
"""All tags that average over the batches of an epoch."""


def train_video(
    config: VideoConfig, scene: VideoScene, folder: Path, **how: Unpack[RunChoices]
) -> Outcome[VideoEvaluation]:
    """Train a network on a clip in a run folder, resuming an existing run.

    Raises:
        Diverged: training diverged; the message names the checkpoint to resume from.
        Interrupted: a signal arrived; the current step was finished and saved.
    """
    # Before the model, whose initial weights use this seed.
    seed_everything(config.seed)
    model = build_model(config.model, scene.geometry, config.options).to(scene.device)
    # Fused: on a GPU the kernel itself then skips a refused update, without a device-to-host sync (decision 0004).
    optimizer = Adam(model.parameters(), lr=config.lr, betas=(config.beta1, config.beta2), fused=True)
    # With the interpolation prior, frames in between are sampled as well, but never their true pixels.
    units = scene.units(model.unit, scene.trained_frames)
    # Dropping the last batch of a clip smaller than one batch would leave no batch at all.
    order = Shuffled(len(units), config.batch, config.seed, drop_last=len(units) >= config.batch)
    means = EpochMeans(EPOCH_MEANS, scene.device)
    schedule = parse_schedule(config.lr_type)
    total = config.epochs * order.batches_per_epoch
    # Windows are in steps, the config is in epochs.
    semantic = semantic_window(config, order.batches_per_epoch)
    render = renderer(config, model, scene.device)
    micro_batches = MicroBatches("batch", most=config.batch)
    evaluation_batches = MicroBatches("evaluation", most=most_evaluation_batches(model, scene))
    run = start_run(config, scene, folder, order.batches_per_epoch, **how)
    evaluation: VideoEvaluation | None = None

    def objective(batch: VideoBatch) -> StepOutput:
        """Compute the pixel loss of the frames and, once active, the semantic loss of their embeddings."""
        embed = semantic is not None and run.step_index in semantic
        prediction = render(batch.query, run.step_index, embed=embed)
        terms = video_terms(config, prediction, batch, run.span)
        return StepOutput(terms=terms, sample_loss=unit_errors(prediction, batch))

    def evaluate_and_record(step: Step, epoch: int) -> VideoEvaluation:
        with step.span("evaluation"):
            between = partial(run.stop_point, "an evaluation")
            evaluation = evaluate(model, scene, stop_point=between, micro_batches=evaluation_batches)
            record_evaluation(run, step, evaluation, scene, epoch)
            # After the evaluation, so that the checkpoint of this step is ranked by its score.
            run.save_after_step({"psnr": evaluation.score})
        return evaluation

    with run, convolutions_in_order():
        state = {"means": means, "micro_batches": micro_batches, "evaluation_batches": evaluation_batches}
        run.track(
            model=model, optimizer=optimizer, order=order, **state, groups=model.groups(), data=scene.tracked_data()
        )
        run.resume(renamed=RENAMED_ITEMS)
        for step in run.steps(total):
            batch = units[next(order)]
            # In every step, because the schedule depends on the progress within the epoch, too.
            rate = set_learning_rate(optimizer, config.lr * schedule.factor(step.index / total))
            names = scene.names(model.unit, batch)
            split = partial(load, run, scene, model)
            # zero_grad, forward, backward; retried with more micro-batches after an out-of-memory error
            step.backward(
                objective, step.shard(batch), split=split, samples=names, attribute_every=config.attribute_every
            )
            with step.span("optimizer"):
                step.update(optimizer, clip=config.clip_norm)

            terms = step.terms  # like the sample losses, of the whole batch after `backward`
            step.record(batch_metrics(terms, step.sample_loss, scene.stands_in(model.unit, batch)))
            # Only after the update is it known whether the step was refused.
            means.add(epoch_values(step), refused=step.values["Guard/refused"])
            if step.every(order.batches_per_epoch):
                epoch = (step.index + 1) // order.batches_per_epoch
                metrics = epoch_metrics(means.take(), config, rate, active="clip" in terms)
                step.record(metrics, axis="epoch", position=epoch)
                # Every tenth epoch, as in the dual-head HNeRV code.
                if epoch % 10 == 0:
                    step.record(head_statistics(model), axis="epoch", position=epoch)
                if evaluation_due(config, epoch):
                    evaluation_call = partial(evaluate_and_record, step, epoch)
                    evaluation = run.evaluate("evaluation", evaluation_call, micro_batches=evaluation_batches)
    return Outcome.of(run, evaluation)


def renderer(config: VideoConfig, model: VideoModel, device: torch.device) -> Callable[..., Prediction]:
    """Return a function of a query and the step that renders the units, as the config says how."""
    # Evaluation and checkpoints use the uncompiled module, whose parameter names have no prefix.
    forward = torch.compile(model) if config.compile else model
    graphed = GraphedNetwork(model) if config.cuda_graphs else None

    def render(query: Query, step: int, *, embed: bool) -> Prediction:
        if graphed is not None and uses_graph(config, step):
            return graphed(query, embed=embed)
        with autocast(config, device):
            return forward(query, embed=embed)

    return render


def uses_graph(config: VideoConfig, step: int) -> bool:
    """Return whether a step replays graphs.

    The first steps and those that measure the terms' gradients do not. This depends on the step alone, so that a
    resumed training repeats.
    """
    every = config.attribute_every
    return step >= EAGER_STEPS and not (every and (step + 1) % every == 0)


@contextmanager
def convolutions_in_order() -> Generator[None]:
    """Let cuDNN use only algorithms that add in a fixed order, so that a training repeats to the bit."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before


def load(
    run: Run, scene: VideoScene, model: VideoModel, units: Int64[Tensor, " units"], count: int
) -> Iterator[tuple[VideoBatch, float]]:
    """Load units in ``count`` micro-batches and yield each with its fraction of the units."""
    for piece in MicroBatches(count=count, most=count).slices(len(units)):
        with run.span("data"), run.stop_point.waiting():
            batch = scene.batch(model.unit, units[piece], with_frames=model.needs_frames, training=True)
        yield batch, len(batch.names) / len(units)
        del batch  # free its memory before the next one is loaded


def most_evaluation_batches(model: VideoModel, scene: VideoScene) -> int:
    """Return the number of units per frame, which can be rendered one after the other."""
    return scene.grid.patches if model.unit == "patch" else 1


def total_steps(config: VideoConfig, scene: VideoScene) -> int:
    """Return the number of steps of the whole training."""
    patches = scene.grid.patches if MODELS[config.model].unit == "patch" else 1
    units = len(scene.trained_frames) * patches
    return config.epochs * max(units // config.batch, 1)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> float:
    """Set the learning rate of every parameter group and return it."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    return rate


def autocast(config: VideoConfig, device: torch.device) -> torch.autocast:
    """Return a bfloat16 autocast context, enabled by the config; bfloat16 needs no loss scaling."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=config.amp)


def evaluation_due(config: VideoConfig, epoch: int) -> bool:
    """Return whether to evaluate: every ``eval_freq`` epochs, and at the last, second to last and fourth to last epoch.

    The original evaluates at the same epochs.
    """
    return epoch % config.eval_freq == 0 or epoch in {config.epochs - 4, config.epochs - 2, config.epochs}


def epoch_values(step: Step) -> dict[str, float | Tensor]:
    """Return the values to average over the epoch, under their epoch tags: batch metrics and gradient norms."""
    recorded: Mapping[str, float | Tensor] = {**step.numbers, **step.values}
    values: dict[str, float | Tensor] = {
        tag: recorded[batch_tag] for tag, batch_tag in BATCH_TAGS.items() if batch_tag in recorded
    }
    for name in NORMS:  # a head outside the graph has no gradient; the dual-head HNeRV code records 0
        values[f"Train/Gradients/{name}_norm"] = recorded.get(f"Gradients/{name}_norm", 0.0)
    return values


def epoch_metrics(
    means: dict[str, Tensor], config: VideoConfig, rate: float, *, active: bool
) -> dict[str, float | Tensor]:
    """Return the metrics of an epoch; ratios are omitted if their denominator is zero by construction."""
    metrics: dict[str, float | Tensor] = dict(means)
    metrics["Train/learning_rate"] = rate
    metrics["Train/clip_loss_active"] = float(active)
    metrics["Train/Loss/clip_loss_weighted"] = means["Train/Loss/clip_loss"] * config.clip_loss_weight
    # Without the semantic term both denominators are 0 and the ratios undefined.
    if active:
        metrics["Train/Loss/pixel_to_clip_ratio"] = means["Train/Loss/pixel_loss"] / means["Train/Loss/clip_loss"]
        heads = means["Train/Gradients/rgb_head_norm"], means["Train/Gradients/clip_head_norm"]
        metrics["Train/Gradients/rgb_to_clip_ratio"] = heads[0] / heads[1]
    return metrics


def head_statistics(model: VideoModel) -> dict[str, Tensor]:
    """Return the mean and sample standard deviation over all weights and biases of each head."""
    statistics: dict[str, Tensor] = {}
    for name in ("rgb_head", "clip_head"):
        entries = torch.cat([parameter.detach().reshape(-1) for parameter in model.groups()[name].parameters()])
        std, mean = torch.std_mean(entries)
        statistics |= {f"Model/Params/{name}_mean": mean, f"Model/Params/{name}_std": std}
    return statistics
