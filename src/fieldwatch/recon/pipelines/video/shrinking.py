"""Training a network on for a smaller file: on quantized weights, with the size of the file in the loss.

Each tensor of weights has a step, and is rounded to multiples of it in the forward pass; the gradient passes the
rounding unchanged (straight through, Bengio et al. 2013), and reaches the step, too (learned step sizes, Esser et al.
2020). The size is estimated by a Laplace distribution of each tensor's multiples, whose scale is their mean magnitude.
The loss is that of the training plus ``price * bits / pixels`` (rate and distortion, as in Ballé et al. 2017). The
price is moved once per pass, towards a given squared error.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call

from fieldwatch import InputError
from fieldwatch.recon.optimizers import Adam
from fieldwatch.recon.pipelines.video.bitstream.codec import CLIP_HEAD
from fieldwatch.recon.pipelines.video.bitstream.tensors import FEWEST
from fieldwatch.recon.pipelines.video.objective import squared_error, unit_errors, video_terms
from fieldwatch.recon.pipelines.video.scene import VideoScene
from fieldwatch.recon.pipelines.video.schedule import Schedule
from fieldwatch.recon.pipelines.video.start import prepare_scene
from fieldwatch.recon.pipelines.video.stored import StoredVideoRun

FIRST_LEVELS = 64
"""Steps from 0 to the largest weight of a tensor, at first."""
MOST_LEVELS = 2000
"""The same at most: a symbol has up to 12 bits, and both signs."""
_RATE = 0.3  # learning rate at first, as a fraction of the training's
_LAST_RATE = 0.05  # at the end, as a fraction of the first
_STEP_RATE = 0.02  # learning rate of the logarithm of the steps
_LEAST_SPREAD = 0.03  # mean magnitude of multiples, below which a tensor is practically 0
_GAIN = 1.0  # change of the logarithm of the price per pass, for a squared error off by a factor of e
_MOST_CHANGE = 0.3  # of the logarithm of the price per pass
_SLACK = 1.5  # dB by which large learning rates raise the error, which falls with them
_DECAY = Schedule(shape="cosine", up=0.0)  # of what falls from its first value
_TRIED_FROM = 2 / 3  # fraction of the passes after which every one is tried as the result


@dataclass(frozen=True, kw_only=True)
class ShrunkNetwork:
    """Weights for a small file.

    Attributes:
        state: state dict of the network; the weights that have a step are multiples of it.
        steps: step of each quantized tensor, by name.
    """

    state: Mapping[str, Tensor]
    steps: Mapping[str, float]


def refuse_shrinking(run: StoredVideoRun, *, with_clip_head: bool) -> None:
    """Refuse networks that cannot be shrunk.

    Raises:
        InputError: the network encodes frames, or its semantic head is to be stored.
    """
    if run.model.needs_frames:
        raise InputError(
            f"--shrink-epochs trains the weights of a network, got one that encodes frames ({run.config.model}): leave "
            "it out"
        )
    if with_clip_head:
        raise InputError(
            "--shrink-epochs trains for pixels only, and would spoil the semantic head: add --no-clip-head"
        )


def shrink(
    run: StoredVideoRun, *, epochs: int, psnr_drop: float, on_epoch: Callable[[str], None] = lambda _: None
) -> ShrunkNetwork:
    """Train a network on with quantized weights and a price on their bits; the run is not changed.

    Args:
        run: opened run.
        epochs: number of passes over the training frames.
        psnr_drop: how much less the pooled PSNR of the training frames may be than that of the checkpoint, dB.
        on_epoch: called with a description after every pass.

    Raises:
        InputError: the network cannot be shrunk.
        FloatingPointError: the loss is not finite.
    """
    refuse_shrinking(run, with_clip_head=False)
    scene = _training_scene(run)
    weights, fixed = _split(run)
    logs = {name: torch.log(weight.detach().abs().amax() / FIRST_LEVELS) for name, weight in weights.items()}
    for log in logs.values():
        log.requires_grad_()
    optimizer = Adam(
        [
            {"params": list(weights.values()), "lr": _RATE * run.config.lr},
            {"params": list(logs.values()), "lr": _STEP_RATE},
        ],
        betas=(0.9, 0.99),
    )
    generator = torch.Generator().manual_seed(run.config.seed)
    units = scene.units(run.model.unit, scene.trained_frames)
    total = epochs * math.ceil(len(units) / run.config.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: _LAST_RATE + (1 - _LAST_RATE) * _DECAY.factor(done / total)
    )
    pixels = run.scene.geometry.frames * run.scene.geometry.height * run.scene.geometry.width
    allowed = _squared_error(run, run.model.state_dict()) * 10 ** (psnr_drop / 10)
    price: float | None = None
    best = _rounded(run, weights, logs)
    best_rank = (True, math.inf)
    for epoch in range(epochs):
        errors: list[Tensor] = []
        order = units[torch.randperm(len(units), generator=generator)]
        for chosen in order.split(run.config.batch):
            optimizer.zero_grad()
            steps = {name: log.exp() for name, log in logs.items()}
            multiples = {name: weight / steps[name] for name, weight in weights.items()}
            rounded = {name: _round(multiple) * steps[name] for name, multiple in multiples.items()}
            batch = scene.batch(run.model.unit, chosen, training=True)
            prediction = functional_call(run.model, {**fixed, **rounded}, (batch.query,), {"embed": False})
            distortion = video_terms(run.config, prediction, batch).total
            bits_per_pixel = torch.stack([laplace_bits(each).sum() for each in multiples.values()]).sum() / pixels
            if price is None:
                price = float((distortion / bits_per_pixel).detach())
            loss = distortion + price * bits_per_pixel
            loss.backward()
            optimizer.step()
            schedule.step()
            by_unit = zip(unit_errors(prediction, batch), batch.stands_in, strict=True)
            errors += [error for error, stands_in in by_unit if not stands_in]
        reached = float(torch.stack(errors).mean())
        if price is None or not math.isfinite(reached):
            raise FloatingPointError(f"the loss is not finite in pass {epoch + 1} of --shrink-epochs {epochs}")
        done = (epoch + 1) / epochs
        change = _GAIN * math.log(allowed * 10 ** (_SLACK / 10 * _DECAY.factor(done)) / reached)
        price *= math.exp(min(max(change, -_MOST_CHANGE), _MOST_CHANGE))
        if done > _TRIED_FROM:
            found = _rounded(run, weights, logs)
            size = sum(float(laplace_bits(found.state[name] / step).sum()) for name, step in found.steps.items())
            # The smallest one that is good enough; if there is none, the last one.
            is_worse = _squared_error(run, found.state) > allowed
            rank = (is_worse, 0.0 if is_worse else size)
            if rank <= best_rank:
                best_rank = rank
                best = found
        on_epoch(f"shrinking, pass {epoch + 1} of {epochs}: {-10 * math.log10(reached):.2f} dB")
    return best


def _squared_error(run: StoredVideoRun, state: Mapping[str, Tensor]) -> float:
    """Return the mean squared error of a network over the training frames, which are assembled one by one."""
    unit = run.model.unit
    frames = (run.scene.batch(unit, run.scene.units(unit, [index])) for index in run.scene.split.train)
    return squared_error(run.model, state, frames)


def laplace_bits(multiples: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return the information in bits of multiples of a step that follow a Laplace distribution around 0.

    Its scale is the mean magnitude, as of the maximum likelihood. Between integers, the probability is that of the unit
    interval around the value.
    """
    scale = multiples.detach().abs().mean().clamp_min(_LEAST_SPREAD)
    distance = multiples.abs()
    half = 0.5 / scale
    # log of sinh, which itself overflows: the interval does not contain 0.
    outer = distance / scale - half - torch.log1p(-torch.exp(-2 * half)) + math.log(2)
    # The interval contains 0: 1 - exp(-half) * cosh(distance / scale).
    both = torch.exp((distance.clamp_max(0.5) - 0.5) / scale) + torch.exp(-(distance.clamp_max(0.5) + 0.5) / scale)
    inner = -torch.log((1 - both / 2).clamp_min(1e-9))
    return torch.where(distance >= 0.5, outer, inner) / math.log(2)


def _training_scene(run: StoredVideoRun) -> VideoScene:
    """Return the scene with interpolated frames if the training had them: without them, held-out frames get worse."""
    if run.config.between_weight == 0:
        return run.scene
    return prepare_scene(replace(run.config, device=run.scene.device.type))


def _split(run: StoredVideoRun) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return copies of the weights to quantize, and the rest of the state."""
    weights: dict[str, Tensor] = {}
    fixed: dict[str, Tensor] = {}
    for name, tensor in run.model.state_dict().items():
        coded = tensor.is_floating_point() and tensor.numel() >= FEWEST and bool((tensor != 0).any())
        if coded and not name.startswith(CLIP_HEAD):
            weights[name] = tensor.detach().clone().requires_grad_()
        else:
            fixed[name] = tensor
    return weights, fixed


def _round(multiples: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Round; the gradient passes unchanged."""
    return multiples + (multiples.round() - multiples).detach()


def _rounded(run: StoredVideoRun, weights: Mapping[str, Tensor], logs: Mapping[str, Tensor]) -> ShrunkNetwork:
    """Return the network as a file will hold it."""
    with torch.no_grad():
        # No finer than a file can store.
        least = {name: float(weight.abs().amax()) / MOST_LEVELS for name, weight in weights.items()}
        steps = {name: max(float(log.exp()), least[name]) for name, log in logs.items()}
        found = {name: (weight / steps[name]).round() * steps[name] for name, weight in weights.items()}
    return ShrunkNetwork(state={**run.model.state_dict(), **found}, steps=steps)
