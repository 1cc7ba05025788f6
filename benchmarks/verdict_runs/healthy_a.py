"""Healthy runs of set a."""

import dataclasses

import torch
from torch import Tensor, nn

from fieldwatch import Declared, Phase, Terms, Window

from . import edits, tasks_a
from .cases import Healthy
from .commands import NORMALS, SPLATS, VIDEO, Command
from .games import playing
from .planting import Loop
from .plants_a import BLOBS, BUNNY, FROZEN, IMAGE, SOLID, SPOT, SPOTS, SURFACE, SYMBOLS, WALK
from .supervised import Parts


def cosine(parts: Parts) -> None:
    """Let the rate fall to zero."""
    parts.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(parts.optimizer, parts.steps)


def cyclic(parts: Parts) -> None:
    """Let the rate rise and fall."""
    parts.schedule = torch.optim.lr_scheduler.CyclicLR(
        parts.optimizer, base_lr=1e-4, max_lr=5e-3, step_size_up=60, cycle_momentum=False
    )


def warm_up(parts: Parts) -> None:
    """Let the rate rise in the first steps."""
    parts.schedule = torch.optim.lr_scheduler.LambdaLR(parts.optimizer, lambda step: min(1.0, (step + 1) / 100))


def averaged(parts: Parts) -> None:
    """Keep a moving average of the weights, and evaluate it."""
    average = torch.optim.swa_utils.AveragedModel(
        parts.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98)
    )
    parts.after_update.append(lambda _: average.update_parameters(parts.model))
    parts.tracked = {"model": parts.model, "optimizer": parts.optimizer, "average": average}
    parts.groups = {"model": parts.model}


def exact_targets(parts: Parts) -> None:
    """Fit a linear map exactly: the loss falls to rounding."""
    parts.targets = parts.inputs @ torch.randn(16, 1)
    model = nn.Linear(16, 1)
    parts.model = model
    parts.optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    parts.schedule = torch.optim.lr_scheduler.ExponentialLR(parts.optimizer, 0.995)
    parts.terms = lambda x, y: Terms(square=(1.0, (model(x) - y).square().mean()))
    error = parts.targets
    inputs = parts.inputs
    parts.measure = lambda: {"Eval/error": float((model(inputs) - error).abs().mean())}
    parts.figure = lambda: -float((model(inputs) - error).abs().mean())


def heavy_tails(parts: Parts) -> None:
    """Regress with a squared loss on noise whose variance is infinite."""
    torch.manual_seed(5)
    exact_targets(parts)
    inputs = parts.inputs
    clean = parts.targets
    model = parts.model
    noise = torch.distributions.StudentT(2.0).sample(clean.shape)
    parts.targets = clean + 0.5 * noise
    parts.measure = lambda: {"Eval/error": float((model(inputs) - clean).abs().mean())}
    parts.figure = lambda: -float((model(inputs) - clean).abs().mean())


def likelihood(parts: Parts) -> None:
    """Fit a density by its negative log-likelihood, which has both signs."""
    exact_targets(parts)
    inputs = parts.inputs
    clean = parts.targets
    parts.targets = clean + 0.1 * torch.randn_like(clean)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 2))
    parts.model = model
    parts.optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    parts.schedule = None

    def terms(x: Tensor, y: Tensor) -> Terms:
        mean, log_spread = model(x).unbind(-1)
        spread = log_spread.clamp(-5, 3).exp()
        return Terms(likelihood=(1.0, (log_spread + 0.5 * ((y[:, 0] - mean) / spread).square()).mean()))

    parts.terms = terms
    parts.measure = lambda: {"Eval/error": float((model(inputs)[:, :1] - clean).abs().mean())}
    parts.figure = lambda: -float((model(inputs)[:, :1] - clean).abs().mean())


def late_term(parts: Parts) -> None:
    """Add a term from step 300 on, in a declared phase."""
    terms = parts.terms
    now = [0]
    parts.before.append(lambda step: now.__setitem__(0, step))

    def staged(x: Tensor, y: Tensor) -> Terms:
        found = terms(x, y)
        if now[0] < 300:
            return found
        return found | Terms(smooth=(1e-4, parts.model(x).var(dim=0).sum()))

    parts.terms = staged
    parts.declared = Declared(
        windows={"smooth": Window(300)}, phases=[Phase("fit", Window(0, 299)), Phase("smooth", Window(300))]
    )


LINEAR = Loop(task=tasks_a.blobs, good=-0.4)
BUILT_IN = Command(pipeline="normals", words=f"{NORMALS} --steps 300 --views 6 --size 32", write=None, good=-9.0)
CLIP = Command(
    pipeline="video",
    words=f"{VIDEO} --epochs 15",
    write=None,
    good=14.0,
)

HEALTHY: tuple[Healthy, ...] = (
    BLOBS.healthy("blobs"),
    BLOBS.healthy("blobs evaluated by hand", edits.evaluate_by_hand()),
    BLOBS.healthy("blobs cosine to zero", cosine),
    BLOBS.healthy("blobs cyclic rate", cyclic),
    BLOBS.healthy("blobs bfloat16", edits.bfloat16),
    BLOBS.healthy("blobs float16 with scaling", edits.autocast_half(65536.0)),
    BLOBS.healthy("blobs four batches per update", edits.accumulated(4, 16)),
    BLOBS.healthy("blobs moving average", averaged),
    BLOBS.healthy("blobs noisy labels", edits.noisy_labels(0.2, 10)),
    LINEAR.healthy("linear to rounding", exact_targets),
    LINEAR.healthy("linear heavy tails", heavy_tails),
    LINEAR.healthy("likelihood of both signs", likelihood),
    SYMBOLS.healthy("symbols"),
    SYMBOLS.healthy("symbols warm-up", warm_up),
    SPOTS.healthy("spots"),
    IMAGE.healthy("image"),
    dataclasses.replace(IMAGE, good=25.0).healthy("image with a late term", late_term),
    FROZEN.healthy("frozen backbone"),
    WALK.healthy("grid walk"),
    Healthy(name="ring", train=playing(tasks_a.ring_game), good=0.6),
    SOLID.healthy("solid"),
    dataclasses.replace(SOLID, words=f"{SPLATS} --growth-cap 2000 --schedule-scale 0.05 {SURFACE}").healthy(
        "solid with surface terms"
    ),
    SPOT.healthy("spot"),
    BUILT_IN.healthy("built-in normals"),
    BUNNY.healthy("bunny"),
    CLIP.healthy("built-in clip"),
)
